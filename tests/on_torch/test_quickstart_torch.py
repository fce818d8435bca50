"""The quickstart as a user runs it: a process with arguments, whose output is read and whose children are watched.

`--smoke` shortens training; the private cluster, the remote actors, the files and the fresh process are the real thing.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"

# How soon after Ctrl-C the program has ended.
SECONDS_TO_END = 60.0


class Program:
    """A running example, and every process that it was seen to have started."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,  # a process group of its own, as a shell gives a foreground job
        )
        self.output = ""
        self.children: set[psutil.Process] = set()

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            self.look_for_children()
            if text in line:
                return
        raise AssertionError(f"the program ended without {text!r}:\n{self.output}")

    def read_to_end(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            self.look_for_children()
        self.process.wait()

    def look_for_children(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.children.update(psutil.Process(self.process.pid).children(recursive=True))

    def left_behind(self) -> list[psutil.Process]:
        """Processes of this program that are still there, `SECONDS_TO_END` after they should have ended."""
        deadline = time.monotonic() + SECONDS_TO_END
        while (left := [child for child in self.children if is_running(child)]) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.05)  # no longer: init may be slow to collect one that has ended
        return left


def is_running(process: psutil.Process) -> bool:
    """False for a process that has ended and that init has not collected yet, too."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def program(*arguments: str) -> Iterator[Program]:
    running = Program(*arguments)
    try:
        yield running
    finally:
        running.look_for_children()
        running.process.kill()
        running.process.communicate()
        for child in running.children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def run_folder(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


@dataclass
class SmokeRun:
    """A finished run of `--smoke` with so many actors."""

    actors: int
    output: str
    returncode: int
    children: int
    left_behind: list[psutil.Process]
    folder: Path


@pytest.fixture(scope="module", params=[0, 1, 2])
def smoke_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmokeRun:
    actors, runs = int(request.param), tmp_path_factory.mktemp("quickstart") / "runs"
    arguments = ["--smoke", "--episodes", "5", "--runs", str(runs), "--actors", str(actors)]
    with program(str(EXAMPLE / "train.py"), *arguments) as running:
        running.read_to_end()
        code, left = running.process.returncode, running.left_behind()
        return SmokeRun(actors, running.output, code, len(running.children), left, run_folder(runs))


@pytest.mark.slow
def test_a_smoke_run_saves_an_agent_that_a_fresh_process_evaluates_to_the_same_return(smoke_run: SmokeRun) -> None:
    assert smoke_run.returncode == 0, smoke_run.output
    evaluated = re.search(r"Mean return of 5 evaluation episodes: ([\d.]+)", smoke_run.output)
    restored = re.search(r"Restored in a fresh process: ([\d.]+) \(the same\)", smoke_run.output)
    assert evaluated, smoke_run.output
    assert restored, smoke_run.output
    assert evaluated[1] == restored[1]
    for name in ("agent.ckpt", "best.ckpt", "learning-curve.png", "updates.csv", "evaluations.csv"):
        assert (smoke_run.folder / name).stat().st_size > 0
    assert list((smoke_run.folder / "tensorboard").iterdir())
    for told in ("agent.ckpt", "learning-curve.png", "tensorboard"):
        assert str(smoke_run.folder / told) in smoke_run.output


@pytest.mark.slow
def test_a_smoke_run_has_a_process_an_actor_and_leaves_none_behind(smoke_run: SmokeRun) -> None:
    assert smoke_run.children >= smoke_run.actors
    assert smoke_run.left_behind == []


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_actors(smoke_run: SmokeRun, first_table: list[list[str]]) -> None:
    table = figures_of(smoke_run)
    assert len(table) == 17
    if not first_table:
        first_table.extend(table)
    assert table == first_table


@pytest.fixture(scope="module")
def first_table() -> list[list[str]]:
    """The table of whichever run comes first; the others have to be equal to it."""
    return []


def figures_of(run: SmokeRun) -> list[list[str]]:
    """The table of updates without the columns that tell the time."""
    rows = [row.split(",") for row in (run.folder / "updates.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if name not in ("seconds", "speed/steps_per_second")]
    return [[row[i] for i in kept] for row in rows]


def while_importing_torch(running: Program) -> None:
    maps = Path(f"/proc/{running.process.pid}/maps")
    while "libtorch" not in maps.read_text():
        assert running.process.poll() is None, "ended before it imported torch"


def at_the_first_update(running: Program) -> None:
    running.read_until("step 256/")


def after_the_first_evaluation(running: Program) -> None:
    running.read_until("evaluated")


def while_the_fresh_process_runs(running: Program) -> None:
    running.read_until("Mean return of")


def to_the_program_alone(running: Program) -> None:
    os.kill(running.process.pid, signal.SIGINT)


def to_the_whole_group(running: Program) -> None:
    os.killpg(running.process.pid, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("send", [to_the_program_alone, to_the_whole_group])
@pytest.mark.parametrize(
    ("moment", "saved"),
    [
        (while_importing_torch, []),
        (at_the_first_update, ["updates.csv"]),
        (after_the_first_evaluation, ["best.ckpt", "updates.csv"]),
        (while_the_fresh_process_runs, ["best.ckpt", "agent.ckpt", "learning-curve.png"]),
    ],
)
def test_ctrl_c_ends_it_soon_says_what_was_saved_and_leaves_no_process(
    moment: Callable[[Program], None], saved: list[str], send: Callable[[Program], None], tmp_path: Path
) -> None:
    with program(str(EXAMPLE / "train.py"), "--smoke", "--runs", str(tmp_path / "runs")) as running:
        moment(running)
        running.look_for_children()
        send(running)
        running.read_to_end()
        assert running.process.returncode == 130, running.output
        assert "Traceback" not in running.output
        assert running.left_behind() == []
        message = running.output.split("Interrupted.")[1]
        assert ("Nothing was saved yet." in message) == (not saved)
        for name in saved:
            assert str(run_folder(tmp_path / "runs") / name) in message
            assert (run_folder(tmp_path / "runs") / name).exists()


def test_help_shows_every_setting() -> None:
    for example in ("train.py", "reinforce.py"):
        shown = subprocess.run(
            [sys.executable, str(EXAMPLE / example), "--help"], check=True, capture_output=True, text=True
        ).stdout
        for setting in ("--seed", "--backend", "--episodes"):
            assert setting in shown


@pytest.mark.slow
def test_the_manuals_quickstart_logs_every_tenth_episode_and_tests_every_hundredth() -> None:
    finished = subprocess.run(
        [sys.executable, str(EXAMPLE / "reinforce.py"), "--episodes", "100"], check=True, capture_output=True, text=True
    )
    output = finished.stdout + finished.stderr
    assert len(re.findall(r"Episode \d+0?, Reward Sum [\d.]+\.", output)) == 10
    assert len(re.findall(r"Test reward: [\d.]+", output)) == 1
    assert "Mean return of 100 evaluation episodes" in output


@pytest.mark.slow
def test_the_command_trains_what_it_then_evaluates(tmp_path: Path) -> None:
    def parl(*arguments: str) -> str:
        command = [sys.executable, "-m", "parl_core.cli", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    folder = parl("train", "ppo", "CartPole-v1", "--steps", "2048", "--actors", "1", "--runs", str(tmp_path)).strip()
    shown = parl("evaluate", folder, "--episodes", "3")
    assert re.fullmatch(r"CartPole-v1: mean return [\d.]+, deviation [\d.]+, 3 episodes\n", shown)
    assert "PPO" in parl("list")


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1"])
def test_the_command_trains_where_observations_are_not_boxes(env_id: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parl_core.cli", "train", "ppo", env_id, "--steps", "8", "--runs", str(tmp_path)]
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.startswith(str(tmp_path))
