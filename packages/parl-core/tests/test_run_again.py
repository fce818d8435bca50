"""A program that runs itself again in a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from parl_core.training import run_again

if "--again" in sys.argv:
    print(os.getpid(), *sys.argv[1:])
    sys.exit(int("fail" in sys.argv))
print(os.getpid(), run_again("--again"), end="")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize("start", [["program.py"], ["-m", "program"], ["-m", "package"]])
def test_it_has_the_same_arguments_and_more_and_is_another_process(start: list[str], folder: Path) -> None:
    command = [sys.executable, *start, "--seed", "3"]
    shown = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()
    assert shown[0] != shown[1]
    assert shown[2:] == ["--seed", "3", "--again"]


def test_its_failure_is_an_error(folder: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "program.py", "fail"], cwd=folder, check=False, capture_output=True, text=True
    )
    assert finished.returncode == 1
    assert "CalledProcessError" in finished.stderr
