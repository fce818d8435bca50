"""A program's side of files: what it asks of a worker, what it does not believe, what it shows meanwhile."""

from __future__ import annotations

import hashlib
import io
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from parl_remote._files.upload import ActorDirectories, Progress
from parl_remote._messages import Done, LeaseGranted, Message
from parl_remote._messages.parts import CompareDirectories, DirectoriesCompared, FolderAnswer, PrepareFolder, StoreParts
from parl_remote._transport import Buffer
from parl_remote.errors import RemoteError, RemoteProtocolError

ELSEWHERE = LeaseGranted(1, "lease", "node", ("far:8037",), "/nowhere", "another host")
Answer = Callable[[Message], Message]


class Worker:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, *folder_answers: FolderAnswer) -> None:
        self.asked: list[Message] = []
        self.data = b""
        self._answers = list(folder_answers)

    def ask(
        self,
        at: LeaseGranted,
        make: Callable[[int], Message],
        timeout_s: float | None,
        frames: Sequence[Buffer] = (),
    ) -> Message:
        message = make(1)
        self.asked.append(message)
        self.data += b"".join(map(bytes, frames))
        match message:
            case PrepareFolder():
                return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            case CompareDirectories():
                return DirectoriesCompared(1, False)
        return Done(1)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActorDirectories:
    (tmp_path / "data.txt").write_text("data")
    (tmp_path / "empty.txt").touch()
    monkeypatch.chdir(tmp_path)
    return ActorDirectories(["*.txt"])


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_only_what_is_lacking_is_sent(places: ActorDirectories) -> None:
    worker = Worker(FolderAnswer(1, lacks=(digest_of(b"data"), digest_of(b""))), FolderAnswer(1, folder="/jobs/1"))
    place = places.of(ELSEWHERE, worker, "json")
    assert place.working_dir == "/jobs/1/work"
    assert place.sys_path[-1] is None
    (sent,) = [message for message in worker.asked if isinstance(message, StoreParts)]
    assert {(part.digest, part.size, part.length) for part in sent.parts} == {
        (digest_of(b"data"), 4, 4),
        (digest_of(b""), 0, 0),
    }
    assert worker.data == b"data"


def test_a_worker_gets_nothing_that_it_was_not_told_of(places: ActorDirectories) -> None:
    with pytest.raises(RemoteProtocolError, match="was not offered"):
        places.of(ELSEWHERE, Worker(FolderAnswer(1, lacks=(digest_of(b"/etc/shadow"),))), "json")


def test_a_worker_that_loses_everything_is_given_up(places: ActorDirectories) -> None:
    with pytest.raises(RemoteError, match=r"data\.txt was sent 3 times, and the worker lost it every time"):
        places.of(ELSEWHERE, Worker(FolderAnswer(1, lacks=(digest_of(b"data"),))), "json")


def test_a_worker_that_makes_no_folder_is_given_up(places: ActorDirectories) -> None:
    with pytest.raises(RemoteProtocolError, match="does not make the folder"):
        places.of(ELSEWHERE, Worker(FolderAnswer(1)), "json")


def test_a_file_that_changed_since_connect_is_not_sent(places: ActorDirectories, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("other")
    worker = Worker(FolderAnswer(1, lacks=(digest_of(b"data"),)))
    with pytest.raises(RemoteError, match=r"data\.txt was changed or removed after parl\.connect"):
        places.of(ELSEWHERE, worker, "json")
    (tmp_path / "data.txt").unlink()
    with pytest.raises(RemoteError, match=r"data\.txt was changed or removed after parl\.connect"):
        places.of(ELSEWHERE, worker, "json")
    assert worker.data == b""


def test_a_file_that_was_only_touched_is_sent(places: ActorDirectories, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    worker = Worker(FolderAnswer(1, lacks=(digest_of(b"data"),)), FolderAnswer(1, folder="/jobs/1"))
    places.of(ELSEWHERE, worker, "json")
    assert worker.data == b"data"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_large_upload_shows_how_far_it_is_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("far:8037", 64 * 2**20) as progress:
        progress.advance(16 * 2**20)
        progress.advance(48 * 2**20)
    first, last = terminal.getvalue().strip().split("\r")
    assert first.startswith("sending to far:8037 [########  ")
    assert "16.0 MiB of 64.0 MiB" in first
    assert f"[{'#' * 30}] 64.0 MiB of 64.0 MiB" in last


def test_elsewhere_it_is_a_line_of_the_log_and_small_ones_are_not_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level(logging.INFO, "parl.remote"):
        for size in (64 * 2**20, 2**20):
            with Progress("far:8037", size) as progress:
                progress.advance(size)
    assert caplog.messages == ["sending 64.0 MiB to far:8037"]
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined, union-attr]  # it is the one from above
