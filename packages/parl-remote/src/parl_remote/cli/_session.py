"""The cluster of a command: its selection, requests to its master and workers, and their answers.

Target --ClusterAddress--> Session: requests to the master and to workers --> actors, nodes, deaths
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from parl_remote._config import Environment, Limits, environment
from parl_remote._doctor.reach import explained
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Role, Status, StatusRequest
from parl_remote._messages.overview import (
    ActorList,
    ActorStatus,
    DeathRecord,
    Deaths,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeDetail,
    NodeList,
)
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._run_files import RunFiles
from parl_remote._system.processes import listener_at
from parl_remote._transport import Channel
from parl_remote._transport.addresses import Address, address_here
from parl_remote.cli._commands import parsed
from parl_remote.errors import RemoteError

__all__ = [
    "FiniteRange",
    "Session",
    "Target",
    "actors_of",
    "address_option",
    "ask_status",
    "begins",
    "check_port",
    "deaths_of",
    "find_actor",
    "find_actor_or_death",
    "find_nodes",
    "key_option",
    "node_label",
    "nodes_of",
    "only_target",
    "open_session",
    "port_option",
    "short_id",
    "targets",
]


class FiniteRange(click.FloatRange):
    """The type of a number between bounds that is neither infinite nor NaN, which `click.FloatRange` lets through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


port_option = click.option("--port", type=click.IntRange(1, 65535), help="Your cluster on this port of this host.")
address_option = click.option(
    "--address", metavar="HOST:PORT", help="The address of a cluster. Default: your cluster on this host."
)
key_option = click.option(
    "--key_file", "--key-file", type=click.Path(path_type=Path), help="The file with the cluster's key, mode 0600."
)


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster to query.

    Attributes:
        address: Its master, "host:port".
        key_file: Its key; None for the search of `parl.connect`.
    """

    address: str
    key_file: Path | None = None

    def cluster(self, found: Environment) -> ClusterAddress:
        """Return the cluster's address with its key; see `ClusterAddress` for the exceptions."""
        return ClusterAddress(self.address, found, self.key_file)


def targets(found: Environment, port: int | None, address: str | None, key_file: Path | None) -> list[Target]:
    """Return the clusters of a command; without an address, those started on this host or else those joined."""
    if address is not None:
        return [Target(str(parsed(address)), key_file)]
    started = [
        Target(str(address_here(record.host, record.port)), where / "key")
        for where, record in RunFiles(found.run_dir).clusters()
        if port in {None, record.port}
    ]
    return started or [target for target in _joined(found) if port in {None, Address.parse(target.address).port}]


def only_target(found: Environment, port: int | None, address: str | None, key_file: Path | None) -> Target:
    """Return the one cluster of a command, which this host has started or joined.

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
            f"xparl start --port {port or 8037}"
        )
    ports = ", ".join(f"--port {Address.parse(target.address).port}" for target in known)
    raise click.ClickException(f"you have {len(known)} clusters on this host; choose one: {ports}")


def _joined(found: Environment) -> Iterator[Target]:
    """Yield the clusters elsewhere that workers of this host belong to, each once."""
    seen = set()
    for where, record in RunFiles(found.run_dir).workers():
        if record.process.alive() and record.master not in seen:
            seen.add(record.master)
            yield Target(record.master, where / "key")


class Session:
    """A connection to one cluster for queries.

    Attributes:
        found: Limits.
        cluster: Its address.
        master: The connection to its master.
    """

    def __init__(self, found: Environment, cluster: ClusterAddress, master: RequestConnection) -> None:
        self.found = found
        self.cluster = cluster
        self.master = master

    def worker(self, addresses: tuple[str, ...], name: str) -> RequestConnection:
        """Return a connection to one of its workers.

        Raises:
            RemoteError: The worker cannot be reached.
        """
        return RequestConnection(self.cluster.connect_node(addresses), Role.WORKER, self.found.limits, name)


@contextlib.contextmanager
def open_session(name: str, port: int | None, address: str | None, key_file: Path | None) -> Iterator[Session]:
    """Open a session with the cluster of a command.

    Args:
        name: The displayed name of this client, such as "xparl list".
        port: The port of the user's own cluster on this host.
        address: The address of any cluster.
        key_file: Its key.

    Raises:
        click.ClickException: The cluster cannot be found or reached, or a request fails.
    """
    found = environment()
    target = only_target(found, port, address, key_file)
    try:
        cluster = target.cluster(found)
        master = RequestConnection(cluster.connect_master(), Role.MASTER, found.limits, name)
    except RemoteError as error:
        raise click.ClickException(str(explained(error, target.address, found))) from error
    with master:
        try:
            yield Session(found, cluster, master)
        except RemoteError as error:
            raise click.ClickException(str(error)) from error


def ask_status(connect: Callable[[], Channel], limits: Limits) -> Status:
    """Return the cluster's status, with its nodes and clients.

    Args:
        connect: Opens a channel to the master.
        limits: The time to wait.

    Raises:
        RemoteError: The master cannot be reached, refuses, or does not answer in time.
    """
    with RequestConnection(connect(), Role.MASTER, limits, "xparl status") as master:
        return master.ask(StatusRequest, Status)


_Actor = TypeVar("_Actor", ActorStatus, DeathRecord)

_SHOWN = 8  # shown digits of an id's 16: enough among thousands, and prefixes need not be longer
_FEWEST = 4  # digits of an id: the name "b" of an ended actor must not match an id that begins with b
_CANDIDATES = 10


def short_id(whole: str) -> str:
    """Return an actor's or node's id as tables show it and commands take it."""
    return whole.partition("-")[2][:_SHOWN] or whole


def begins(whole: str, text: str) -> bool:
    """Return whether a text is an actor's or node's id, or a sufficient prefix, with or without its kind."""
    kind, _, digits = whole.partition("-")
    given = text.removeprefix(f"{kind}-")
    return text == whole or (len(given) >= _FEWEST and digits.startswith(given))


def actors_of(master: RequestConnection, *, node: str = "", client_id: str = "") -> Iterator[ActorStatus]:
    """Yield all actors of a cluster, or of one node or client."""
    page = _page(master, 0, node, client_id)
    yield from page.actors
    while page.next is not None:
        page = _page(master, page.next, node, client_id)
        yield from page.actors


def _page(master: RequestConnection, after: int, node: str, client_id: str) -> ActorList:
    return master.ask(lambda number: ListActors(number, after=after, node=node, client_id=client_id), ActorList)


def nodes_of(master: RequestConnection, *, lost: bool = False) -> tuple[NodeDetail, ...]:
    """Return all workers; with `lost` also those that were lost and not acknowledged."""
    return master.ask(lambda number: ListNodes(number, lost=lost), NodeList).nodes


def node_label(name: str, address: str) -> str:
    """Return a node's name with its port, which distinguishes it from other nodes of its host."""
    _, colon, port = address.rpartition(":")
    return f"{name}{colon}{port}"


