"""Output of actors: books of logs, pieces of text, and lines shown by the program that made them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from faults.ports import unused_port
from parl_remote._links.handshake import Link
from parl_remote._links.identity import host_id
from parl_remote._links.loop import Loop
from parl_remote._messages import Hello, LeaseAssigned, Message, Role
from parl_remote._messages.parts import ActorOutputs, FollowActors, LogText, ReadLog
from parl_remote._messages.wire import decode
from parl_remote._resources import Resources
from parl_remote._system.processes import read_marks, write_marks
from parl_remote._worker.logs import ActorLogs, LogEntry, WorkerLogs, bytes_in, last_lines, next_lines, whole_characters
from parl_remote.errors import RemoteProtocolError


def hello(client_id: str = "client-1", pid: int = 1) -> Hello:
    return Hello(Role.CLIENT, Role.WORKER, client_id, 1, 1, host_id(), pid)


def lease(lease_id: str, client_id: str = "client-1", name: str = "") -> LeaseAssigned:
    return LeaseAssigned(lease_id, client_id, Resources(cpu=1), "Trainer", name)


@pytest.fixture
def book() -> Iterator[ActorLogs]:
    loop = Loop()
    yield ActorLogs(loop)
    loop.close()


@pytest.fixture
def entry(tmp_path: Path, book: ActorLogs) -> LogEntry:
    path = tmp_path / "actor-1.log"
    path.touch()
    book.began(lease("lease-1"), hello(), 4711, path, 0)
    found = book.find("lease-1")
    assert found is not None
    return found


def write(entry: LogEntry, data: bytes) -> None:
    with open(entry.path, "ab") as file:
        file.write(data)


def everything(entry: LogEntry) -> bytes:
    at, parts = entry.start, []
    while data := entry.read(at, 7)[1]:
        parts.append(data)
        at += len(data)
    return b"".join(parts)


# -- the logs ---------------------------------------------------------------------------------------------------------


def test_what_was_in_a_file_before_is_not_the_actors(tmp_path: Path, book: ActorLogs) -> None:
    path = tmp_path / "actor-1.log"
    path.write_bytes(b"of another run\n")
    book.began(lease("lease-1"), hello(), 1, path, bytes_in(path))
    entry = book.find("lease-1")
    assert entry is not None
    assert (entry.start, entry.size(), everything(entry)) == (0, 0, b"")
    write(entry, b"mine\n")
    assert (entry.size(), everything(entry)) == (5, b"mine\n")


def test_a_log_that_is_cut_keeps_its_end_and_its_positions(entry: LogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._worker.logs._KEPT_WHEN_CUT", 10)
    write(entry, b"0123456789abcdefghij")
    entry.cut()
    assert (entry.start, entry.size()) == (10, 20)
    write(entry, b"KLM")
    assert entry.read(12, 5) == (12, b"cdefg")
    assert entry.read(18, 100) == (18, b"ij")
    assert entry.read(20, 100) == (20, b"KLM")
    assert entry.read(0, 3) == (10, b"abc")
    assert everything(entry) == b"abcdefghijKLM"
    assert entry.path.stat().st_size == 3
    entry.cut()
    assert everything(entry) == b"KLM"
    assert entry.before_path.stat().st_mode & 0o077 == 0


def test_a_log_that_grows_too_long_is_cut_while_its_actor_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._worker.logs._LONGEST", 1000)
    monkeypatch.setattr("parl_remote._worker.logs._KEPT_WHEN_CUT", 100)
    now = 0.0
    loop = Loop(lambda: now)
    book = ActorLogs(loop)
    path = tmp_path / "actor-1.log"
    path.write_bytes(bytes(5000))
    book.began(lease("lease-1"), hello(), 1, path, 0)
    now = 2.5
    loop.run_once(0.0)
    assert path.stat().st_size == 0
    entry = book.find("lease-1")
    assert entry is not None
    assert (entry.start, entry.size()) == (4900, 5000)
    loop.close()


def test_marks_of_stderr_move_with_what_is_cut(entry: LogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._worker.logs._KEPT_WHEN_CUT", 10)
    write(entry, b"aaEEaaaaaaaaaaaaEEaa")
    write_marks(entry.path, [(2, 4), (16, 18)])
    assert entry.errors(0, 20) == [(2, 4), (16, 18)]
    assert entry.errors(3, 17) == [(3, 4), (16, 17)]
    entry.cut()
    write(entry, b"EEbb")
    write_marks(entry.path, [(0, 2)])
    assert entry.errors(0, 24) == [(16, 18), (20, 22)]
    assert entry.errors(20, 24) == [(20, 22)]
    entry.delete()
    assert list(entry.path.parent.iterdir()) == []


def test_marks_are_found_in_the_middle_of_many(tmp_path: Path) -> None:
    log = tmp_path / "actor-1.log"
    write_marks(log, [(10 * number, 10 * number + 4) for number in range(5000)])
    for at in (0, 4, 9, 24_995, 49_990):
        expected = [
            (max(at, 10 * number), min(at + 30, 10 * number + 4))
            for number in range(5000)
            if 10 * number + 4 > at and 10 * number < at + 30
        ]
        assert read_marks(log, at, at + 30) == expected


def test_only_so_many_logs_of_actors_that_ended_are_kept(
    tmp_path: Path, book: ActorLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parl_remote._worker.logs._KEPT_ENDED", 3)
    for number in range(5):
        path = tmp_path / f"actor-{number}.log"
        path.write_bytes(b"x\n")
        book.began(lease(f"lease-{number}"), hello(), number + 10, path, 0)
        book.ended(f"lease-{number}")
    assert [book.find(f"lease-{number}") is not None for number in range(5)] == [False, False, True, True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor-2.log", "actor-3.log", "actor-4.log"]


def test_files_in_a_directory_of_the_users_are_never_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._worker.logs._KEPT_ENDED", 0)
    loop = Loop()
    book = ActorLogs(loop, keep=True)
    path = tmp_path / "actor-1.log"
    path.write_bytes(b"x\n")
    book.began(lease("lease-1"), hello(), 10, path, 0)
    book.ended("lease-1")
    assert path.exists()
    loop.close()


def test_what_an_actor_makes_counts_as_its_makers_clients(tmp_path: Path, book: ActorLogs) -> None:
    book.began(lease("lease-1", "client-1"), hello("client-1", 1), 500, tmp_path / "1", 0)
    book.began(lease("lease-2", "client-of-actor"), hello("client-of-actor", 500), 501, tmp_path / "2", 0)
    book.began(lease("lease-3", "client-else"), hello("client-else", 77), 502, tmp_path / "3", 0)
    assert [entry.lease_id for entry in book.of_client("client-1")] == ["lease-1", "lease-2"]


# -- pieces of text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["abc", "äöü", "强化学习", "🙂🙂", ""])
def test_no_character_is_cut_in_two(text: str) -> None:
    data = text.encode()
    for end in range(len(data) + 1):
        kept = data[: whole_characters(data[:end])]
        assert kept.decode() == text[: len(kept.decode())]
        assert end - len(kept) < 4


def test_bytes_that_are_no_text_pass() -> None:
    assert whole_characters(b"\xff\xfe\x80") == 3
    assert whole_characters(b"\x80\x80\x80\x80\x80") == 5


@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_last_lines_are_those_that_tail_shows(entry: LogEntry, ending: str) -> None:
    lines = [f"line {number} " + "x" * (number % 40) for number in range(200)]
    write(entry, ("\n".join(lines) + ending).encode())
    for wanted in (1, 2, 17, 200, 500):
        expected = subprocess.run(["tail", "-n", str(wanted), entry.path], capture_output=True, check=True).stdout
        start, data = last_lines(entry, wanted, 2**20)
        assert data == expected
        assert start == entry.size() - len(data)
    assert last_lines(entry, 0, 2**20)[1] == b""


def test_a_reader_gets_every_whole_line_once_whatever_pieces_come(entry: LogEntry) -> None:
    dice = random.Random(7)
    text = b"".join(b"%d %s\n" % (number, b"y" * dice.randrange(200)) for number in range(300))
    at, got, written = 0, b"", 0
    while written < len(text):
        step = dice.randrange(1, 900)
        write(entry, text[written : written + step])
        written += step
        lines = next_lines(entry, at, 2000, 2**20)
        assert not lines.data or lines.data.endswith(b"\n")
        got, at = got + lines.data, lines.end
    while (lines := next_lines(entry, at, 2000, 2**20)).data:
        got, at = got + lines.data, lines.end
    assert got == text


def test_a_reader_too_far_behind_gets_the_latest_lines_and_the_number_of_missing_ones(entry: LogEntry) -> None:
    write(entry, b"".join(b"line %06d\n" % number for number in range(10_000)))
    lines = next_lines(entry, 0, 2**20, backlog=24_000)
    first = int(lines.data.split()[1])
    assert lines.data.startswith(b"line ")
    assert lines.dropped == first
    assert lines.end == entry.size()
    assert 900 <= 10_000 - first <= 1100


def test_the_last_line_of_an_actor_that_ended_needs_no_end(entry: LogEntry, book: ActorLogs) -> None:
    write(entry, b"whole\npart")
    assert next_lines(entry, 0, 1000, 2**20).data == b"whole\n"
    book.ended("lease-1")
    assert next_lines(entry, 0, 1000, 2**20).data == b"whole\npart"
    assert next_lines(entry, 0, 1000, 2**20).end == entry.size()


def test_a_line_without_end_is_passed_on_in_parts(entry: LogEntry) -> None:
    write(entry, b"z" * 200_000)
    lines = next_lines(entry, 0, 2**16, 2**20)
    assert lines.data == b"z" * 2**16
    assert lines.end == 2**16


# -- the worker's part ------------------------------------------------------------------------------------------------


class Asker:
    """A peer of the worker's part: what it was told, by type."""

    def __init__(self, client_id: str = "client-1") -> None:
        self.told: list[Message] = []
        self.link = Link(hello(client_id), 1, self._take, lambda: None)

    def _take(self, frames: object) -> None:
        assert isinstance(frames, list)
        self.told.append(decode(frames[0]))

    def last(self) -> Message:
        return self.told.pop()


