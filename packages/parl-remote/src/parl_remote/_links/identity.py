"""The identity of a process: a unique id, its host, its versions.

Used in Hello and Welcome, and to decide whether two peers can reach each other's unix sockets.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path

from parl_remote._system.shortage import is_shortage
from parl_remote._version import __version__

__all__ = ["host_id", "host_name", "new_id", "python_mismatch", "versions"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")


def new_id(kind: str) -> str:
    """Return a fresh id such as "lease-9f86d081884c7d65", of 64 random bits."""
    return f"{kind}-{os.urandom(8).hex()}"


@functools.cache  # read when a process connects; later there may be no descriptor left to read it
def host_id() -> str:
    """Return a text that is the same for all processes of this host since it booted, and for no other host.

    Containers of one host share it, so the reachability of a unix socket is also checked in the file system.
    """
    for source in (_BOOT_ID, _MACHINE_ID):
        try:
            return source.read_text().strip()
        except OSError as error:
            if is_shortage(error):  # another answer now would make this process look like one of another host
                raise
    return socket.gethostname()


def host_name() -> str:
    """Return the displayed name of this host."""
    return socket.gethostname()


def versions() -> dict[str, str]:
    """Return the versions to show when two sides are incompatible."""
    return {"parl_remote": __version__, "python": sys.version.partition(" ")[0]}


def python_mismatch(theirs: str) -> str:
    """Return why a peer with this version of Python cannot exchange objects with this process; empty if it can.

    Classes and functions travel as byte code, which another minor version reads as something else.
    """
    ours = versions()["python"]
    if not theirs or theirs.split(".")[:2] == ours.split(".")[:2]:
        return ""
    return (
        f"this side runs Python {theirs}, the peer Python {ours}; programs and nodes of a cluster need the same minor "
        "version (3.11 and 3.12 differ): use the same on both"
    )