def find_nodes(nodes: Iterable[NodeDetail], text: str) -> list[NodeDetail]:
    """Return the nodes with an id, a name, a name with port or an address; else those whose id begins so."""
    known = list(nodes)
    exact = [
        node
        for node in known
        if text in {node.node_id, node.name, *node.addresses, *(node_label(node.name, one) for one in node.addresses)}
    ]
    return exact or [node for node in known if begins(node.node_id, text)]


def deaths_of(master: RequestConnection, limit: int, *, released: bool = False) -> Deaths:
    """Return the latest lost actors; with `released` also those that their programs released."""
    return master.ask(lambda number: ListDeaths(number, limit=limit, released=released), Deaths)


def find_actor(master: RequestConnection, text: str) -> ActorStatus:
    """Return the running actor with an id, a prefix of an id, a name, or a class that has one actor.

    Raises:
        click.ClickException: There is none, or more than one.
    """
    found = _matching(list(actors_of(master)), text)
    if found is None:
        raise click.ClickException(f"there is no actor {text!r}{_rule(text)}; xparl list shows those that there are")
    return found


def find_actor_or_death(master: RequestConnection, text: str) -> ActorStatus | DeathRecord:
    """Return an actor as `find_actor` does, or else the latest one that has ended.

    Raises:
        click.ClickException: There is none, or more than one.
    """
    running = _matching(list(actors_of(master)), text)
    if running is not None:
        return running
    deaths = deaths_of(master, 1000, released=True).deaths
    by_name = next((death for death in deaths if death.name == text), None)
    ended = by_name or _matching(list(deaths), text)
    if ended is None:
        raise click.ClickException(
            f"there is no actor {text!r}, and none has ended recently{_rule(text)}; "
            "see xparl list and xparl list deaths"
        )
    return ended


def _rule(text: str) -> str:
    return f" (of an id at least {_FEWEST} digits are needed)" if len(text) < _FEWEST else ""


def _matching(actors: list[_Actor], text: str) -> _Actor | None:
    if not text:  # unnamed actors have the empty name
        return None
    for actor in actors:
        if text in {actor.lease_id, actor.name}:
            return actor
    found = [one for one in actors if begins(one.lease_id, text)]
    found = found or [one for one in actors if one.class_name == text]
    if len(found) > 1:
        shown = ", ".join(
            f"{short_id(one.lease_id)} ({one.class_name} {one.name}".rstrip() + ")" for one in found[:_CANDIDATES]
        )
        more = f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
        raise click.ClickException(f"{text!r} matches {len(found)} actors: {shown}{more}; give more of the id")
    return found[0] if found else None


def check_port(host: str, port: int, run_files: RunFiles) -> None:
    """Check that a port is free.

    Raises:
        click.ClickException: The port is in use; the message has the process.
    """
    for _, record in run_files.clusters():
        if record.port == port and record.process.alive():
            raise click.ClickException(
                f"port {port} is in use by your own cluster {record.cluster_id} (process {record.process.pid}); "
                f"stop it with `xparl stop --port {port}`, or choose another port"
            )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows would let two have the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            who = listener_at(port)
            reason = f"port {port} is in use {who}; choose another" if who else f"{error.strerror} (port {port})"
            raise click.ClickException(f"cannot listen on {host}:{port}: {reason}") from error
