"""The callbacks that most runs use: what they show, what they leave on disk, when they stop a loop."""

import csv
import io
import itertools
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.env.normalize import wrap_rms
from parl_core.errors import HyperparameterError
from parl_core.stats import statistics_of
from parl_core.training import Ended, Episode, Evaluation, Run, Stop, Update, actor_learner, standard_callbacks
from parl_core.training.callbacks import (
    ConfirmedReturn,
    KeepBest,
    KeepLatest,
    NoImprovement,
    Progress,
    StepBudget,
    TimeBudget,
)
from parl_core.training.curves import LearningCurve
from parl_core.training.evaluation import RecordVideo
from parl_core.training.events import RunningEpisodes
from parl_core.training.logs import CsvTables, JsonLines, TensorBoard, figures


class Weights:
    """An agent with one number for weights, saved as text."""

    def __init__(self) -> None:
        self.number = 0

    def get_weights(self) -> int:
        return self.number

    def set_weights(self, weights: int) -> None:
        self.number = weights

    def save(self, path: Path) -> None:
        path.write_text(str(self.number))

    def restore(self, path: Path) -> None:
        self.number = int(path.read_text())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def update(step: int, *returns: float, seconds: float = 1.0) -> Update:
    episodes = [Episode(episode_return, 10) for episode_return in returns]
    return Update(step, 1000, seconds, episodes, {"policy_loss": 0.25}, {"lr": 0.5})


def evaluation(step: int, *returns: float) -> Evaluation:
    return Evaluation([Episode(episode_return, 10) for episode_return in returns], step, 2.0)


def ended(stop: Stop = Stop.BUDGET, *evaluations: Evaluation) -> Ended:
    return Ended(stop, "in a test", 1000, 9.0, evaluations)


def test_a_goal_has_to_be_reached_by_evaluations_in_a_row() -> None:
    rule = ConfirmedReturn(475.0, times=2)
    verdicts = [rule.on_evaluation(evaluation(0, mean)) for mean in (475.0, 474.9, 480.0, 475.0)]
    assert verdicts[:3] == [None, None, None]
    assert verdicts[3] == "evaluations in a row reached 475: 480.0, 475.0"


def test_the_time_budget_stops_at_the_first_step_after_it() -> None:
    rule = TimeBudget(10.0)
    assert rule.on_advance(1, 9.9) is None
    assert "10 s" in (rule.on_advance(2, 10.0) or "")


@pytest.mark.parametrize(
    "wrong", [lambda: TimeBudget(0.0), lambda: ConfirmedReturn(1.0, times=0), lambda: ConfirmedReturn(float("nan"))]
)
def test_stop_rules_out_of_range_are_refused(wrong: Any) -> None:
    with pytest.raises(HyperparameterError):
        wrong()


def test_the_best_weights_are_saved_and_come_back_of_equals_the_latest(tmp_path: Path) -> None:
    agent = Weights()
    run = Run("r", tmp_path)
    keeper = KeepBest(agent, run)
    assert not (run.path / "best.ckpt").exists()
    for number, mean in enumerate([3.0, 9.0, 9.0, 4.0], start=1):
        agent.number = number
        keeper.on_evaluation(evaluation(number, mean))
    keeper.on_end(ended())
    assert agent.number == 3
    assert (run.path / "best.ckpt").read_text() == "3"


def test_an_evaluation_of_nan_is_never_the_best() -> None:
    agent = Weights()
    keeper = KeepBest(agent)
    for number, mean in enumerate([float("nan"), 100.0, float("nan"), -500.0]):
        agent.number = number
        keeper.on_evaluation(evaluation(number, mean))
    keeper.on_end(ended())
    assert agent.number == 1


@pytest.mark.parametrize("stop", [Stop.INTERRUPTED, Stop.FAILED])
def test_after_an_error_the_file_holds_the_best_and_the_agent_stays_as_it_is(stop: Stop, tmp_path: Path) -> None:
    agent = Weights()
    run = Run("r", tmp_path)
    keeper = KeepBest(agent, run)
    agent.number = 1
    keeper.on_evaluation(evaluation(1, 5.0))
    agent.number = 2
    keeper.on_end(ended(stop))
    assert agent.number == 2
    assert (run.path / "best.ckpt").read_text() == "1"


