"""Runs beside each other, from the logs in their folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parl_core.cli._commands import parl
from parl_core.errors import CheckpointError
from parl_core.training._seeds import FollowedRuns, seeds_of
from parl_core.training.curves import Comparison, draw_comparison, read_run
from parl_core.training.events import Callback, Ended, Evaluation, Update

PNG = b"\x89PNG"


def log(folder: Path, returns: list[float], *, every: int = 100, seed: int = 0, ended: bool = True) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for number, value in enumerate(returns, 1):
        common = {"step": number * every, "seconds": float(number)}
        lines.append({"event": "update", **common, "train/return": value - 1.0, "train/length": 3.0})
        lines.append({"event": "evaluation", **common, "evaluation/return": value})
    if ended:
        lines.append({"event": "end", "step": lines[-1]["step"], "seconds": 9.0, "stop": "budget", "reason": "done"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps({"algorithm": "PPO", "env": "CartPole-v1", "seed": seed, "given": {}}))
    return folder


def test_a_run_is_read_from_its_log(tmp_path: Path) -> None:
    run = read_run(log(tmp_path / "a", [1.0, 5.0, 3.0]))
    assert run.steps.tolist() == [100.0, 200.0, 300.0]
    assert (run.best, run.last, run.seconds, run.ended, run.stop) == (5.0, 3.0, 9.0, "done", "budget")


def test_a_run_that_is_being_written_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    folder = log(tmp_path / "a", [1.0, 5.0], ended=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "evalu')
    run = read_run(folder)
    assert (run.last, run.ended) == (5.0, "")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('\n{"event": "update", "step": 1, "seconds": 1}\n')
    with pytest.raises(CheckpointError, match="line 5, is not an event"):
        read_run(folder)


def test_without_evaluations_the_training_episodes_are_the_curve(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"event": "update", "step": 5, "seconds": 1, "train/return": 2.5}\n')
    assert read_run(folder).returns.tolist() == [2.5]
    log(tmp_path / "b", [1.0, 5.0])
    found = Comparison.read([folder, tmp_path / "b"])
    assert [row["returns_of"] for row in found.rows()] == ["training", "evaluations"]
    _, of_training, of_evaluations = found.table().splitlines()
    assert ("training" in of_training, "evaluations" in of_evaluations) == (True, True)


def test_a_group_without_evaluations_says_so(tmp_path: Path) -> None:
    for seed in range(2):
        (tmp_path / f"group/{seed}").mkdir(parents=True)
        (tmp_path / f"group/{seed}/metrics.jsonl").write_text('{"step": 5, "seconds": 1, "train/return": 2.5}\n')
    assert Comparison.read([tmp_path / "group"]).table().endswith("[2.50, 2.50]; not evaluated: of training episodes")


def test_a_group_has_a_band_where_all_of_its_runs_are(tmp_path: Path) -> None:
    for seed, value in enumerate((1.0, 2.0, 3.0)):
        log(tmp_path / "group" / f"seed-{seed}", [value] * (4 + seed), seed=seed)
    (group,) = Comparison.read([tmp_path / "group"]).groups
    band = group.band()
    assert band.steps.tolist() == [100.0, 200.0, 300.0, 400.0]
    assert band.middle.tolist() == [2.0] * 4
    assert all(1.0 <= low < 2.0 < high <= 3.0 for low, high in zip(band.low, band.high, strict=True))
    assert group.interval is not None
    assert group.interval.low >= 1.0


def test_runs_that_differ_by_their_seed_become_a_group_when_asked_for(tmp_path: Path) -> None:
    folders = [log(tmp_path / name, [1.0, 2.0], seed=seed) for seed, name in enumerate("abc")]
    assert [group.name for group in Comparison.read(folders).groups] == ["a", "b", "c"]
    (group,) = Comparison.read(folders, by_settings=True).groups
    assert (group.name, len(group.runs)) == ("PPO CartPole-v1", 3)


def test_runs_of_a_program_without_a_name_are_called_as_their_first_folder(tmp_path: Path) -> None:
    folders = [log(tmp_path / name, [1.0, 2.0]) for name in "ab"]
    for seed, folder in enumerate(folders):
        (folder / "run.json").write_text(json.dumps({"settings": {"lr": 0.1, "seed": seed}}))
    (group,) = Comparison.read(folders, by_settings=True).groups
    assert (group.name, len(group.runs)) == ("a", 2)


def test_runs_of_different_settings_in_a_folder_are_no_group(tmp_path: Path) -> None:
    others: dict[str, dict[str, Any]] = {"a": {}, "b": {"algorithm": "DQN"}, "c": {"env_options": {"N": 5}}}
    for name, other in others.items():
        folder = log(tmp_path / "runs" / name, [1.0, 5.0])
        asked = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**asked, **other}))
    found = Comparison.read([tmp_path / "runs"])
    assert [group.name for group in found.groups] == ["runs/a", "runs/b", "runs/c"]
    assert "interquartile" not in found.table()
    log(tmp_path / "runs" / "d", [1.0, 5.0], seed=1)
    grouped = Comparison.read([tmp_path / "runs"], by_settings=True).groups
    assert [len(group.runs) for group in grouped] == [2, 1, 1]


@pytest.mark.parametrize(
    ("other", "is_other"),
    [
        ({"data": "random.npz"}, True),
        ({"backend": "paddle"}, True),
        ({"steps": 1000}, True),
        ({"module": "mine"}, True),
        ({"goal": 0.0}, True),
        ({"settings": {"gamma": 0.9}}, True),
        ({"data": "", "goal": None, "env_options": {}}, False),
        ({"checkpoint_every": 5, "extended_to": 9, "written_by": "a later one", "repeat_with": {"python": "4"}}, False),
    ],
)
def test_runs_are_a_group_if_all_of_their_settings_are_the_same(
    other: dict[str, Any], is_other: bool, tmp_path: Path
) -> None:
    for seed, more in enumerate([{}, {}, other]):
        folder = log(tmp_path / "runs" / str(seed), [1.0, 5.0], seed=seed)
        asked = json.loads((folder / "run.json").read_text())
        asked |= {"backend": "torch", "settings": {"gamma": 0.99}, **more}
        (folder / "run.json").write_text(json.dumps(asked))
    found = Comparison.read([tmp_path / "runs"]).groups
    assert [len(group.runs) for group in found] == ([1, 1, 1] if is_other else [3])
    found = Comparison.read(sorted((tmp_path / "runs").iterdir()), by_settings=True).groups
    assert [len(group.runs) for group in found] == ([2, 1] if is_other else [3])
    assert len({group.name for group in found}) == len(found)


def test_runs_of_a_program_are_a_group_if_they_differ_by_their_seed_alone(tmp_path: Path) -> None:
    asked_for: list[dict[str, Any]] = [{"seed": 1, "runs": "a"}, {"seed": 2, "runs": "b"}, {"seed": 1, "lr": 0.1}]
    for number, settings in enumerate(asked_for):
        folder = log(tmp_path / str(number), [1.0, 5.0])
        (folder / "run.json").unlink()
        asked = {"format": "parl-settings", "version": 1, "program": "mine", "settings": {"lr": 1.0, **settings}}
        (folder / "settings.json").write_text(json.dumps(asked))
    found = Comparison.read([tmp_path / str(number) for number in range(3)], by_settings=True).groups
    assert [(group.name, len(group.runs)) for group in found] == [("mine #1", 2), ("mine #2", 1)]


def test_runs_of_one_seed_are_told_because_they_are_not_independent(tmp_path: Path) -> None:
    folders = [log(tmp_path / name, [1.0, 2.0], seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    told = "PPO CartPole-v1: more than one run has the seed 3; such runs are not independent"
    assert told in Comparison.read(folders, by_settings=True).table()
    assert "more than one run" not in Comparison.read(folders[1:], by_settings=True).table()


def test_a_table_has_whole_names_and_the_steps_that_were_taken(tmp_path: Path) -> None:
    folder = log(tmp_path / f"a-{'long' * 10}-name", [1.0, 2.0], ended=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "end", "step": 250, "seconds": 9.0, "stop": "budget", "reason": "done"}\n')
    found = Comparison.read([folder])
    head, row = found.table().splitlines()
    assert row.startswith(f"a-{'long' * 10}-name ")
    assert head.index("seed") + len("seed") == row.index("  0  ") + len("  0")
    assert found.rows()[0]["steps"] == 250
    assert len(Comparison(()).table().splitlines()) == 1


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [log(tmp_path / name / "run", [1.0]) for name in "ab"]
    found = Comparison.read(folders)
    assert [group.name for group in found.groups] == ["a/run", "b/run"]
    assert [line.split()[0] for line in found.table().splitlines()[1:]] == ["a/run", "b/run"]


def test_a_run_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    folders = [log(tmp_path / name, [1.0, 2.0]) for name in "ab"]
    (tmp_path / "link").symlink_to(folders[0])
    found = Comparison.read([*folders, tmp_path / "b" / ".." / "a", tmp_path / "link"])
    assert [(group.name, len(group.runs)) for group in found.groups] == [("a", 1), ("b", 1)]


def test_plot_draws_a_picture_and_prints_the_table(tmp_path: Path) -> None:
    for seed in range(3):
        log(tmp_path / "group" / f"seed-{seed}", [1.0, 2.0 + seed], seed=seed)
    single = log(tmp_path / "single", [1.5, 1.0])
    arguments = ["plot", str(tmp_path / "group"), str(single), "--goal", "3"]
    done = CliRunner().invoke(parl, [*arguments, "-o", str(tmp_path / "new" / "curves.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(PNG)
    assert "group: interquartile mean of 3 runs 3.00" in done.output
    as_json = CliRunner().invoke(parl, [*arguments, "-o", str(tmp_path / "c.svg"), "--json"])
    assert [row["last"] for row in json.loads(as_json.output)["runs"]] == [2.0, 3.0, 4.0, 1.0]


def test_a_page_has_the_figures_of_every_run_inside(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    for seed in range(2):
        log(tmp_path / "<group>" / f"seed-{seed}", [1.25, 2.5], seed=seed)
    done = CliRunner().invoke(parl, ["plot", str(tmp_path / "<group>"), "-o", str(tmp_path / "c.HTML")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "c.HTML").read_text()
    assert "plotly.js v" in page  # inside, so that the page needs no network
    assert '"name":"seed-1"' in page.replace(" ", "")
    assert "[1.25,2.5]" in page.replace(" ", "")


def test_runs_without_a_return_are_no_part_of_the_mean_and_null_in_json(tmp_path: Path) -> None:
    log(tmp_path / "group" / "seed-0", [4.0])
    early = log(tmp_path / "group" / "seed-1", [1.0], seed=1)
    (early / "metrics.jsonl").write_text('{"event": "end", "step": 50, "seconds": 1.0, "reason": "done"}\n')
    log(tmp_path / "none" / "seed-0", [1.0])
    (tmp_path / "none" / "seed-0" / "metrics.jsonl").write_text("")
    (tmp_path / "none" / "seed-1").mkdir()
    (tmp_path / "none" / "seed-1" / "metrics.jsonl").write_text("")
    found = Comparison.read([tmp_path / "group", tmp_path / "none"])
    assert "group: interquartile mean of 1 runs 4.00" in found.table()
    assert "none: no run has an evaluation or a finished episode" in found.table()
    rows = json.loads(json.dumps(found.rows(), allow_nan=False))
    assert [row["last"] for row in rows] == [4.0, None, None, None]
    assert [row["returns_of"] for row in rows] == ["evaluations", None, None, None]
    draw_comparison(found, tmp_path / "curves.png")


def test_a_picture_of_an_unknown_format_is_refused_in_one_line(tmp_path: Path) -> None:
    log(tmp_path / "a", [1.0])
    result = CliRunner().invoke(parl, ["plot", str(tmp_path / "a"), "-o", str(tmp_path / "curves.xyz")])
    assert result.exit_code == 1
    assert "its name must end in .png, .svg or .pdf, or .html" in result.output


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(parl, ["plot", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path} has no metrics.jsonl" in done.output


def test_runs_in_a_folder_are_listed(tmp_path: Path) -> None:
    log(tmp_path / "a", [1.0, 2.0])
    (tmp_path / "other").mkdir()
    done = CliRunner().invoke(parl, ["list", "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "a " in done.output
    assert "other" not in done.output


class Heard(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.evaluations: list[float] = []
        self.reason = ""

    def on_update(self, update: Update) -> None:
        self.steps.append(update.step)
        self.returns += [episode.episode_return for episode in update.episodes]

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation.mean)

    def on_end(self, ended: Ended) -> None:
        self.reason = ended.reason


def test_runs_that_are_written_elsewhere_are_followed_together(tmp_path: Path) -> None:
    heard = Heard()
    folders = [tmp_path / "a", tmp_path / "b"]
    followed = FollowedRuns(folders, 1_000, [heard])
    followed.look()
    assert not heard.steps
    log(folders[0], [1.0, 2.0])
    followed.look()
    log(folders[1], [3.0])
    with (folders[1] / "metrics.jsonl").open("a") as file:
        file.write('{"event": "upd')
    followed.look()
    followed.look()
    followed.end("all")
    assert heard.steps == [200, 300]
    assert heard.evaluations == [1.0, 2.0, 3.0]
    assert heard.returns == [0.0, 1.0, 2.0]
    assert heard.reason == "all"


@pytest.mark.parametrize("kept", [1, 2])
def test_a_log_that_a_resumed_run_has_cut_is_followed_from_there(kept: int, tmp_path: Path) -> None:
    heard = Heard()
    path = log(tmp_path / "a", [1.0, 2.0]) / "metrics.jsonl"
    followed = FollowedRuns([tmp_path / "a"], 1_000, [heard])
    followed.look()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 2 * kept]))
    if kept == 1:
        followed.look()
    again = [{"event": "evaluation", "step": 100 * n, "seconds": 1.0, "evaluation/return": float(n)} for n in (2, 3, 4)]
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in again)
    followed.look()
    assert heard.evaluations == [1.0, 2.0, 3.0, 4.0]
    assert heard.steps[-1] == 400


def test_a_folder_of_seeds_says_which(tmp_path: Path) -> None:
    assert seeds_of(tmp_path) == []
    (tmp_path / "seeds.json").write_text("[3, 4]")
    assert seeds_of(tmp_path) == [3, 4]
