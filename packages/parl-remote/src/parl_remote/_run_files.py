"""Records of the processes that `xparl` starts on this host, by which they are found and ended.

    <run directory>/<host>-<port>/cluster.json, key, node.log, actors/       a cluster, with events.jsonl (`history`)
    <run directory>/<host>-worker-<id>/worker.json, node.log, actors/       a worker of a cluster elsewhere
    <run directory>/<host>-<port>.lock, <host>-once.lock                    locked while a node is started
    .../monitor.json, monitor.token, monitor.log                            a web monitor, with its cluster or alone

All of it is private to its user (directories 0700, files 0600). A process matches its record only if pid and start time
both agree, so no other process is ever signalled. A clean end removes the records and the key, but not a monitor's
token; after a crash they stay, and the next start on that port reuses the key and the cluster's id.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from parl_remote._codec import from_json, to_json
from parl_remote._links.identity import host_id, host_name
from parl_remote._security import ClusterKey, make_private_dir, read_private_file, write_private_file
from parl_remote._system import processes
from parl_remote._system.facilities import is_portable
from parl_remote.errors import AuthenticationFailed, RemoteProtocolError

with contextlib.suppress(ImportError):  # not on Windows
    import fcntl

__all__ = [
    "ClusterRecord",
    "ManagerRecord",
    "MonitorRecord",
    "ProcessRecord",
    "RunFiles",
    "WorkerRecord",
    "forget",
    "forget_monitor",
    "key_of",
    "locked",
    "signal_process",
    "write_record",
]


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process of this host since its boot; `started` is its start time in hundredths of a second."""

    pid: int
    started: int
    host_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessRecord:
        """Return the record of the process that has this pid now.

        Raises:
            ProcessLookupError: There is none.
        """
        return cls(pid, processes.start_of(pid), host_id())

    def alive(self) -> bool:
        """Return whether the process still runs on this host."""
        try:
            return self.host_id == host_id() and processes.start_of(self.pid) == self.started
        except ProcessLookupError:
            return False

    def ended_within(self, seconds: float | None) -> bool:
        """Wait for the end of the process, without limit if `seconds` is None; return True once it has ended."""
        return self.host_id != host_id() or processes.ended_within(self.pid, self.started, seconds)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """One cluster that was started on this host.

    Attributes:
        cluster_id: Its id.
        host: The interface that it listens on.
        port: Its port.
        host_name: The host that it was started on, for directories that hosts share.
        process: Its node process.
    """

    cluster_id: str
    host: str
    port: int
    host_name: str
    process: ProcessRecord


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker of this host that belongs to a cluster at `master`.

    Attributes:
        node_id: Its id.
        master: The cluster's address as it was given.
        process: Its process.
        once: A name that no second worker of that cluster has; empty for none.
        cluster_id: The cluster's id, which distinguishes it from others at the same port; empty in records of older
            versions.
    """

    node_id: str
    master: str
    process: ProcessRecord
    once: str = ""
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class MonitorRecord:
    """One web monitor of this host, for the cluster at `master`.

    Attributes:
        master: The cluster's address as it was given.
        url: Its address in a browser.
        process: Its process.
        cluster_id: As in `WorkerRecord`.
    """

    master: str
    url: str
    process: ProcessRecord
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class ManagerRecord:
    """A `RemoteManager` in a program of the user; the fields are those of `ClusterRecord`."""

    host: str
    port: int
    host_name: str
    process: ProcessRecord


_FILES = {
    ClusterRecord: "cluster.json",
    WorkerRecord: "worker.json",
    MonitorRecord: "monitor.json",
    ManagerRecord: "manager.json",
}
_KEEP_LOGS_S = 24 * 3600.0  # a day to find out why a worker ended

_Record = TypeVar("_Record", ClusterRecord, WorkerRecord, MonitorRecord, ManagerRecord)


class RunFiles:
    """The run directory of one user.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def cluster_directory(self, port: int) -> Path:
        """Return the private directory of the cluster on a port of this host, created if missing.

        Raises:
            AuthenticationFailed: It is not private to this user.
        """
        return make_private_dir(self._own() / f"{host_name()}-{port}")

    def worker_directory(self, node_id: str) -> Path:
        """Return a new private directory for a worker of this host; those of ended workers are removed."""
        parent = self._own()
        for old in parent.glob(f"{host_name()}-worker-*"):
            with contextlib.suppress(OSError):
                if not (old / "worker.json").exists() and time.time() - old.stat().st_mtime > _KEEP_LOGS_S:
                    shutil.rmtree(old)
        return make_private_dir(parent / f"{host_name()}-{node_id}")

    def lock_file(self, what: str) -> Path:
        """Return the file to lock while a node of this host is started: of a port, or a worker that runs only once."""
        path = self._own() / f"{host_name()}-{what}.lock"
        path.touch(0o600)
        return path

    def monitor_directory(self, port: int) -> Path:
        """Return a new private directory for a monitor on a port of this host without a cluster here."""
        return make_private_dir(self._own() / f"{host_name()}-monitor-{port}")

    def manager_directory(self, port: int) -> Path:
        """Return the private directory of the `RemoteManager` on a port of this host, created if missing.

        Raises:
            AuthenticationFailed: It is not private to this user.
        """
        return make_private_dir(self._own() / f"{host_name()}-manager-{port}")

    def managers(self) -> Iterator[tuple[Path, ManagerRecord]]:
        """Yield all `RemoteManager`s on record, running or not."""
        yield from self._records(ManagerRecord)

    def clusters(self) -> Iterator[tuple[Path, ClusterRecord]]:
        """Yield all clusters on record, running or not; damaged records and those of others are skipped."""
        yield from self._records(ClusterRecord)

    def workers(self) -> Iterator[tuple[Path, WorkerRecord]]:
        """Yield all workers on record, running or not."""
        yield from self._records(WorkerRecord)

    def monitors(self) -> Iterator[tuple[Path, MonitorRecord]]:
        """Yield all monitors on record, running or not."""
        yield from self._records(MonitorRecord)

    def _own(self) -> Path:
        return make_private_dir(self._directory)

    def _records(self, kind: type[_Record]) -> Iterator[tuple[Path, _Record]]:
        try:
            paths = sorted(self._directory.glob(f"*/{_FILES[kind]}"))
        except OSError:  # a directory that this user cannot read holds no records of this user
            return
        for path in paths:
            with contextlib.suppress(AuthenticationFailed, RemoteProtocolError, ValueError):
                yield path.parent, from_json(kind, json.loads(read_private_file(path)), str(path))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process has locked a file, and lock it; on Windows, do nothing."""
    if is_portable():
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system of the network may have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would leave it to a process that was forked meanwhile
        os.close(descriptor)


def write_record(directory: Path, record: ClusterRecord | WorkerRecord | MonitorRecord | ManagerRecord) -> None:
    """Write a record into its directory, which must exist."""
    write_private_file(directory / _FILES[type(record)], json.dumps(to_json(record), indent=2) + "\n")


def forget(directory: Path) -> None:
    """Remove records, key and history after a clean end; logs stay until the next start."""
    for name in ("cluster.json", "worker.json", "key", "events.jsonl"):
        (directory / name).unlink(missing_ok=True)


def forget_monitor(directory: Path) -> None:
    """Remove a monitor's record after its end; its token stays, since scrapers and bookmarks continue using it."""
    (directory / "monitor.json").unlink(missing_ok=True)


def key_of(directory: Path, given: ClusterKey | None = None) -> ClusterKey:
    """Return the key in a cluster's directory, created if there is none.

    Args:
        directory: The cluster's directory.
        given: An existing key to use for this cluster from now on.

    Raises:
        AuthenticationFailed: The file there is not private or holds no key.
    """
    path = directory / "key"
    if given is not None or not path.exists():
        write_private_file(path, (given or ClusterKey.generate()).to_text() + "\n")
    return ClusterKey.from_file(path)


def signal_process(record: ProcessRecord, number: signal.Signals) -> bool:
    """Send a signal to exactly the process on record; return False if it has ended."""
    return record.host_id == host_id() and processes.send_signal(record.pid, record.started, number)
