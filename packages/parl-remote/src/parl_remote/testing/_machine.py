"""Faults of this machine: killed and paused processes, a full disk, exhausted memory.

    Process(pid) --pidfd--> kill, pause, resume, wait_for_end
                 --/proc--> name, children, memory, open descriptors

A process descriptor (pidfd) always refers to the same process, so a reused pid does no harm.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parl_remote.errors import RemoteError

__all__ = ["FaultUnavailable", "MemoryHog", "Process", "SmallDisk", "processes_with"]

_LISTENING_UNIX = "00010000"  # a flag of the kernel's table: the socket accepts connections
_LISTENING_TCP = "0A"
_BLOCK = 2**16
_HOG = """
import sys
hoard = [bytearray(b"x" * 2**20) for _ in range(int(sys.argv[1]))]
sys.stdout.write("full"); sys.stdout.flush(); sys.stdin.read()
"""


class FaultUnavailable(RemoteError):
    """The fault is not possible on this machine or for this user; the message has the reason.

    The pytest plugin skips a test that raises it.
    """


class Process:
    """A process of this user on this host. It needs Linux.

    Args:
        pid: The process id.

    Raises:
        ProcessLookupError: There is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)

    def __repr__(self) -> str:
        return f"<process {self.pid} ({self.name or 'ended'})>"

    @property
    def name(self) -> str:
        """The process's name in `ps`, for example "parl:zygote"; empty once it has ended."""
        return _stat(self.pid)[0] if self.alive else ""

    @property
    def command(self) -> str:
        """The process's command line; empty once it has ended."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
        return ""

    @property
    def alive(self) -> bool:
        """Return whether the process is running, that is, has not ended."""
        return not _ready(self._descriptor, 0.0)

    @property
    def paused(self) -> bool:
        """Return whether the process is stopped by a signal."""
        return self.alive and _stat(self.pid)[1] in {"T", "t"}

    @property
    def children(self) -> tuple[Process, ...]:
        """The running children of the process."""
        return tuple(_each(pid for pid, parent in _parents() if parent == self.pid))

    @property
    def family(self) -> tuple[Process, ...]:
        """The process itself and all its descendants."""
        offspring: dict[int, list[int]] = {}
        for pid, parent in _parents():
            offspring.setdefault(parent, []).append(pid)
        found, new = [self.pid], [self.pid]
        while new:
            new = [child for parent in new for child in offspring.get(parent, ())]
            found += new
        return tuple(_each(iter(found)))

    @property
    def descriptors(self) -> int:
        """The number of open file descriptors, without segments of shared memory; 0 once the process has ended."""
        return sum(not target.startswith("/memfd:") for target in self._open_files())

    @property
    def threads(self) -> int:
        """The number of threads; 0 once the process has ended."""
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.pid}/task"))
        return 0

    @property
    def unix_sockets(self) -> tuple[str, ...]:
        """The paths of the unix sockets on which the process listens.

        The kernel's table has the paths before `transport.unix.sockets.listening_socket` renames them; this property
        has the paths after that.
        """
        rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
        inodes = self._sockets
        bound = (row[7] for row in rows if len(row) > 7 and row[6] in inodes and row[3] == _LISTENING_UNIX)
        return tuple(f"{path.removesuffix('.new')}.sock" if path.endswith(".new") else path for path in bound)

    @property
    def tcp_addresses(self) -> tuple[tuple[str, int], ...]:
        """The IPv4 hosts and ports on which the process listens."""
        try:
            lines = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        except OSError:
            return ()
        rows, inodes = (line.split() for line in lines), self._sockets
        found = (row[1].split(":") for row in rows if row[3] == _LISTENING_TCP and row[9] in inodes)
        return tuple((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)) for host, port in found)

    @property
    def tcp_ports(self) -> tuple[int, ...]:
        """The ports of `tcp_addresses`."""
        return tuple(port for _, port in self.tcp_addresses)

    @property
    def _sockets(self) -> set[str]:
        """The inodes of the process's sockets."""
        return {target[8:-1] for target in self._open_files() if target.startswith("socket:[")}

    def _open_files(self) -> Iterator[str]:
        """Yield the targets of the process's descriptors."""
        with contextlib.suppress(OSError):
            for entry in os.listdir(f"/proc/{self.pid}/fd"):
                with contextlib.suppress(OSError):
                    yield os.readlink(f"/proc/{self.pid}/fd/{entry}")

    @property
    def own_bytes(self) -> int:
        """The private memory in bytes, without segments of shared memory; 0 once the process has ended."""
        total, counts = 0, True
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/smaps").read_text(errors="replace").splitlines():
                if line.startswith("Private_"):
                    total += int(line.split()[1]) if counts else 0
                elif "-" in line.split(" ", 1)[0]:  # the next mapping: its addresses, and at the end its file
                    counts = "/memfd:" not in line
        return 1024 * total

    @property
    def shared_segments(self) -> int:
        """The number of segments of shared memory (memfd) that the process has open or mapped."""
        found = set()
        with contextlib.suppress(OSError):
            for entry in os.listdir(f"/proc/{self.pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{self.pid}/fd/{entry}").startswith("/memfd:"):
                        found.add(os.stat(f"/proc/{self.pid}/fd/{entry}").st_ino)
            for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
                if "/memfd:" in line:
                    found.add(int(line.split()[4]))
        return len(found)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, SIGKILL by default; do nothing if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def pause(self) -> None:
        """Stop the process (SIGSTOP), which then behaves as on a swapping host or a suspended machine."""
        self.kill(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        self.kill(signal.SIGCONT)

    @contextmanager
    def being_paused(self) -> Iterator[None]:
        """Pause the process within a `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def wait_for_end(self, timeout_s: float = 10.0) -> float:
        """Wait until the process has ended.

        Returns:
            The time until then, in seconds.

        Raises:
            TimeoutError: The process still runs after `timeout_s` seconds.
        """
        began = time.monotonic()
        if not _ready(self._descriptor, timeout_s):
            raise TimeoutError(f"{self!r} still runs after {timeout_s:g} s")
        return time.monotonic() - began


def processes_with(variable: str, value: str) -> tuple[Process, ...]:
    """Return all processes with `variable=value` in their environment.

    Descendants inherit the variable, so orphans are found as well.
    """
    wanted = f"{variable}={value}".encode()
    return tuple(_each(pid for pid, _ in _parents() if wanted in _environment(pid)))


class SmallDisk:
    """A separate small file system that a test can fill; a context manager. It needs Linux and root.

    Args:
        mib: The size in MiB, 1 or more.

    Attributes:
        path: The mount point.

    Raises:
        ValueError: The size is below 1 MiB.
        FaultUnavailable: This user may not mount a file system.
    """

    def __init__(self, mib: int = 1) -> None:
        if mib < 1:
            raise ValueError(f"a disk has at least 1 MiB, not {mib!r}")
        self.path = Path(tempfile.mkdtemp(prefix="parl-disk-"))
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "none", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.path.rmdir()
            raise FaultUnavailable(f"a small disk needs a mount, which needs root: {done.stderr.strip()}")

    def fill(self) -> int:
        """Fill the disk to the last byte and return the number of bytes written."""
        written = 0
        file = os.open(self.path / "filling", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        size = _BLOCK
        while size:
            try:
                written += os.write(file, bytes(size))
            except OSError:
                size //= 2
        os.close(file)
        return written

    def clear(self) -> None:
        """Remove the data written by `fill`."""
        (self.path / "filling").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount the disk, even while it is in use; a second call does nothing."""
        if self.path.exists():
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)
            self.path.rmdir()

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryHog:
    """A process that allocates memory and keeps it until `close`; a context manager.

    Args:
        mib: The amount of memory in MiB.

    Raises:
        FaultUnavailable: The machine does not have so much free memory.
    """

    def __init__(self, mib: int) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._running = subprocess.Popen([sys.executable, "-S", "-c", _HOG, str(mib)], **pipes)  # type: ignore[call-overload]
        if self._running.stdout.read(4) != b"full":
            self.close()
            raise FaultUnavailable(f"there are no {mib} MiB of free memory")

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._running.pid)

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        if self._running.returncode is None:
            self._running.kill()
            self._running.communicate()

    def __enter__(self) -> MemoryHog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _each(pids: Iterator[int]) -> Iterator[Process]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield Process(pid)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield (pid, parent's pid) of all running processes."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            _, state, parent = _stat(int(entry))
            if state not in {"", "Z", "X"}:
                yield int(entry), parent


def _stat(pid: int) -> tuple[str, str, int]:
    """Return name, state and parent's pid; empty if the process is gone."""
    try:
        head, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return "", "", 0
    fields = rest.split()
    return head.partition("(")[2], fields[0], int(fields[1])


def _ready(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))