class WithStatistics(Weights):
    """Saves the statistics of an environment beside its number."""

    def save(self, path: Path, normalization: Any = None) -> None:
        super().save(path)
        statistics_of(normalization).save(f"{path}.npz")

    def restore(self, path: Path, normalization: Any = None) -> None:
        super().restore(path)
        statistics_of(normalization).restore(f"{path}.npz")


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_best_agent_comes_back_with_the_statistics_that_it_had(in_memory: bool, tmp_path: Path) -> None:
    env = wrap_rms(gymnasium.make("Pendulum-v1"), gamma=0.9)
    env.reset(seed=1)
    agent = WithStatistics()
    keeper = KeepBest(
        agent, None if in_memory else Run("r", tmp_path), normalization=gymnasium.wrappers.TimeLimit(env, 9)
    )
    found = []
    for step, mean in ((1, 5.0), (2, 1.0)):
        agent.number = step
        env.step(np.ones(1, np.float32))
        found.append(env.get_state())
        keeper.on_evaluation(evaluation(step, mean))
    restored = KeepBest(agent, None, normalization=env)
    restored.set_state(keeper.get_state())
    assert not np.array_equal(found[0]["ob_mean"], found[1]["ob_mean"])
    (restored if in_memory else keeper).on_end(ended())
    assert agent.number == 1
    np.testing.assert_equal(env.get_state(), found[0])


def test_without_evaluations_there_is_no_best_and_the_agent_stays_as_it_is(tmp_path: Path) -> None:
    agent = Weights()
    agent.number = 5
    KeepBest(agent, Run("r", tmp_path)).on_end(ended())
    assert agent.number == 5


def test_without_a_terminal_progress_is_occasional_plain_lines() -> None:
    out = io.StringIO()
    now = [0.0]
    progress = Progress(out, clock=lambda: now[0])
    progress.on_update(update(100))
    progress.on_update(update(200, 10.0))
    now[0] = 6.0
    progress.on_update(update(300, 20.0))
    progress.on_evaluation(evaluation(300, 40.0, 50.0))
    progress.on_end(ended())
    assert out.getvalue().splitlines() == [
        "step 100/1000  no return yet  100 steps/s  0:09 left",
        "step 300/1000  return 15.0  300 steps/s  0:03 left",
        "step 300/1000  return 15.0  evaluated 45.0  300 steps/s  0:03 left",
        "Stopped after 1000 steps and 9.0 s: in a test",
    ]


def test_an_error_is_left_to_who_catches_it() -> None:
    out = io.StringIO()
    Progress(out).on_end(ended(Stop.FAILED))
    assert out.getvalue() == "Stopped after 1000 steps and 9.0 s: an error ended it\n"


def test_an_evaluation_before_the_first_report_says_its_own_step() -> None:
    out = io.StringIO()
    Progress(out).on_evaluation(evaluation(500, 40.0))
    assert out.getvalue() == "step 500  evaluated 40.0\n"


def test_on_a_terminal_progress_is_a_bar_with_the_current_return() -> None:
    out = Terminal()
    progress = Progress(out)
    progress.on_update(update(250, 10.0, 30.0))
    progress.on_evaluation(evaluation(250, 40.0))
    progress.on_end(ended())
    shown = out.getvalue()
    assert "25%" in shown
    assert "return 20.0  evaluated 40.0" in shown
    assert shown.endswith("Stopped after 1000 steps and 9.0 s: in a test\n")


def test_a_terminal_that_knows_no_size_gets_a_bar_too() -> None:
    ours, theirs = os.openpty()  # of 0 rows and 0 columns
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as shown:
        progress = Progress(terminal)
        progress.on_update(Update(50, 100, 1.0))
        progress.on_end(Ended(Stop.BUDGET, "100 steps were taken", 100, 2.0))
        text = b""
        while b"Stopped" not in text:
            text += shown.read(1000)
    assert b"50/100" in text


