"""The way of a program or an actor to its cluster, or to the manager of a reverse connection, with the key to use.

The key is, in this order: the file given by the caller, the file in `PARL_KEY_FILE`, the text in `PARL_KEY`, or, for a
cluster that the same user started on this host, the one in its run files. The key between a `RemoteManager` and the
objects that are served to it is found in the same ways; the manager's run files are in <host>-manager-<port>/.
"""

from __future__ import annotations

import copy
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parl_remote._config import Environment
from parl_remote._links.call_messages import ClusterReach
from parl_remote._links.identity import host_name
from parl_remote._run_files import ClusterRecord, ManagerRecord, ProcessRecord, RunFiles, write_record
from parl_remote._security import ClusterKey, write_private_file
from parl_remote._system.facilities import own_user
from parl_remote._transport import Channel
from parl_remote._transport.addresses import Address, advertised_by, is_this_host
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import AuthenticationFailed, ChannelClosed, ClusterUnreachable

__all__ = [
    "ActorCluster",
    "ClusterAddress",
    "RealCluster",
    "find_key",
    "find_manager_key",
    "given_key",
    "publish_manager_key",
]


class ClusterAddress:
    """The address of a cluster, with the key and limits for connecting to its master and nodes.

    Args:
        address: "host:port" of the master.
        environment: The places of the key, and limits.
        key_file: A file with the cluster's key; None to search for one.

    Raises:
        ValueError: The address is not of that form.
        AuthenticationFailed: No key can be found, or the file is not private.
        ClusterUnreachable: No key can be found, and nothing listens there.
    """

    def __init__(self, address: str, environment: Environment, key_file: str | os.PathLike[str] | None = None) -> None:
        self.address = Address.parse(address)
        self.key = find_key(self.address, environment, None if key_file is None else Path(key_file))
        self._limits = environment.limits

    def __str__(self) -> str:
        return str(self.address)

    def within(self, timeout_s: float) -> ClusterAddress:
        """Return the same address with a shorter connection timeout."""
        other = copy.copy(self)
        other._limits = replace(self._limits, connect_timeout_s=min(timeout_s, self._limits.connect_timeout_s))
        return other

    def connect_master(self) -> Channel:
        """Return a channel to the master.

        Raises:
            ClusterUnreachable: Nothing answers there.
            AuthenticationFailed: The key belongs to another cluster.
        """
        return self._connect(self.address)

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """Return a channel to a worker, at the first of its addresses that answers.

        Raises:
            ClusterUnreachable: None answers.
        """
        tried = []
        for node_address in node_addresses:
            try:
                return self._connect(advertised_by(node_address, self.address))
            except ClusterUnreachable as error:
                tried.append(str(error))
        reasons = "; ".join(tried) or "it has no address for other hosts"
        raise ClusterUnreachable(f"a worker of the cluster at {self} cannot be reached from here: {reasons}")

    def _connect(self, address: Address) -> Channel:
        from parl_remote._transport.zmq import ZmqChannel  # 30 ms; a private cluster needs no zmq

        return ZmqChannel.connect(str(address), self.key, limits=self._limits)


def find_key(address: Address, environment: Environment, key_file: Path | None = None) -> ClusterKey:
    """Return the key of the cluster at an address; the module's docstring has the search order.

    Raises:
        AuthenticationFailed: There is none, or the file is not private to this user.
        ClusterUnreachable: There is none and nothing listens at the address.
    """
    given = given_key(environment, key_file)
    if given is not None:
        return given
    known = list(RunFiles(environment.run_dir).clusters())
    for directory, record in known:
        if record.port == address.port and _is_at(record, address.host):
            return ClusterKey.from_file(directory / "key")
    _check_listening(address, environment.limits.connect_timeout_s, [record for _, record in known])
    raise AuthenticationFailed(
        f"there is no key for {address}: you (user {own_user()}) have not started a cluster there from this host. "
        "Copy the key file that `xparl start` names there, and pass it by key_file=, PARL_KEY_FILE or PARL_KEY"
    )


def given_key(environment: Environment, key_file: Path | None = None) -> ClusterKey | None:
    """Return the key given explicitly: by a file, `PARL_KEY_FILE` or `PARL_KEY`; None if none is given.

    Raises:
        AuthenticationFailed: The given file is not private to this user, or holds no key.
    """
    chosen = environment.key_file if key_file is None else key_file.expanduser()
    if chosen is not None:
        return ClusterKey.from_file(chosen)
    if environment.key is not None:
        return ClusterKey.from_text(environment.key, source="PARL_KEY")
    return None


def _is_at(record: ClusterRecord, host: str) -> bool:
    if record.process.alive():
        return is_this_host(host)
    return record.host_name != host_name() and host in {record.host_name, record.host}  # in a shared home directory


