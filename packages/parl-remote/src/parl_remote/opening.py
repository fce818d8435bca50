"""How `connect` opens a connection: to a private cluster that it starts, or to one that others have started.

What goes wrong is looked into at once (`doctor.explain`), and the error gets a line that says what to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parl_remote.config import Environment, environment
from parl_remote.errors import RemoteError
from parl_remote.files.places import Places

if TYPE_CHECKING:
    from parl_remote.program.client import Client

__all__ = ["PRIVATE", "open_cluster", "open_private"]

PRIVATE = "local"  # the address of a private cluster


def open_private(
    slots: int,
    preload: tuple[str, ...],
    lease_timeout_s: float | None,
    log_dir: str | os.PathLike[str] | None,
    files: Sequence[str],
) -> Client:
    """Start a private cluster and connect to it; the arguments are those of `connect`.

    Raises:
        ClusterUnreachable: It did not start.
    """
    from parl_remote.program.private_cluster import PrivateCluster

    places = Places(files)
    found = environment()
    logs = None if log_dir is None else Path(log_dir)
    with _explaining(PRIVATE, found):
        cluster = PrivateCluster(found, slots=slots, preload=preload, log_dir=logs)
        try:
            from parl_remote.program.client import Client  # only now, while the node starts

            return Client(PRIVATE, cluster, limits=found.limits, lease_timeout_s=lease_timeout_s, places=places)
        except BaseException:
            cluster.kill()
            raise


def open_cluster(
    address: str, key_file: str | os.PathLike[str] | None, lease_timeout_s: float | None, files: Sequence[str]
) -> Client:
    """Connect to the cluster at an address; the arguments are those of `connect`.

    Raises:
        RemoteError: It cannot be reached, has another key or speaks another version.
    """
    from parl_remote.program.client import Client
    from parl_remote.program.real_cluster import RealCluster
    from parl_remote.program.rendezvous import ClusterAddress

    found = environment()
    with _explaining(address, found):
        return Client(
            address,
            RealCluster(ClusterAddress(address, found, key_file)),
            limits=found.limits,
            lease_timeout_s=lease_timeout_s,
            places=Places(files, same_host_shortcut=found.same_host_shortcut),
            same_host_shortcut=found.same_host_shortcut,
        )


@contextlib.contextmanager
def _explaining(address: str, found: Environment) -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        from parl_remote.doctor.reach import explained  # only where something is wrong

        explained(error, address, found)
        raise
