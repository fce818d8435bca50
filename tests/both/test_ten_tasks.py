"""The commands of docs/explanation/ten-tasks.md run, with fewer steps than the page shows."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from parl_core.cli._commands import parl as command

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "ten-tasks.md"
SMALLER = {"--seeds 5": "--seeds 2", "--stop-after 10000": "--stop-after 1000", "--trials 20": "--trials 2"}
SMALLER |= {"--actors 8": "--actors 2", "--episodes 100": "--episodes 3"}


def commands() -> list[str]:
    """Return the command lines of the page, in order, with smaller numbers."""
    lines = re.findall(r"^\$ parl (.*)$", PAGE.read_text(), re.MULTILINE)
    for shown, smaller in SMALLER.items():
        assert sum(shown in line for line in lines) == 1, shown
        lines = [line.replace(shown, smaller) for line in lines]
    return lines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    for line in commands():
        arguments = shlex.split(line)
        if find_spec("plotly") is None:  # which pages need, and pictures do not
            arguments = [one.replace(".html", ".png") for one in arguments]
        if arguments[0] in ("train", "tune"):
            arguments += ["--steps", "2000" if arguments[1] == "a2c" else "600"]
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output[-2000:]}{result.exception!r}"
    assert any(Path().glob("curves.*"))
    assert Path("runs/ppo/agent.policy").stat().st_size > 1000
    assert Path("runs/search/best.toml").exists()


def test_the_page_counts_its_own_commands() -> None:
    rows = re.findall(r"^\| (\d+)\. [^|]*\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    assert sum(int(count) for _, count in rows) == len(commands())
