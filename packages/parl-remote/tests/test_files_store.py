"""A worker's side of files: hostile manifests, contents by hash, folders that nothing can lead out of."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parl_remote._files.manifest import Entry, Manifest
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._messages import Done, Failed, Hello, Message, Role
from parl_remote._messages.parts import (
    CompareDirectories,
    DirectoriesCompared,
    DirectoryIdentity,
    FolderAnswer,
    Part,
    PrepareFolder,
    StoreParts,
)
from parl_remote._messages.wire import decode
from parl_remote._worker.files import Blobs, DamagedBlob, WorkerFiles, make_folder
from parl_remote.errors import RemoteError, RemoteProtocolError

HASH = hashlib.sha256(b"x").hexdigest()


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- manifests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/..",
        "./x",
        "a//b",
        "a/",
        "a\0b",
        "..\\x",
        "a\\b",
        "C:/x",
        "c:x",
        "x" * 256,
        "é" * 128,
        "/".join(["d" * 200] * 16),
        "\udcff",
    ],
)
def test_a_path_that_could_lead_out_or_is_no_name_is_refused(path: str) -> None:
    with pytest.raises(RemoteProtocolError):
        Entry(path, 1, HASH)
    with pytest.raises(RemoteProtocolError):
        Manifest.parse(json.dumps({"entries": [[path, 1, HASH, False]]}).encode())


@pytest.mark.parametrize(
    "rows",
    [
        [["a", 1, HASH, False], ["a", 1, HASH, False]],
        [["a", 1, HASH, False], ["a/b", 1, HASH, False]],
        [["a/b", 1, HASH, False], ["a", 1, HASH, False]],
        [["a/b/c", 1, HASH, False], ["a", 0, "", False], ["a/b", 1, HASH, False]],
        [["a", 1, "", False]],
        [["a", -1, HASH, False]],
        [["a", 2**60, HASH, False]],
        [["a", True, HASH, False]],
        [["a", 1, HASH.upper(), False]],
        [["a", 1, "../" + HASH[3:], False]],
        [["a", 1, HASH]],
        [["a", 1, HASH, 1]],
        [{"path": "a"}],
        ["a"],
        "a",
        None,
        {"a": 1},
    ],
)
def test_a_manifest_that_makes_no_tree_is_refused(rows: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        Manifest.parse(json.dumps({"entries": rows}).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"null", b"[" * 100_000, b"7"])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Manifest.parse(content)


def test_a_manifest_comes_back_as_it_was_whatever_the_order() -> None:
    entries = [Entry("b/c", 3, HASH, True), Entry("a", 1, HASH), Entry("empty")]
    manifest = Manifest.of(entries)
    assert Manifest.parse(manifest.content) == manifest
    assert Manifest.of(reversed(entries)).digest == manifest.digest
    assert [entry.path for entry in manifest.entries] == ["a", "b/c", "empty"]


# -- contents --------------------------------------------------------------------------------------------------------


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    blobs = Blobs(tmp_path / "contents", limit=100)
    yield blobs
    blobs.close()
    assert not list(tmp_path.glob("contents/incoming/*"))


def keep(blobs: Blobs, content: bytes, who: str = "me") -> str:
    digest = digest_of(content)
    blobs.add(who, digest, len(content), 0, memoryview(content))
    return digest


def test_a_content_is_kept_once_it_is_whole(blobs: Blobs) -> None:
    digest = digest_of(b"abcdef")
    blobs.add("me", digest, 6, 0, memoryview(b"abc"))
    assert digest not in blobs
    blobs.add("me", digest, 6, 3, memoryview(b"def"))
    assert blobs.read(digest).read_bytes() == b"abcdef"


def test_an_empty_content_is_one_too(blobs: Blobs) -> None:
    assert blobs.read(keep(blobs, b"")).read_bytes() == b""


def test_a_content_with_another_hash_is_not_kept(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="came with another hash"):
        blobs.add("me", HASH, 3, 0, memoryview(b"abc"))
    assert HASH not in blobs
    assert not list((tmp_path / "contents/incoming").iterdir())


@pytest.mark.parametrize(
    ("size", "offset", "data"), [(3, 1, b"bc"), (2, 0, b"abc"), (3, 2**62, b"abc"), (-1, 0, b"a"), (3, -1, b"abc")]
)
def test_parts_that_do_not_follow_each_other_are_refused(blobs: Blobs, size: int, offset: int, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        blobs.add("me", digest_of(b"abc"), size, offset, memoryview(data))


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", HASH[:-1], HASH + "0", HASH.upper()])
def test_what_is_no_hash_names_no_file(blobs: Blobs, digest: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a SHA-256"):
        blobs.add("me", digest, 1, 0, memoryview(b"x"))


def test_two_may_send_the_same_content_at_once(blobs: Blobs) -> None:
    digest = digest_of(b"abcdef")
    for who in ("one", "two"):
        blobs.add(who, digest, 6, 0, memoryview(b"abc"))
    for who in ("one", "two"):
        blobs.add(who, digest, 6, 3, memoryview(b"def"))
    assert blobs.read(digest).read_bytes() == b"abcdef"


def test_a_leaving_peer_leaves_nothing_half_done(blobs: Blobs, tmp_path: Path) -> None:
    blobs.add("me", digest_of(b"abcdef"), 6, 0, memoryview(b"abc"))
    blobs.forget("me")
    assert not list((tmp_path / "contents/incoming").iterdir())


def test_the_least_recently_used_contents_go_first_and_needed_ones_stay(blobs: Blobs) -> None:
    first, second, third = (keep(blobs, bytes([number]) * 60) for number in range(3))
    blobs.read(first)
    blobs.shrink({third})
    assert (first in blobs, second in blobs, third in blobs) == (False, False, True)
    assert blobs.total == 60


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_holds_what_its_manifest_says_and_is_its_owners_only(blobs: Blobs, tmp_path: Path) -> None:
    one, two = keep(blobs, b"one"), keep(blobs, b"")
    manifest = Manifest.of(
        [Entry("work/a", 3, one), Entry("work/run", 3, one, True), Entry("b/c/d", 0, two), Entry("e/f")]
    )
    folder = tmp_path / "jobs/1"
    make_folder(folder, manifest, blobs)
    found = {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}
    private = {"work": "0o700", "b": "0o700", "b/c": "0o700", "e": "0o700", "e/f": "0o700"}
    assert found.pop(".manifest.json") == "0o600"
    assert found == {**private, "work/a": "0o600", "work/run": "0o700", "b/c/d": "0o600"}
    assert (folder / "work/a").read_bytes() == b"one"


def test_a_damaged_content_is_noticed_and_no_half_folder_stays(blobs: Blobs, tmp_path: Path) -> None:
    digest = keep(blobs, b"abc")
    blobs.read(digest).write_bytes(b"abd")
    with pytest.raises(DamagedBlob) as damaged:
        make_folder(tmp_path / "jobs/1", Manifest.of([Entry("first"), Entry("second", 3, digest)]), blobs)
    assert damaged.value.digest == digest
    assert not list((tmp_path / "jobs").iterdir())


def test_a_folder_is_a_copy(blobs: Blobs, tmp_path: Path) -> None:
    digest = keep(blobs, b"abc")
    for number in "12":
        make_folder(tmp_path / number, Manifest.of([Entry("file", 3, digest)]), blobs)
    (tmp_path / "1/file").write_bytes(b"changed")
    assert (tmp_path / "2/file").read_bytes() == b"abc"


def test_names_that_the_host_takes_for_one_are_refused(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on file systems that do not tell upper from lower case; here `open` and `mkdir` are made to be like that."""
    real_open, real_mkdir = os.open, Path.mkdir

    def fold(path: Any) -> Path:
        return Path(str(path).lower())

    def open_folded(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        return real_open(fold(path) if flags & os.O_CREAT else path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", open_folded)
    monkeypatch.setattr(Path, "mkdir", lambda self, *rest, **options: real_mkdir(fold(self), *rest, **options))
    digest = keep(blobs, b"abc")
    for entries in ([Entry("A", 3, digest), Entry("a", 3, digest)], [Entry("B/c"), Entry("b/d")]):
        with pytest.raises(RemoteError, match="and another name as the same file"):
            make_folder(tmp_path / "jobs/1", Manifest.of(entries), blobs)


# -- the part --------------------------------------------------------------------------------------------------------


class Client:
    """A program that talks to the part without a network; answers are waited for in the loop."""

    def __init__(self, loop: Loop, part: WorkerFiles, name: str) -> None:
        self.answers: list[Message] = []
        self._loop = loop
        self._part = part
        hello = Hello(Role.CLIENT, Role.WORKER, name, 1, 1, "host", 1, {}, name)
        self.link = Link(hello, 1, lambda frames: self.answers.append(decode(frames[0])), lambda: None)

    def ask(self, message: Message, *data: bytes) -> Message:
        self._part.received(self.link, message, [memoryview(piece) for piece in (b"", *data)])
        for _ in range(1000):
            if self.answers:
                return self.answers.pop()
            self._loop.run_once(1.0)
        raise AssertionError("no answer")

    def send(self, *contents: bytes) -> Message:
        parts = tuple(Part(digest_of(content), len(content), 0, len(content)) for content in contents)
        return self.ask(StoreParts(1, parts), b"".join(contents))

    def folder(self, manifest: Manifest) -> FolderAnswer:
        answer = self.ask(PrepareFolder(1, manifest.digest, len(manifest.content)))
        assert isinstance(answer, FolderAnswer)
        return answer

    def leave(self) -> None:
        self._part.closed(self.link)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def used() -> set[str]:
    return set()


@pytest.fixture
def part(loop: Loop, tmp_path: Path, used: set[str]) -> Iterator[WorkerFiles]:
    part = WorkerFiles(loop, tmp_path / "files", lambda: used, kept_bytes=1000)
    yield part
    part.close()
    assert not list(tmp_path.glob("files/contents/incoming/*"))


@pytest.fixture
def client(loop: Loop, part: WorkerFiles) -> Callable[[str], Client]:
    return lambda name: Client(loop, part, name)


def test_what_is_lacking_is_asked_for_and_then_laid_out(client: Callable[[str], Client]) -> None:
    program = client("program")
    manifest = Manifest.of([Entry("work/a", 3, digest_of(b"abc")), Entry("work/b", 3, digest_of(b"abc"))])
    assert program.folder(manifest).lacks == (manifest.digest,)
    assert program.send(manifest.content) == Done(1)
    assert program.folder(manifest).lacks == (digest_of(b"abc"),)
    assert program.send(b"abc") == Done(1)
    folder = program.folder(manifest).folder
    assert Path(folder, "work/b").read_bytes() == b"abc"
    assert program.folder(manifest).folder == folder


def test_whatever_a_request_meets_it_is_answered_and_so_are_the_next_ones(
    client: Callable[[str], Client], part: WorkerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*_: object) -> Message:
        raise MemoryError("no memory is left")

    program = client("program")
    with monkeypatch.context() as patch:
        patch.setattr(part, "_store", without_memory)
        assert isinstance(program.send(b"abc"), Failed)
    assert program.send(b"abc") == Done(1)


def test_without_a_thread_a_request_fails_and_the_next_ones_do_not(
    client: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    program = client("program")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RemoteError, match="new thread"):
            program.send(b"abc")
    assert program.send(b"abc") == Done(1)


def test_the_next_program_sends_nothing_and_gets_a_folder_of_its_own(client: Callable[[str], Client]) -> None:
    manifest = Manifest.of([Entry("a", 3, digest_of(b"abc"))])
    one, two = client("one"), client("two")
    one.send(manifest.content, b"abc")
    first, second = one.folder(manifest).folder, two.folder(manifest).folder
    assert first != second
    assert Path(second, "a").read_bytes() == b"abc"


def test_folders_go_with_their_program_but_not_before_its_actors(
    client: Callable[[str], Client], used: set[str], loop: Loop
) -> None:
    manifest = Manifest.of([Entry("work")])
    one, two, other = client("one"), client("two"), client("other")
    one.send(manifest.content)
    folders = [Path(program.folder(manifest).folder) for program in (one, two, other)]
    used.add(str(folders[1] / "work"))  # a detached actor's
    one.leave()
    two.leave()
    other.folder(Manifest.of([Entry("work")]))  # jobs are done in order
    assert [folder.exists() for folder in folders] == [False, True, True]
    used.clear()
    for _ in range(100):
        if not folders[1].exists():
            break
        loop.run_once(0.1)
    assert [folder.exists() for folder in folders] == [False, False, True]


def test_a_damaged_content_is_asked_for_again(client: Callable[[str], Client], tmp_path: Path) -> None:
    manifest = Manifest.of([Entry("a", 3, digest_of(b"abc"))])
    program = client("program")
    program.send(manifest.content, b"abc")
    (tmp_path / "files/contents" / digest_of(b"abc")).write_bytes(b"abd")
    assert program.folder(manifest).lacks == (digest_of(b"abc"),)
    program.send(b"abc")
    assert Path(program.folder(manifest).folder, "a").read_bytes() == b"abc"


def test_hostile_manifests_make_nothing(client: Callable[[str], Client], tmp_path: Path) -> None:
    program = client("program")
    content = json.dumps({"entries": [["../../../escaped", 3, digest_of(b"abc"), False]]}).encode()
    program.send(content, b"abc")
    answer = program.ask(PrepareFolder(1, digest_of(content), len(content)))
    assert isinstance(answer, Failed)
    assert "is not a path within a job's folder" in answer.reason
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (StoreParts(1, (Part(HASH, 1, 0, 1),)), []),
        (StoreParts(1, (Part(HASH, 1, 0, 1),)), [b"x", b"y"]),
        (StoreParts(1, (Part(HASH, 1, 0, 1),)), [b"xy"]),
        (StoreParts(1, (Part(HASH, 1, 0, -1), Part(HASH, 1, 0, 2))), [b"x"]),
        (PrepareFolder(1, "../../x", 1), []),
        (PrepareFolder(1, HASH, 0), []),
        (PrepareFolder(1, HASH, 2**50), []),
        (Done(1), []),
    ],
)
def test_malformed_requests_are_the_peers_fault(
    client: Callable[[str], Client], message: Message, data: list[bytes]
) -> None:
    with pytest.raises(RemoteProtocolError):
        client("program").ask(message, *data)


