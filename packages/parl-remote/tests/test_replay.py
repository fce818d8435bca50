"""Recording an actor's calls, and `xparl replay`: the same calls again, in a process of one's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from parl_remote._actor.journal import Journal, Replay
from parl_remote.errors import RemoteError

MODULE = """
import asyncio, os, random, sys, time
import numpy as np
import parl_remote as parl

class Plain:
    def __init__(self, start):
        self.total = start
        self.made_with = random.random()
        self.north = self.east = self.south = self.west = start  # names, which a set has in any order

    def add(self, array):
        self.total += float(array.sum())
        return self.total

    def draw(self):
        return random.random(), float(np.random.rand())

    def fail(self, text):
        raise ValueError(text)

    def host(self):
        return os.environ.get("WHERE", "")

    def leave(self):
        sys.exit(0)

    def die(self):
        os._exit(3)

class Many:
    async def twice(self, number):
        await asyncio.sleep(0)
        return 2 * number

class Streams:
    def __init__(self):
        self.at = 0

    def count(self, number, pause=0.0):
        for self.at in range(number):
            time.sleep(pause)
            yield self.at
        return "end"

    def ask(self):
        answer = yield "first"
        yield [answer]
        raise KeyError("on purpose")

    def where(self):
        return self.at

class Holder:
    def __init__(self, weights):
        self.weights = weights

    def total(self, factor):
        return float(self.weights.sum()) * factor

    def mean(self, weights):
        return float(weights.mean())

    def inner(self, given):
        return float(given["weights"].get().mean())

class Both:
    async def count(self, number):
        for n in range(number):
            await asyncio.sleep(0)
            yield n

    async def never(self, begun):
        with open(begun, "w"):
            pass
        await asyncio.Event().wait()
"""

PROGRAM = """
import multiprocessing
import os
import sys
import numpy as np
import parl_remote as parl
from work import Both, Holder, Many, Plain, Streams

multiprocessing.current_process().authkey = b"the key of this program"
parl.connect(cpu_num=6)
Worker = parl.remote_class(Plain)
worker = Worker.options(record="journals")(10)
for number in range(3):
    worker.add(np.full(5, number, np.float32))
worker.add(np.ones(500_000))
worker.draw()
print(worker.total)
worker.total = 7
try:
    worker.fail("on purpose")
except ValueError:
    pass
try:
    worker.leave()
except SystemExit:
    pass
worker.host()
try:
    worker.die()
except parl.ActorLost:
    pass
many = parl.remote_class(Many).options(record="journals")()
futures = [parl.submit(many.twice, number) for number in range(4)]
print([future.result() for future in futures])
streams = parl.remote_class(Streams).options(record="journals")()
assert list(streams.count(40)) == list(range(40))
assert list(streams.count(12, 0.002)) == list(range(12))
with streams.count(1000) as counted:
    next(counted)
asked = streams.ask()
assert (next(asked), asked.send(2)) == ("first", [2])
try:
    next(asked)
except KeyError:
    pass
streams.where()
weights = parl.put(np.ones(500_000))
holder = parl.remote_class(Holder).options(record="journals")(weights)
assert (holder.total(2), holder.mean(weights)) == (1e6, 1.0)
assert holder.inner({"weights": parl.put(np.full(20_000, 3.0))}) == 3.0
both = parl.remote_class(Both).options(record="journals")()
assert list(both.count(40)) == list(range(40))
os.mkfifo("begun")
never = parl.submit(both.never, "begun")
with open("begun") as begun:
    begun.read()
never.cancel()
assert list(both.count(3)) == list(range(3))
quiet = Worker(1)
quiet.add(np.ones(1))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program that has recorded two actors."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "work.py").write_text(textwrap.dedent(MODULE))
    (folder / "program.py").write_text(PROGRAM)
    done = run(folder, "program.py", WHERE="there")
    assert done.stdout == "500025.0\n[0, 2, 4, 6]\n", done.stdout + done.stderr
    return folder


def run(folder: Path, *arguments: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **variables},
        input=given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def replay(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "parl_remote.cli", "replay", *arguments, given=given, WHERE="there")


@pytest.mark.slow
def test_only_what_is_wanted_is_recorded_down_to_the_call_that_ended_the_process(home: Path) -> None:
    assert sorted(path.stem.split("-")[0] for path in (home / "journals").glob("*.journal")) == [
        "Both",
        "Holder",
        "Many",
        "Plain",
        "Streams",
    ]
    done = replay(home, "Plain", "--list", "--json")
    calls = [json.loads(line) for line in done.stdout.splitlines()]
    assert [call["name"] for call in calls[:6]] == ["__init__", "add", "add", "add", "add", "draw"]
    assert calls[-1]["name"] == "die"
    assert not calls[-1]["ended"]
    assert [call["error"] for call in calls if call["error"]] == ["ValueError", "SystemExit"]
    assert calls[4]["bytes"] > 4_000_000


def test_a_replay_has_the_same_outcomes_with_the_same_random_numbers(home: Path) -> None:
    done = replay(home, "Plain", "--call", "10", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["number"] for row in rows] == list(range(11))
    assert not [row for row in rows if row["differs"]], done.stderr
    assert done.returncode == 0
    (journal,) = (home / "journals").glob("Plain*.journal")
    assert b"the key of this program" not in journal.read_bytes()


