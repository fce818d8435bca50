"""Too little of something: a disk that is full, memory that somebody else has taken."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from parl_remote.testing.errors import FaultUnavailable

__all__ = ["MemoryHog", "SmallDisk"]

_BLOCK = 2**16
_READY_S = 60.0
_HOG = """
import sys
hoard = [bytearray(b"x" * 2**20) for _ in range(int(sys.argv[1]))]
sys.stdout.write("full"); sys.stdout.flush(); sys.stdin.read()
"""


class SmallDisk:
    """A file system of its own of a few MiB, to be filled; a context manager. Linux, root.

    Args:
        mib: Its size.

    Attributes:
        path: Where it is.

    Raises:
        FaultUnavailable: This user may not mount one.
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
        """Fill it to the last byte; returns how many bytes that took."""
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
        """Take away what `fill` has written."""
        (self.path / "filling").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, whoever still uses it; a second call does nothing."""
        if self.path.exists():
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)
            self.path.rmdir()

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryHog:
    """A process that takes memory and keeps it; a context manager.

    Args:
        mib: How much.

    Raises:
        FaultUnavailable: It could not get that much.
    """

    def __init__(self, mib: int) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._running = subprocess.Popen([sys.executable, "-S", "-c", _HOG, str(mib)], **pipes)  # type: ignore[call-overload]
        if self._running.stdout.read(4) != b"full":
            self.close()
            raise FaultUnavailable(f"there are no {mib} MiB of memory to be had")

    @property
    def pid(self) -> int:
        """Its process number."""
        return int(self._running.pid)

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self._running.returncode is None:
            self._running.kill()
            self._running.communicate()

    def __enter__(self) -> MemoryHog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
