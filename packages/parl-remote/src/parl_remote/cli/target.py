"""Which cluster a command is about: the one that is named, or the only one that this host belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from parl_remote.config import Environment
from parl_remote.node.run_files import RunFiles
from parl_remote.program.rendezvous import ClusterAddress
from parl_remote.transport.addresses import Address

__all__ = ["Target", "address_option", "key_option", "only_target", "port_option", "targets"]

_EVERYWHERE = frozenset({"0.0.0.0", "::"})

port_option = click.option("--port", type=click.IntRange(1, 65535), help="Your cluster on this port of this host.")
address_option = click.option(
    "--address", metavar="HOST:PORT", help="A cluster anywhere. Default: what runs for you on this host."
)
key_option = click.option(
    "--key_file", "--key-file", type=click.Path(path_type=Path), help="A file with the cluster's key, mode 0600."
)


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster to ask.

    Attributes:
        address: Its master, "host:port".
        key_file: Its key; None looks where `parl.connect` does.
    """

    address: str
    key_file: Path | None = None

    def cluster(self, found: Environment) -> ClusterAddress:
        """The way there; see `ClusterAddress` for what it raises."""
        return ClusterAddress(self.address, found, self.key_file)


def targets(found: Environment, port: int | None, address: str | None, key_file: Path | None) -> list[Target]:
    """The clusters that a command is about; without an address those that were started on this host, else joined."""
    if address is not None:
        return [Target(_checked(address), key_file)]
    started = [
        Target(f"{_dialled(record.host)}:{record.port}", where / "key")
        for where, record in RunFiles(found.run_dirs).clusters()
        if port in {None, record.port}
    ]
    return started or [target for target in _joined(found) if port in {None, Address.parse(target.address).port}]


def only_target(found: Environment, port: int | None, address: str | None, key_file: Path | None) -> Target:
    """The one cluster that a command is about; this host may have started it, or only have joined it.

    Raises:
        click.ClickException: There is none, or more than one.
    """
    known = targets(found, port, address, key_file)
    if len(known) == 1:
        return known[0]
    if not known:
        which = f"of yours on port {port}" if port else "of yours"
        raise click.ClickException(
            f"there is no cluster {which} on this host; name one with --address host:port, or start one with "
            "xparl start --port 8037"
        )
    ports = ", ".join(f"--port {Address.parse(target.address).port}" for target in known)
    raise click.ClickException(f"you have {len(known)} clusters on this host; say which one: {ports}")


def _joined(found: Environment) -> Iterator[Target]:
    """Clusters elsewhere that workers of this host belong to, each once."""
    seen = set()
    for where, record in RunFiles(found.run_dirs).workers():
        if record.process.alive() and record.master not in seen:
            seen.add(record.master)
            yield Target(record.master, where / "key")


def _checked(address: str) -> str:
    try:
        return str(Address.parse(address))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _dialled(host: str) -> str:
    return "localhost" if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
