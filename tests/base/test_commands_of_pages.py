"""Commands in READMEs and pages exist, and have the options that the pages give them."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from parl_core.cli._commands import parl
from parl_evokit.cli import main as evokit
from parl_remote.cli import main as xparl

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, Any] = {"parl": parl, "xparl": xparl, "evokit": evokit}
# At the beginning of a line of a block, after a prompt or another command, or of a piece of code in a sentence.
_COMMAND = re.compile(r"(?:^|`|\$ |; |&& )((?:parl|xparl|evokit) [a-z][^`\n;]*)", re.MULTILINE)
_NOT_COMMANDS = ("evokit token 1", "evokit secret 1", "xparl stop, ")  # prefixes of hashes; what a command prints


def pages() -> list[Path]:
    found = [ROOT / "README.md", *ROOT.glob("packages/*/README*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted([*found, *(ROOT / "docs").rglob("*.md")])


def problem(line: str) -> str | None:
    """Return what is wrong with a command, if something is."""
    program, *words = shlex.split(line.split(" | ")[0], comments=True)
    command: Any = PROGRAMS[program]
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"there is no command {words[0]!r}"
        command, words = found, words[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - options - {"--help"}
    return f"no option {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in _COMMAND.findall(text) if not line.startswith(_NOT_COMMANDS)]
    assert {line: wrong for line in lines if (wrong := problem(line))} == {}
