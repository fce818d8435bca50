"""`connect` and `disconnect`: the two functions that open and close a program's connection."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from parl_remote import current
from parl_remote.config import environment

__all__ = ["connect", "disconnect"]

LEASE_TIMEOUT_S = 30.0

_connecting = threading.Lock()


def connect(
    master_address: str | None = None,
    distributed_files: Sequence[str] = (),
    *,
    cpu_num: int | None = None,
    preload: Sequence[str] = (),
    debug: bool = False,
    lease_timeout_s: float | None = LEASE_TIMEOUT_S,
    log_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Connect this program to a cluster, or give it a private one."""
    from parl_remote.client import Client
    from parl_remote.private_cluster import PrivateCluster

    found = environment()
    slots = cpu_num or len(os.sched_getaffinity(0))
    with _connecting:
        if current.peek() is not None:
            return
        cluster = PrivateCluster(
            found, slots=slots, preload=tuple(preload), log_dir=None if log_dir is None else Path(log_dir)
        )
        client = Client(
            "local", cluster.connect, limits=found.limits, lease_timeout_s=lease_timeout_s, close_cluster=cluster.close
        )
        current.install(client)
        atexit.register(disconnect)


def disconnect() -> None:
    """End this program's actors and its connection; without a connection it does nothing."""
    old = current.clear()
    if old is not None:
        atexit.unregister(disconnect)
        old.close()


def get_global_client() -> current.ActorMaker:
    """The connection itself; PARL's name for it. `actor_num` says how many actors it has.

    Raises:
        NotConnected: There is none.
    """
    return current.client()