def test_tables_have_a_row_an_event_that_can_be_read_before_the_end(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    tables = CsvTables(run)
    tables.on_update(update(100))
    tables.on_update(update(200, 10.0, 30.0))
    tables.on_evaluation(evaluation(200, 1.0, 3.0))
    with (run.path / "updates.csv").open(newline="") as file:
        updates = list(csv.DictReader(file))
    with (run.path / "evaluations.csv").open(newline="") as file:
        evaluations = list(csv.DictReader(file))
    tables.on_end(ended())
    assert [row["step"] for row in updates] == ["100", "200"]
    assert [row["train/return"] for row in updates] == ["", "20.0"]
    assert updates[0]["loss/policy_loss"] == "0.25"
    assert updates[0]["schedule/lr"] == "0.5"
    assert evaluations[0]["evaluation/return"] == "2.0"
    assert evaluations[0]["evaluation/deviation"] == "1.0"


def events_of(file: Path) -> Iterator[Any]:
    """Yield the events of a TensorBoard file."""
    from tensorboardX.proto.event_pb2 import Event

    content = file.read_bytes()
    while content:  # a record: length (8 bytes), its checksum (4), the event, its checksum (4)
        length = int.from_bytes(content[:8], "little")
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def test_tensorboard_files_hold_the_scalars_at_their_steps(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    board = TensorBoard(run)
    board.on_update(update(100, 10.0))
    board.on_evaluation(evaluation(200, 40.0))
    board.on_end(ended())
    (file,) = (run.path / "tensorboard").iterdir()
    scalars = {
        (value.tag, event.step): value.simple_value for event in events_of(file) for value in event.summary.value
    }
    assert scalars["train/return", 100] == 10.0
    assert scalars["loss/policy_loss", 100] == 0.25
    assert scalars["evaluation/return", 200] == 40.0


def test_a_resumed_tensorboard_log_hides_what_comes_after_its_checkpoint(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    killed, resumed = TensorBoard(run), TensorBoard(run)
    killed.on_update(update(100, 10.0))
    resumed.set_state(killed.get_state())
    killed.on_update(update(200, 20.0))
    resumed.on_update(update(200, 30.0))
    killed.on_end(ended())
    resumed.on_end(ended())
    first, second = sorted((run.path / "tensorboard").iterdir())
    starts = [[event.step for event in events_of(file) if event.session_log.status] for file in (first, second)]
    assert starts == [[], [101]]


def interrupted_at(place: int, action: Callable[[], None]) -> bool:
    """Raise KeyboardInterrupt at one of the calls and returns within an action; return False if it has fewer."""
    places = itertools.count()

    def interrupt(*_: object) -> None:
        if next(places) == place:
            raise KeyboardInterrupt

    try:
        sys.setprofile(interrupt)
        action()
        sys.setprofile(None)
    except KeyboardInterrupt:  # Python has unset the function that raised
        return True
    return False


def test_the_tensorboard_log_ends_wherever_ctrl_c_fell_into_it(tmp_path: Path) -> None:
    place = 0
    while True:
        board = TensorBoard(Run.at(tmp_path / str(place)))
        board.on_update(update(100, 10.0))
        interrupted = interrupted_at(place, lambda: board.on_update(update(200, 20.0)))  # noqa: B023  # called at once
        end = threading.Thread(target=board.on_end, args=(ended(Stop.INTERRUPTED),), daemon=True)
        end.start()
        end.join(60)
        assert not end.is_alive(), f"waits for ever after an interruption at place {place}"
        if not interrupted:
            return
        place += 1


def test_the_learning_curve_is_a_picture_of_the_promised_size(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    curve = LearningCurve(run, "CartPole-v1", goal=40.0)
    for step in range(100, 1100, 100):
        curve.on_update(update(step, *[step / 20] * 5))
    curve.on_end(ended(Stop.CALLBACK, evaluation(500, 20.0, 30.0), evaluation(1000, 50.0, 50.0)))
    picture = (run.path / "learning-curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert (int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")) == (960, 540)


def test_a_run_without_training_episodes_draws_its_evaluations(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    LearningCurve(run, "logged", steps="gradient steps").on_end(ended(Stop.BUDGET, evaluation(500, 20.0, 30.0)))
    assert (run.path / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    nothing = Run("nothing", tmp_path)
    LearningCurve(nothing, "no evaluation either").on_end(ended(Stop.BUDGET))
    assert nothing.inventory() == "Nothing was saved yet."


def test_an_interrupted_run_draws_nothing_because_that_takes_too_long(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    curve = LearningCurve(run, "CartPole-v1")
    curve.on_update(update(100, 1.0))
    curve.on_end(ended(Stop.INTERRUPTED))
    assert not (run.path / "learning-curve.png").exists()


def test_the_standard_callbacks_leave_what_the_message_after_an_interruption_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run("r", tmp_path)
    callbacks = standard_callbacks(run, Weights(), goal=40.0, max_seconds=60.0)
    reasons = []
    for callback in callbacks:
        reasons.append(callback.on_update(update(100, 10.0)))
        reasons += [callback.on_evaluation(evaluation(step, 40.0)) for step in (100, 200)]
    for callback in callbacks:
        callback.on_end(ended(Stop.INTERRUPTED))
    assert [reason for reason in reasons if reason] == ["evaluations in a row reached 40: 40.0, 40.0"]
    message = capsys.readouterr().err
    for name in ("best.ckpt", "last.ckpt", "tensorboard", "updates.csv", "evaluations.csv", "metrics.jsonl"):
        assert (run.path / name).exists()
        assert f"{run.path / name}: " in message
    assert "evaluated return 40.0" in message


def test_training_ends_when_it_gets_no_better() -> None:
    rule = NoImprovement(evaluations=2, by=1.0)
    verdicts = [rule.on_evaluation(evaluation(0, mean)) for mean in (5.0, 7.0, 7.5, 9.0, 9.5)]
    assert verdicts == [None] * 5
    again = NoImprovement(evaluations=2, by=1.0)
    again.set_state(rule.get_state())
    assert again.on_evaluation(evaluation(0, 10.0)) == "2 evaluations in a row were no better than 9.0"


def test_a_portion_of_steps_ends_at_its_step() -> None:
    rule = StepBudget(200)
    assert rule.on_advance(199, 1.0) is None
    assert rule.on_advance(200, 1.0) == "the portion of 200 steps is done"


def test_the_latest_weights_are_saved_at_evaluations_and_at_the_end_but_not_after_an_error(tmp_path: Path) -> None:
    agent, run = Weights(), Run("r", tmp_path)
    keeper = KeepLatest(agent, run)
    for number, step in enumerate((("evaluated", None), ("budget", Stop.BUDGET), ("failed", Stop.FAILED)), start=1):
        agent.number = number
        if step[1] is None:
            keeper.on_evaluation(evaluation(number, 1.0))
        else:
            keeper.on_end(ended(step[1]))
    assert (run.path / "last.ckpt").read_text() == "2"


def test_figures_that_come_later_get_a_column_and_rows_after_a_checkpoint_go(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    tables = CsvTables(run)
    tables.on_update(Update(10, 100, 1.0))
    tables.on_update(Update(20, 100, 2.0, losses={"loss": 0.5}))
    state = tables.get_state()
    tables.on_update(Update(30, 100, 3.0, losses={"loss": 0.25}, metrics={"lag/mean": 1.5}))
    tables.on_evaluation(evaluation(30, 4.0))
    tables.on_end(ended())
    with (run.path / "updates.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss/loss"] for row in rows] == ["", "0.5", "0.25"]
    assert [row["lag/mean"] for row in rows] == ["", "", "1.5"]
    with (run.path / "updates.csv").open("a") as file:
        file.write("40,4.0,hal")  # of a program that was killed
    resumed = CsvTables(run)
    resumed.set_state(state)
    resumed.on_update(Update(30, 100, 3.0, losses={"loss": 0.25}))
    resumed.on_end(ended())
    with (run.path / "updates.csv").open(newline="") as file:
        assert [(row["step"], row["loss/loss"]) for row in csv.DictReader(file)] == [
            ("10", ""),
            ("20", "0.5"),
            ("30", "0.25"),
        ]
    assert not (run.path / "evaluations.csv").exists()


def test_json_lines_hold_every_event_and_lines_after_a_checkpoint_go(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    lines = JsonLines(run)
    lines.on_update(Update(10, 100, 1.0, metrics={"lag/mean": math.inf}))
    state = lines.get_state()
    lines.on_evaluation(evaluation(10, 4.0))
    lines.on_end(ended())
    resumed = JsonLines(run)
    resumed.set_state(state)
    resumed.on_evaluation(evaluation(20, 5.0))
    resumed.on_end(ended())
    found = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in found] == [("update", 10), ("evaluation", 20), ("end", 1000)]
    assert found[0]["lag/mean"] is None
    assert found[1]["evaluation/return"] == 5.0
    assert found[2]["stop"] == "budget"


def test_a_run_that_had_nothing_left_to_do_when_it_was_resumed_keeps_the_line_of_its_end(tmp_path: Path) -> None:
    run = Run("r", tmp_path)
    lines = JsonLines(run)
    lines.on_update(Update(10, 100, 1.0))
    state = lines.get_state()
    lines.on_end(ended())
    whole = (run.path / "metrics.jsonl").read_text()
    resumed = JsonLines(run)
    resumed.set_state(state)
    resumed.on_end(ended())
    assert (run.path / "metrics.jsonl").read_text() == whole


def test_a_resumed_curve_and_progress_know_what_was_before(tmp_path: Path) -> None:
    out = io.StringIO()
    first, second = Progress(io.StringIO()), Progress(out)
    curve, again = LearningCurve(Run("r", tmp_path), "a"), LearningCurve(Run("r", tmp_path), "a")
    for callback in (first, curve):
        callback.on_update(update(500, 10.0, 20.0, seconds=100.0))
    second.set_state(first.get_state())
    again.set_state(curve.get_state())
    second.on_update(update(600, 30.0, seconds=101.0))  # 100 steps a second since then, 5 before
    assert out.getvalue() == "step 600/1000  return 20.0  100 steps/s  0:04 left\n"
    assert again.get_state()["returns"].tolist() == [10.0, 20.0]


METRICS = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


@pytest.mark.skipif(not METRICS.exists(), reason="the page of metrics is in the repository only")
def test_every_name_in_logs_is_on_the_page_of_metrics() -> None:
    page = set(re.findall(r"`([a-z_]+/[a-z_]+)`", METRICS.read_text()))
    named = set(figures(evaluation(1, 2.0))) | set(figures(update(1, 2.0)))
    of_actors = set(re.findall(r"[a-z]+/[a-z]+", actor_learner.__doc__ or ""))
    assert {name for name in named if not name.startswith("schedule/")} <= page
    assert of_actors <= page
    assert len(of_actors) > 10


class Idle:
    """An agent that does nothing."""

    training = True
    obs_ndim = None

    def train(self) -> None: ...

    def eval(self) -> None: ...

    def predict(self, obs: Any) -> Any:
        return [0] * len(obs)


def test_a_video_of_every_other_evaluation_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    run = Run("r", tmp_path)
    videos = RecordVideo(run, Idle(), "CartPole-v1", every=2)
    for step in (10, 20, 30):
        videos.on_evaluation(evaluation(step, 1.0))
    found = sorted((run.path / "videos").rglob("*.mp4"))
    assert [path.parent.name for path in found] == ["step-000000000010", "step-000000000030"]
    assert all(path.stat().st_size > 1000 for path in found)


def test_without_moviepy_a_video_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parl_core.training.evaluation.find_spec", lambda _name: None)
    with pytest.raises(ImportError, match=r'pip install "parl-core\[video\]"'):
        RecordVideo(Run("r", tmp_path), Idle(), "CartPole-v1")


@pytest.mark.parametrize("own", [{"id": np.array([7])}, {"r": np.array(["x"]), "l": np.array([None])}])
def test_an_episode_in_an_environments_own_info_is_not_taken_for_statistics(own: dict[str, Any]) -> None:
    infos = {"episode": own, "_episode": np.array([True])}
    ended = RunningEpisodes(1).step(np.array([2.0]), np.array([0]), infos)
    assert ended == [Episode(2.0, 1)]