@pytest.fixture
def part(book: ActorLogs) -> WorkerLogs:
    return WorkerLogs(book._loop, book)


def test_a_question_that_waits_is_answered_with_the_next_line(
    part: WorkerLogs, book: ActorLogs, entry: LogEntry
) -> None:
    asker = Asker()
    part.received(asker.link, ReadLog(5, "lease-1", start=0, wait_s=30.0), [])
    assert asker.told == []
    write(entry, "schön\n".encode()[:4])
    while not asker.told:
        book._loop.run_once(1.0)
    answer = asker.last()
    assert isinstance(answer, LogText)
    assert (answer.request_id, "".join(piece.text for piece in answer.pieces), answer.end) == (5, "sch", 3)


def test_what_a_client_may_not_ask_is_refused(part: WorkerLogs, entry: LogEntry) -> None:
    for message in (
        ReadLog(1, "lease-1", most_bytes=0),
        ReadLog(1, "lease-1", most_bytes=2**30),
        ReadLog(1, "lease-1", wait_s=1e9),
        FollowActors(1, wait_s=-1.0),
    ):
        with pytest.raises(RemoteProtocolError):
            part.received(Asker().link, message, [])


def test_numbers_out_of_this_world_are_answered_like_others(part: WorkerLogs, entry: LogEntry) -> None:
    write(entry, b"some\nlines\n")
    huge = 2**63 - 1  # the largest that a message can carry
    for start in (huge, -huge, 11, 12):
        for lines in (huge, -huge, 0):
            asker = Asker()
            part.received(asker.link, ReadLog(1, "lease-1", start=start, lines=lines), [])
            assert isinstance(asker.last(), LogText)
    for position in (huge, -huge):
        asker = Asker()
        part.received(asker.link, FollowActors(1, positions={"lease-1": position, "\x00": 1}), [])
        assert isinstance(asker.last(), ActorOutputs)


