"""A command's conversation with one cluster: found, connected to, and closed at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from parl_remote.cli.target import only_target
from parl_remote.config import Environment, environment
from parl_remote.doctor.explain import explained
from parl_remote.errors import RemoteError
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages import Role
from parl_remote.program.rendezvous import ClusterAddress

__all__ = ["Session", "open_session"]


class Session:
    """One cluster, for questions.

    Attributes:
        found: Limits.
        cluster: Where it is.
        master: Its master.
    """

    def __init__(self, found: Environment, cluster: ClusterAddress, master: Inquiry) -> None:
        self.found = found
        self.cluster = cluster
        self.master = master

    def worker(self, addresses: tuple[str, ...], name: str) -> Inquiry:
        """One of its workers.

        Raises:
            RemoteError: It cannot be reached.
        """
        return Inquiry(self.cluster.connect_node(addresses), Role.WORKER, self.found.limits, name)


@contextlib.contextmanager
def open_session(name: str, port: int | None, address: str | None, key_file: Path | None) -> Iterator[Session]:
    """Talk to the cluster that a command is about.

    Args:
        name: What the cluster shall call us, "xparl list".
        port: Of the user's own cluster on this host.
        address: Of any cluster.
        key_file: Its key.

    Raises:
        click.ClickException: It cannot be found or reached, or something that is asked for goes wrong.
    """
    found = environment()
    target = only_target(found, port, address, key_file)
    try:
        cluster = target.cluster(found)
        master = Inquiry(cluster.connect_master(), Role.MASTER, found.limits, name)
    except RemoteError as error:
        raise click.ClickException(str(explained(error, target.address, found))) from error
    with master:
        try:
            yield Session(found, cluster, master)
        except RemoteError as error:
            raise click.ClickException(str(error)) from error
