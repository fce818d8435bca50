"""Every example runs as a user starts it: from another folder, piped, on the backend of this environment.

An example is a program below `examples/` whose settings have `smoke` and `runs`; one without `backend` needs no
framework. Nothing here knows what one learns.
"""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from parl_core import backends

EXAMPLES = Path(__file__).parents[2] / "examples"
BACKEND = backends.current().name

# A new folder is found all the same; one of these that is gone is missed.
EXPECTED = {
    "a2c",
    "alphazero",
    "coma",
    "cql",
    "ddpg",
    "dqn",
    "es",
    "ga3c",
    "impala",
    "maddpg",
    "mappo",
    "offline_q",
    "population",
    "ppo",
    "prosthetics",
    "qmix",
    "sac",
    "self_play",
    "td3",
}

# Their own tests run them, and more of them.
TESTED_ELSEWHERE = {"paddle-static", "quickstart"}

A_SETTING = re.compile(r"^    (\w+): Annotated\[", re.MULTILINE)
A_SAVED_FILE = re.compile(r"^  (\S.*?): \S", re.MULTILINE)

# Far more than any of them takes; a busy machine is slow.
SECONDS_TO_RUN = 400
SECONDS_TO_END = 60.0


def settings_of(program: Path) -> set[str]:
    return set(A_SETTING.findall(program.read_text(encoding="utf-8")))


PROGRAMS = sorted(
    path
    for path in EXAMPLES.rglob("*.py")
    if settings_of(path) >= {"smoke", "runs"} and path.relative_to(EXAMPLES).parts[0] not in TESTED_ELSEWHERE
)
NAMES = [str(path.relative_to(EXAMPLES)) for path in PROGRAMS]


def start(program: Path, *arguments: str, folder: Path, mark: str) -> "subprocess.Popen[str]":
    """Start an example; `mark` is in the environment of its process and of all that it starts."""
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PARL_TEST_MARK": mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("PARL_TEST_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue  # of another user, or ended by now
    return found


@contextmanager
def example(program: Path, *arguments: str, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A running example and its mark; whatever of it is left is killed."""
    mark = uuid.uuid4().hex
    running = start(program, *arguments, folder=folder, mark=mark)
    try:
        yield running, mark
    finally:
        for process in processes_marked(mark):
            process.kill()
        running.communicate()


def left_behind(mark: str) -> list[psutil.Process]:
    return psutil.wait_procs(processes_marked(mark), timeout=SECONDS_TO_END)[1]


def saved_files(output: str) -> list[str]:
    """The files that the last inventory in the output lists."""
    *_, listed = output.rpartition("Saved:\n")
    return A_SAVED_FILE.findall(listed)


def test_no_example_is_missing() -> None:
    assert {path.relative_to(EXAMPLES).parts[0] for path in PROGRAMS} >= EXPECTED


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_TO_RUN + SECONDS_TO_END + 10)
@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_smoke_run_ends_well_with_its_files_and_leaves_no_process(program: Path, tmp_path: Path) -> None:
    backend = ["--backend", BACKEND] if "backend" in settings_of(program) else []
    with example(program, "--smoke", *backend, folder=tmp_path) as (running, mark):
        output, _ = running.communicate(timeout=SECONDS_TO_RUN)
        assert running.returncode == 0, output
        assert left_behind(mark) == []
    assert "Traceback" not in output
    files = saved_files(output)
    assert any(name.endswith(".png") for name in files), output
    for name in files:
        path = tmp_path / name
        assert path.exists(), f"{name} was promised:\n{output}"
        assert path.is_dir() or path.stat().st_size > 0, f"{name} is empty"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_help_names_every_setting(program: Path, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, str(program), "--help"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    for name in settings_of(program):
        assert re.search(rf"--(no-)?{name.replace('_', '-')}\b", shown), name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_readme_beside_it_has_its_command(program: Path) -> None:
    readme = (program.parent / "README.md").read_text(encoding="utf-8")
    assert f"python {program.relative_to(EXAMPLES.parent)}" in readme