def test_the_call_that_ended_the_process_is_named_before_it_ends_the_replay(home: Path) -> None:
    done = replay(home, "Plain")
    assert done.returncode == 3
    assert "die never ended: running it again" in done.stderr


@pytest.mark.slow
def test_what_differs_is_shown_and_is_the_exit_status(home: Path) -> None:
    calls = [json.loads(line) for line in replay(home, "Plain", "--list", "--json").stdout.splitlines()]
    number = next(str(call["number"]) for call in calls if call["name"] == "host")
    done = run(home, "-m", "parl_remote.cli", "replay", "Plain", "--call", number, WHERE="here")
    assert done.returncode == 1
    assert "host returned" in done.stdout
    assert "returned 'here', there it returned" in done.stdout


def test_coroutines_are_carried_out_again(home: Path) -> None:
    done = replay(home, "Many")
    assert (done.stdout, done.returncode) == ("5 calls of Many: as recorded\n", 0), done.stderr


def test_generators_are_read_again_as_they_were(home: Path) -> None:
    done = replay(home, "Streams")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"\d+ calls of Streams: as recorded\n", done.stdout)


def test_stored_values_are_in_the_journal_once(home: Path) -> None:
    done = replay(home, "Holder")
    assert (done.stdout, done.returncode) == ("4 calls of Holder: as recorded\n", 0), done.stderr
    (journal,) = (home / "journals").glob("Holder-*.journal")
    assert 4_160_000 < journal.stat().st_size < 4_200_000


def test_a_coroutine_that_was_cancelled_is_not_run_again(home: Path) -> None:
    done = replay(home, "Both")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"\d+ calls of Both: as recorded\n", done.stdout)
    assert re.fullmatch(r"#\d+ never was cancelled, .* ms: not run again\n", done.stderr)


@pytest.mark.slow
def test_a_debugger_begins_in_the_method(home: Path) -> None:
    done = replay(home, "Plain", "--call", "2", "--pdb", given="p float(array.sum())\nc\n")
    assert "work.py" in done.stdout
    assert "(Pdb) 5.0" in done.stdout
    post = replay(home, "Plain", "--pdb", given="p text\nq\n")
    assert "'on purpose'" in post.stdout
    assert "ValueError: on purpose" in post.stderr


@pytest.mark.slow
def test_a_journal_is_found_by_its_class_its_id_or_not_at_all(home: Path) -> None:
    (path,) = (home / "journals").glob("Plain-*.journal")
    for name in (str(path), path.stem.split("-")[1]):
        assert replay(home, name, "--list").stdout.startswith("#0 __init__ returned")
    assert "there is no journal 'Nobody'" in replay(home, "Nobody").stderr
    assert "not a journal of an actor" in replay(home, "work.py").stderr


def test_a_journal_that_was_cut_off_has_the_calls_before(home: Path, tmp_path: Path) -> None:
    (path,) = (home / "journals").glob("Plain-*.journal")
    whole = Journal.read(path)
    cut = tmp_path / "cut.journal"
    cut.write_bytes(path.read_bytes()[:3_000_000])
    entries = Journal.read(cut).entries
    assert [entry.name for entry in entries] == [entry.name for entry in whole.entries[:4]]
    cut.write_text("{}\n")
    with pytest.raises(RemoteError, match="is not a journal"):
        Journal.read(cut)
    assert Replay.__doc__


def test_what_is_whole_of_a_journal_that_was_cut_off_is_replayed_up_to_where_it_ends(home: Path) -> None:
    (path,) = (home / "journals").glob("Many-*.journal")
    data = path.read_bytes()
    whole = Journal.read(path)
    assert (whole.whole_bytes, whole.damaged_bytes) == (len(data), 0)
    cut = home / "cut.journal"
    for size in range(data.index(b"\n") + 1, len(data), 11):
        cut.write_bytes(data[:size])
        found = Journal.read(cut)
        assert found.whole_bytes + found.damaged_bytes == size
        assert [entry.name for entry in found.entries] == [entry.name for entry in whole.entries[: len(found.entries)]]
    cut.write_bytes(data[:-5])
    done = replay(home, str(cut), "--call", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"cut.journal can be read to byte \d+ \(5 calls\); the remaining \d+ bytes were not", done.stderr)
    assert "4 calls of Many: as recorded" in done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"frames"', b'"flames"'),
        (b'"frames": [', b'"frames": 1['),
        (b'"frames": [', b'"frames": [9999999999999999999999, '),
        (b'"name"', b'"nbme"'),
    ],
)
def test_a_journal_that_was_changed_has_the_calls_before(home: Path, tmp_path: Path, old: bytes, new: bytes) -> None:
    (path,) = (home / "journals").glob("Many-*.journal")
    data = path.read_bytes()
    whole = Journal.read(path)
    at = data.rindex(old)
    changed = tmp_path / "changed.journal"
    changed.write_bytes(data[:at] + data[at:].replace(old, new, 1))
    found = Journal.read(changed)
    assert found.damaged_bytes > 0
    assert [entry.name for entry in found.entries] == [entry.name for entry in whole.entries[: len(found.entries)]]
