"""Which user of this host is at the other end of a connection over loopback, as the kernel knows it.

/proc/net/tcp lists every socket with its owner; the peer's is the one whose two ports are ours, the other way round.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["uid_of_peer"]

_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns


def uid_of_peer(environ: Mapping[str, Any], tables: Path = Path("/proc/net")) -> int | None:
    """The user whose process has sent a WSGI request; None if that is not to be found out, as for other hosts.

    Args:
        environ: The request.
        tables: Where the kernel's tables are.
    """
    try:
        address = ipaddress.ip_address(environ["REMOTE_ADDR"])
        theirs, ours = int(environ["REMOTE_PORT"]), int(environ["SERVER_PORT"])
        table = (tables / ("tcp" if address.version == 4 else "tcp6")).read_text()
    except (KeyError, ValueError, OSError):
        return None
    if not address.is_loopback:
        return None
    local, remote = f"{_as_kernel_prints(address)}:{theirs:04X}", f":{ours:04X}"
    for line in table.splitlines():
        if local in line:
            fields = line.split()
            if fields[_LOCAL] == local and fields[_REMOTE].endswith(remote):
                return int(fields[_UID])
    return None


def _as_kernel_prints(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """In words of 32 bits, each as this machine reads them."""
    packed = address.packed
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
