"""Output of actors, and names that others chose, move no cursor and set no title of a reader's terminal."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

import parl_remote
from parl_remote._messages.overview import DeathRecord
from parl_remote._system.processes import tail
from parl_remote._system.texts import in_seconds, visible
from parl_remote.cli._show import _death_table
from parl_remote.errors import DeathCause, DeathKind
from parl_remote.testing import LoopbackCluster

Run = Callable[..., subprocess.CompletedProcess[str]]
TITLE = "\x1b]0;mine\x07"
HIDDEN = "\x1b[8m"
SHOWN = r"\x1b]0;mine\x07 and \x1b[8m \x9b2J"


@parl_remote.remote_class
class Writer:
    def write(self) -> None:
        sys.stdout.write(f"{TITLE} and {HIDDEN} \x9b2J\n")

    def end(self) -> None:
        self.write()
        sys.stdout.flush()
        os._exit(3)


def test_text_without_control_characters_stays_as_it_is() -> None:
    text = "a line\n\tanother: größer, 数字, 🙂\n"
    assert visible(text) is text or visible(text) == text


@pytest.mark.parametrize("number", [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066])
def test_every_character_that_a_terminal_may_obey_is_shown(number: int) -> None:
    shown = visible(f"a{chr(number)}b")
    assert shown == f"a{ascii(chr(number))[1:-1]}b"
    assert shown.isprintable()


def test_no_name_of_a_lost_actor_makes_a_line_of_its_own() -> None:
    names = ("A\nlease-2  B", "a\r", "c", "its.py\n")
    death = DeathRecord("lease-1", *names, "n", 0, DeathCause(DeathKind.EXIT, node="host\n"), ":1")
    assert len("\n".join(_death_table(Mock(), [death])).splitlines()) == 3, "who, why, and how many"
    orphan = dataclasses.replace(death, client_id="client-9f", owner="")
    assert " of a program that has ended on " in _death_table(Mock(), [orphan])[0]


def test_what_actors_write_is_shown_in_the_program(run_program: Run) -> None:
    done = run_program(
        program="""
import parl_remote as parl

@parl.remote_class
class Writer:
    def write(self):
        print("\\x1b]0;mine\\x07 and \\x1b[8m")

parl.connect(cpu_num=1, logs=True)
Writer().write()
parl.disconnect()
"""
    )
    assert done.stdout.endswith(r") \x1b]0;mine\x07 and \x1b[8m" + "\n"), done.stdout


def test_a_death_report_shows_the_end_of_the_log(shared_cluster: None) -> None:
    with pytest.raises(parl_remote.ActorLost) as caught:
        Writer().end()
    assert f"  | {SHOWN}" in str(caught.value)
    assert caught.value.log_tail[-1] == SHOWN


def test_the_end_of_a_log_has_no_control_characters(tmp_path: Any) -> None:
    (tmp_path / "log").write_text(f"one\n{TITLE}\ntwo")
    assert tail(tmp_path / "log", 3) == ("one", r"\x1b]0;mine\x07", "two")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopbackCluster]:
    parl_remote.disconnect()
    with LoopbackCluster(1, cpus=2, liveness_limit_s=15.0) as one:
        yield one
        parl_remote.disconnect()


@pytest.mark.slow
def test_xparl_shows_logs_and_names(cluster: LoopbackCluster) -> None:
    cluster.connect()
    writer: Any = parl_remote.with_options(Writer, name="the one")()
    writer.write()

    def xparl(*arguments: str) -> str:
        command = [sys.executable, "-m", "parl_remote.cli", *arguments, "--address", cluster.address]
        environment = {**os.environ, **cluster.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        return done.stdout + done.stderr

    assert xparl("logs", "Writer") == f"{SHOWN}\n"
    assert r"\u001b" in xparl("logs", "Writer", "--json")
    for arguments in (
        ("list",),
        ("logs", "nobody"),
        ("status",),
        ("kill", "the one", "--reason", HIDDEN),
        ("list", "deaths"),
    ):
        said = xparl(*arguments)
        assert "\x1b" not in said, arguments
        assert said


@pytest.mark.parametrize(("duration_s", "text"), [(1000.0, "1000 s"), (4.9999999, "5 s"), (0.01, "0.01 s"), (7, "7 s")])
def test_durations_in_messages_are_rounded_and_have_no_exponent(duration_s: float, text: str) -> None:
    assert in_seconds(duration_s) == text