def test_only_so_many_may_wait_at_once(part: WorkerLogs, entry: LogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._worker.logs._MOST_READERS", 2)
    asker = Asker()
    for number in range(2):
        part.received(asker.link, ReadLog(number, "lease-1", start=0, wait_s=1.0), [])
    with pytest.raises(parl_remote.RemoteError, match="readers wait"):
        part.received(asker.link, ReadLog(2, "lease-1", start=0, wait_s=1.0), [])
    part.closed(asker.link)
    part.received(asker.link, ReadLog(3, "lease-1", start=0, wait_s=1.0), [])


def test_a_follower_receives_only_its_own_actors(part: WorkerLogs, entry: LogEntry) -> None:
    write(entry, b"mine\n")
    another, owner = Asker("client-2"), Asker("client-1")
    for asker in (another, owner):
        part.received(asker.link, FollowActors(1), [])
    heard = [asker.last() for asker in (another, owner)]
    assert [[output.lease_id for output in one.outputs] for one in heard if isinstance(one, ActorOutputs)] == [
        [],
        ["lease-1"],
    ]


def test_a_follower_receives_the_end_of_an_actor_once(part: WorkerLogs, book: ActorLogs, entry: LogEntry) -> None:
    asker = Asker()
    write(entry, b"last\n")
    book.ended("lease-1")
    outputs: list[Any] = []
    for number in range(3):
        part.received(asker.link, FollowActors(number), [])
        answer = asker.last()
        assert isinstance(answer, ActorOutputs)
        outputs += answer.outputs
    assert [(output.ended, [piece.text for piece in output.pieces]) for output in outputs] == [(True, ["last\n"])]


# -- lines in the program's own output --------------------------------------------------------------------------------


CLASS = """
import os, sys, threading, time
import parl_remote as parl

@parl.remote_class
class Talker:
    def __init__(self, name=""):
        self.name = name
    def say(self, text):
        print(text)
        return os.getpid()
    def complain(self, text):
        print(text, file=sys.stderr)
    def flood(self, lines):
        for number in range(lines):
            print("flood", number)
    def die(self):
        print("last words")
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def output(run_program: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., tuple[str, str]]:
    """Return a program's output on stdout and stderr."""

    def of(body: str, **environment: str) -> tuple[str, str]:
        done = run_program(program=CLASS + textwrap.dedent(body), env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return of


def test_lines_carry_class_and_process_and_come_in_order(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        parl.connect(cpu_num=2, logs=True)
        a, b = Talker(), Talker()
        pids = [one.say(f"{number} of {letter}") for number in range(50) for letter, one in (("a", a), ("b", b))]
        print("pids", pids[0], pids[1])
    """)
    read = re.search(r"^pids (\d+) (\d+)$", out, re.MULTILINE)
    assert read is not None
    for letter, pid in zip("ab", read.groups(), strict=True):
        lines = [line for line in (out + err).splitlines() if line.startswith(f"(Talker pid={pid}) ")]
        assert lines == [f"(Talker pid={pid}) {number} of {letter}" for number in range(50)]


def test_each_stream_goes_to_the_programs_own(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        parl.connect(cpu_num=1, logs=True)
        a = Talker()
        for number in range(20):
            a.say(f"out {number}"), a.complain(f"err {number}")
    """)
    for text, word in ((out, "out"), (err, "err")):
        assert re.findall(r"^\(Talker pid=\d+\) (.*)$", text, re.MULTILINE) == [f"{word} {n}" for n in range(20)]


def test_halves_of_lines_of_both_streams_do_not_mix(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        @parl.remote_class
        class Halves:
            def write(self):
                print("first", end=" ", flush=True)
                sys.stderr.write("odd\\n")
                print("second")
                sys.stderr.write("no end")
        parl.connect(cpu_num=1, logs=True)
        Halves().write()
    """)
    assert re.findall(r"^\(Halves pid=\d+\) (.*)$", out, re.MULTILINE) == ["first second"]
    assert re.findall(r"^\(Halves pid=\d+\) (.*)$", err, re.MULTILINE) == ["odd", "no end"]


def test_an_actor_dropped_as_the_program_ends_has_its_last_words(output: Callable[..., tuple[str, str]]) -> None:
    out, _ = output(
        """
        import atexit
        from parl_remote import _current
        from parl_remote._program import client, log_forwarding
        client._SHUTDOWN_S = log_forwarding._LAST_OUTPUT_S = 60.0  # a loaded machine takes long to end a process
        log_forwarding._LAST_WAIT_S = 10.0
        @parl.remote_class
        class Slow:
            def __init__(self):
                atexit.register(self.end)
            def end(self):
                time.sleep(0.3)
                print("no end", end="")
        parl.connect(cpu_num=1, logs=True)
        a = Slow()
        _current.client()._loop.call_soon(lambda: time.sleep(0.1))
        del a  # which the busy thread hears of only when the program has begun to end
    """,
        PARL_SHUTDOWN_GRACE="60",
    )
    assert re.findall(r"^\(Slow pid=\d+\) (.*)$", out, re.MULTILINE) == ["no end"]


def test_logging_is_configured_in_actors_and_workers_not_by_the_main_program(
    output: Callable[..., tuple[str, str]],
) -> None:
    _, err = output("""
        import logging
        def set_up():
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        class _Player:
            def play(self):
                logging.info("one episode")
                logging.getLogger("player").info("two episodes")
        @parl.remote_class
        class Silent(_Player):
            def play(self):
                logging.getLogger("silent").info("three episodes")
        @parl.remote_class
        class Player(_Player):
            def __init__(self):
                set_up()
        set_up()
        parl.connect(cpu_num=1, logs=True)
        Silent().play()
        Player().play()
        with parl.Executor(1, initializer=set_up) as executor:
            executor.submit(logging.info, "one item").result()
    """)
    shown = re.findall(r"^\((\w+) pid=\d+\) (.*)$", err, re.MULTILINE)
    expected = ("Player", "INFO one episode"), ("Player", "INFO two episodes"), ("FunctionWorker", "INFO one item")
    assert sorted(shown) == sorted(expected)


def test_output_of_c_code_and_of_other_programs_is_shown(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        import ctypes, subprocess
        @parl.remote_class
        class Native:
            def write(self):
                subprocess.run(["sh", "-c", "echo from a program; echo its stderr >&2"])
                os.write(1, b"from a descriptor\\n")
        parl.connect(cpu_num=1, logs=True)
        Native().write()
    """)
    shown = re.findall(r"^\(Native pid=\d+\) (.*)$", out + err, re.MULTILINE)
    assert sorted(shown) == ["from a descriptor", "from a program", "its stderr"]


def test_the_name_of_an_actor_is_in_its_lines(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("parl.connect(cpu_num=1, logs=True); Talker.options(name='chief')().say('hello')")
    assert re.search(r"^\(Talker chief pid=\d+\) hello$", out + err, re.MULTILINE)


def test_nothing_is_shown_and_no_thread_runs_unless_asked_for(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        parl.connect(cpu_num=1)
        Talker().say("hidden")
        print([thread.name for thread in threading.enumerate() if "logs" in thread.name])
    """)
    assert (out, err) == ("[]\n", "")


def test_the_last_lines_before_a_death_arrive(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        parl.connect(cpu_num=1, logs=True)
        try:
            Talker().die()
        except parl.ActorLost as error:
            print(error.cause.kind.name)
    """)
    assert "SIGNAL" in out
    assert re.search(r"^\(Talker pid=\d+\) last words$", out + err, re.MULTILINE)


def test_what_is_written_just_before_the_program_ends_arrives(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        parl.connect(cpu_num=1, logs=True)
        a = Talker()
        a.say("late")
    """)
    assert re.search(r"^\(Talker pid=\d+\) late$", out + err, re.MULTILINE)


@pytest.mark.slow
def test_a_flood_is_shortened_and_every_line_is_accounted_for(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output("""
        parl.connect(cpu_num=1, logs=True)
        a = Talker()
        a.flood(400_000)
        a.say("after the flood")
    """)
    shown = [int(number) for number in re.findall(r"^\(Talker pid=\d+\) flood (\d+)$", out, re.MULTILINE)]
    dropped = [int(number) for number in re.findall(r"\[(\d+) lines left out", out + err)]
    assert shown == sorted(set(shown))
    assert len(shown) + sum(dropped) == 400_000
    assert "after the flood" in out + err


@pytest.mark.slow
def test_calls_do_not_wait_for_the_reader_of_the_output(tmp_path: Path) -> None:
    program = CLASS + textwrap.dedent("""
        parl.connect(cpu_num=1, logs=True)
        a = Talker()
        for number in range(20):
            a.flood(2000)
        sys.stderr.write("done\\n")
        sys.stderr.flush()
        os._exit(0)
    """)
    (tmp_path / "program.py").write_text(program)
    reading, writing = os.pipe()  # it is not read: it is full after 64 KiB
    try:
        running = subprocess.Popen(
            [sys.executable, "program.py"], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True
        )
        assert running.communicate(timeout=240)[1].endswith("done\n")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_lines_come_from_real_clusters_too(
    output: Callable[..., tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for name in [name for name in os.environ if name.startswith(("PARL_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PARL_RUN_DIR", str(tmp_path / "run"))
    port = unused_port()
    xparl = [sys.executable, "-m", "parl_remote.cli"]
    subprocess.run([*xparl, "start", "--port", str(port), "--cpu_num", "2"], check=True, stdout=subprocess.DEVNULL)
    try:
        out, err = output(
            f"""
            parl.connect("localhost:{port}", logs=True)
            a, b = Talker(), Talker()
            a.say("one"); b.say("two")
            """,
            PARL_FORCE_TCP="1" if way == "tcp" else "0",
        )
    finally:
        subprocess.run([*xparl, "stop", "--all"], check=True, stdout=subprocess.DEVNULL)
    assert sorted(re.findall(r"^\(Talker pid=\d+\) (\w+)$", out + err, re.MULTILINE)) == ["one", "two"]


def test_a_progress_bar_shows_as_it_ends(output: Callable[..., tuple[str, str]]) -> None:
    out, err = output(r"parl.connect(cpu_num=1, logs=True); Talker().say('10 %\r50 %\r100 %')")
    assert re.search(r"^\(Talker pid=\d+\) 100 %$", out + err, re.MULTILINE)


def test_a_stream_that_is_closed_ends_nothing(connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        wrote = threading.Event()

        def write(self, text: str) -> int:
            self.wrote.set()
            raise ValueError("I/O operation on closed file")

        def flush(self) -> None:
            """Nothing."""

    @parl_remote.remote_class
    class Speaker:
        def say(self) -> int:
            print("x")  # noqa: T201
            return 1

    monkeypatch.setattr(sys, "stdout", Closed())
    monkeypatch.setattr(sys, "stderr", Closed())
    connect(logs=True)
    speaker = Speaker()
    speaker.say()
    assert Closed.wrote.wait(30)
    assert speaker.say() == 1


def test_a_link_that_breaks_is_made_anew_and_no_line_is_lost_or_doubled(
    output: Callable[..., tuple[str, str]],
) -> None:
    out, _ = output("""
        from parl_remote import _current
        parl.connect(cpu_num=1, logs=True)
        a = Talker()
        a.say("before")
        forwarder = _current.client().actor_factory.logs
        while not forwarder._positions:
            time.sleep(0.01)
        (node, worker), = forwarder._workers.items()
        forwarder._loop.call_soon(lambda: forwarder._disconnect(node, worker))
        a.say("meanwhile")
        while forwarder._workers.get(node) in {None, worker}:
            time.sleep(0.01)
        a.say("after")
    """)
    assert re.findall(r"^\(Talker pid=\d+\) (.*)$", out, re.MULTILINE) == ["before", "meanwhile", "after"]


def test_logs_must_be_true_or_false() -> None:
    with pytest.raises(TypeError, match="logs must be True or False"):
        parl_remote.connect(logs="yes")  # type: ignore[arg-type]


@pytest.mark.slow
def test_lines_appear_below_the_cell_of_a_notebook(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cells = [
        CLASS + "\nparl.connect(cpu_num=1, logs=True)\na = Talker()",
        "a.say('from a notebook')",
        "parl.disconnect()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with contextlib.chdir(tmp_path):
        nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    texts = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    assert re.search(r"^\(Talker pid=\d+\) from a notebook$", texts, re.MULTILINE), texts