def _check_listening(address: Address, timeout_s: float, known: Sequence[ClusterRecord]) -> None:
    try:
        socket.create_connection((address.host, address.port), timeout_s).close()
    except OSError as error:
        running = sorted(record.port for record in known if record.process.alive())
        ports = (
            f"your clusters on this host have the ports {running}" if running else "you have no cluster on this host"
        )
        raise ClusterUnreachable(
            f"nothing answers at {address} ({error.strerror or error}); {ports}. "
            f"Start one with `xparl start --port {address.port}`, or check the address",
            address=str(address),
        ) from error


class RealCluster:
    """A cluster that exists independently of this program; implements `client.Cluster`.

    Args:
        address: Its address and key.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address

    @property
    def may_return(self) -> bool:
        """Return True: the cluster's owner can start its master again."""
        return True

    def connect_master(self) -> Channel:
        """Return a channel to the master at the cluster's address."""
        return self._address.connect_master()

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """Return a channel to a worker, at the first of its addresses that answers."""
        return self._address.connect_node(node_addresses)

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """Return the error for a master that accepted the connection and does not answer."""
        return ClusterUnreachable(
            f"the master at {self._address} took the connection but does not answer: {reason}",
            address=str(self._address),
        )

    def close(self) -> None:
        """Do nothing: the cluster continues."""

    def abandon(self) -> None:
        """Do nothing: the cluster continues."""


def publish_manager_key(environment: Environment, host: str, port: int, key: ClusterKey) -> Path:
    """Publish the key of this process's manager to programs of the same user.

    Returns:
        The directory, to be removed with `shutil.rmtree` at the end.
    """
    run_files = RunFiles(environment.run_dir)
    for old, record in run_files.managers():
        if record.host_name == host_name() and not record.process.alive():
            shutil.rmtree(old, ignore_errors=True)  # of one that was killed
    directory = run_files.manager_directory(port)
    write_private_file(directory / "key", key.to_text() + "\n")
    write_record(directory, ManagerRecord(host, port, host_name(), ProcessRecord.of(os.getpid())))
    return directory


def find_manager_key(address: Address, environment: Environment, key_file: str | os.PathLike[str] | None) -> ClusterKey:
    """Return the key for the manager at an address.

    Raises:
        AuthenticationFailed: There is no key, or the file is not private to this user.
    """
    given = given_key(environment, None if key_file is None else Path(key_file))
    if given is not None:
        return given
    for directory, record in RunFiles(environment.run_dir).managers():
        if record.port == address.port and record.process.alive() and is_this_host(address.host):
            return ClusterKey.from_file(directory / "key")
    raise AuthenticationFailed(
        f"there is no key for {address}: no RemoteManager of yours (user {own_user()}) listens there on this host. "
        "Give both ends the same key by key_file=, PARL_KEY_FILE or PARL_KEY; `xparl start` makes one"
    )


class ActorCluster:
    """The cluster of an actor, as its own client reaches it; see `handshake.Cluster`.

    Args:
        reach: The settings that its node has sent.
        environment: The places of keys, and limits.
    """

    def __init__(self, reach: ClusterReach, environment: Environment) -> None:
        self._reach = reach
        self._environment = environment
        self._afar: RealCluster | None = None

    @property
    def may_return(self) -> bool:
        """Return whether a master that is gone may be started again; a private one, which has no key, may not."""
        return bool(self._reach.key_file)

    def connect_master(self) -> Channel:
        """Return a channel to the master.

        Raises:
            ClusterUnreachable: The master does not answer.
        """
        if not (self._reach.master_is_here and self._environment.same_host_shortcut):
            return self._cluster().connect_master()
        try:
            return UnixChannel.connect(f"{self._reach.socket_dir}/node.sock")
        except ChannelClosed as error:
            raise self.unreachable(str(error)) from error

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """Return a channel to a worker on another host.

        Raises:
            ClusterUnreachable: The worker does not answer.
        """
        if not self._reach.key_file:
            raise self.unreachable(f"its directory {self._reach.socket_dir} is gone")
        return self._cluster().connect_node(node_addresses)

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """Return the error for a master that does not answer."""
        address = self._reach.address
        return ClusterUnreachable(f"this actor cannot reach its cluster at {address}: {reason}", address=address)

    def close(self) -> None:
        """Do nothing: the cluster continues."""

    def abandon(self) -> None:
        """Do nothing: the cluster continues."""

    def _cluster(self) -> RealCluster:
        if self._afar is None:
            address = ClusterAddress(self._reach.address, self._environment, Path(self._reach.key_file))
            self._afar = RealCluster(address)
        return self._afar
