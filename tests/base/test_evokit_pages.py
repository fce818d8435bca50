"""The specifications of log, directories and command say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from parl_evokit import ESAgent, LogWriter, mlp, read_log
from parl_evokit.cli import main
from parl_evokit.log.frames import frame
from parl_evokit.log.header import Header
from parl_evokit.records import Record, SamplingInfo

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "evokit"


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def test_the_frames_on_the_page_are_those_that_are_written_and_read(tmp_path: Path) -> None:
    lines = re.findall(r"^e5 4b [0-9a-f ]+$", page("log.md"), re.MULTILINE)
    header = frame(Header("00112233445566778899aabbccddeeff", 0x12345678, "h", 1, 2).encode())
    record = frame(Record(SamplingInfo([5, 6], 3), 1.5).encode())
    assert [bytes.fromhex(line) for line in lines] == [header, header, record]
    (tmp_path / "page.evl").write_bytes(b"".join(map(bytes.fromhex, lines)))
    contents = read_log(tmp_path)
    assert (contents.infos, contents.rewards) == ([SamplingInfo([5, 6], 3, 0x12345678)], [1.5])


def test_every_field_and_file_of_a_solver_is_on_its_page(tmp_path: Path) -> None:
    agent = ESAgent({"keys": "COUNTER"}, mlp([3, 2]))
    clone = agent.clone()
    infos = [clone.add_noise() for _ in range(3)]
    with LogWriter(tmp_path / "log") as log:
        for info in infos:
            log.sampled(info)
        for info in infos[:2]:
            log.reward(info, 1.0)
    agent.update_from_log(tmp_path / "log")
    agent.save(tmp_path / "model")
    text = page("solver_directory.md")
    for path in (tmp_path / "model").iterdir():
        assert f"| `{path.name}` |" in text
    for field in json.loads((tmp_path / "model" / "solver.json").read_text()):
        assert f"| `{field}` |" in text


def commands(group: click.Group, prefix: str = "") -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        found += commands(command, f"{name} ") if isinstance(command, click.Group) else [(prefix + name, command)]
    return found


@pytest.mark.parametrize(("name", "command"), commands(main), ids=[name for name, _ in commands(main)])
def test_every_command_and_option_is_on_its_page(name: str, command: click.Command) -> None:
    text = page("command_line.md")
    assert f"`{name}" in text
    options = [option for option in command.params if isinstance(option, click.Option)]
    for option in options:
        assert any(spelling in text for spelling in option.opts), option.opts
    assert "--json" in {spelling for option in options for spelling in option.opts}
