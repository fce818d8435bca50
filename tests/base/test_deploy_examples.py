"""The files of examples/deploy: their `xparl` lines are ones that xparl takes, and their own linters are content."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from parl_remote.cli import main

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
FILES = {
    path.relative_to(DEPLOY).as_posix(): path.read_text()
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and path.suffix != ".py" and path.name != "requirements.txt"
}
_LIST = re.compile(r"\[\s*\"?(?:xparl\"?,\s*\"?)?((?:start|connect|status|stop|key)\b[^\]]*)\]")
_LINE = re.compile(r"\bxparl ((?:start|connect|status|stop|key)\b(?:(?! 2>)[^`#|&;)<>\n\\])*)")
_VARIABLE = re.compile(r"\$\$?(?:\{[^}]*\}|\([^)]*\)|\w+)")
_QUOTES = re.compile(r"[\"'.,]+(?=\s|$)|[\"']")
_VALUES = {"port": "8037", "CPUS": "2", "SLURM_CPUS_PER_TASK": "2"}


def _value(match: re.Match[str]) -> str:
    return _VALUES.get(re.sub(r"\W", "", match.group()), "head:8037")


def _commands(text: str) -> list[list[str]]:
    lists = [[part.strip().strip("\"'") for part in found.split(",")] for found in _LIST.findall(text)]
    text = text.replace('exec xparl "$@" --cpu_num', "xparl start --port 8037 --cpu_num")  # of the batch script
    lines = [_QUOTES.sub("", _VARIABLE.sub(_value, found)).split() for found in _LINE.findall(text)]
    return [[_VARIABLE.sub(_value, part) for part in command] for command in (*lists, *lines)]


COMMANDS = [(name, command) for name, text in FILES.items() for command in _commands(text)]


def test_every_way_of_deploying_starts_something() -> None:
    starting = {name.partition("/")[0] for name, command in COMMANDS if command[0] in {"start", "connect"}}
    assert starting >= {"slurm", "systemd", "docker", "kubernetes"}


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_xparl_takes_the_command(name: str, command: list[str]) -> None:
    assert name in FILES
    if len(command) == 1 and command[0] in {"start", "connect"}:
        return  # a sentence about the command
    with click.Context(main) as context:
        _, found, rest = main.resolve_command(context, command)
        assert found is not None
        found.make_context(command[0], rest, parent=context)


def test_the_program_runs() -> None:
    run = subprocess.run(
        [sys.executable, DEPLOY / "program.py", "--games", "200"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "(expected: 36)" in run.stdout


LINTERS = [
    (["shellcheck"], "slurm/parl.sbatch"),
    (["hadolint"], "docker/Dockerfile"),
    (["kubernetes-validate", "--strict"], "kubernetes/parl.yaml"),
]


@pytest.mark.parametrize(("linter", "name"), LINTERS, ids=[linter[0] for linter, _ in LINTERS])
def test_a_file_passes_its_own_linter(linter: list[str], name: str) -> None:
    if shutil.which(linter[0]) is None:
        pytest.skip(f"{linter[0]} is not installed")
    run = subprocess.run([*linter, DEPLOY / name], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