def test_a_worker_says_whether_it_sees_the_same_directory(client: Callable[[str], Client], tmp_path: Path) -> None:
    status = tmp_path.stat()
    same = DirectoryIdentity(str(tmp_path), status.st_dev, status.st_ino)
    other = DirectoryIdentity(str(tmp_path), status.st_dev, status.st_ino + 1)
    gone = DirectoryIdentity(str(tmp_path / "gone"), status.st_dev, status.st_ino)
    nonsense = DirectoryIdentity("a\0b", 0, 0)
    program = client("program")
    answers = [
        program.ask(CompareDirectories(1, places)) for places in ((), (same,), (same, other), (gone,), (nonsense,))
    ]
    assert answers == [DirectoriesCompared(1, seen) for seen in (True, True, False, False, False)]


def test_a_full_disk_fails_the_request_and_the_part_goes_on(client: Callable[[str], Client], tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the kernel refuses the write in the same place."""
    program = client("program")
    large = os.urandom(200_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        answer = program.send(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(answer, Failed)
    assert os.strerror(errno.EFBIG) in answer.reason
    assert "Free space there" in answer.reason
    assert not list((tmp_path / "files/contents/incoming").iterdir())
    assert program.send(large) == Done(1)


def test_more_than_the_disk_has_is_refused_before_anything_is_sent(client: Callable[[str], Client]) -> None:
    program = client("program")
    manifest = Manifest.of([Entry("huge", 2**59, HASH)])
    program.send(manifest.content)
    answer = program.ask(PrepareFolder(1, manifest.digest, len(manifest.content)))
    assert isinstance(answer, Failed)
    assert f"{2**60 / 2**20:.1f} MiB are needed and" in answer.reason


def test_a_program_that_has_gone_gets_nothing_made_any_more(client: Callable[[str], Client], part: WorkerFiles) -> None:
    program, other = client("program"), client("other")
    begun = threading.Event()
    released = threading.Event()

    def hold() -> None:
        begun.set()
        released.wait(60)

    part._begin(hold)
    assert begun.wait(60)
    manifest = Manifest.of([Entry("work")])
    other_content = json.dumps({"entries": []}).encode()
    part.received(program.link, StoreParts(1, (Part(digest_of(b"x"), 1, 0, 1),)), [memoryview(b""), memoryview(b"x")])
    program.leave()
    released.set()
    assert other.send(other_content) == Done(1)
    assert [type(answer) for answer in program.answers] == [Failed]
    assert other.folder(manifest).lacks == (manifest.digest,)
