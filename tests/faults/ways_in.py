"""The ways into a cluster, and what `benchmarks/fuzz` and the tests throw there to see whether it bears it.

    unauthenticated peer --tcp--> member --tcp, unix, with the key--> an actor of another program, the monitor

A way throws about as many messages as it is told and returns how many it has thrown.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from faults.strange_messages import Dice
from parl_remote._config import Limits
from parl_remote._messages import Role
from parl_remote._security import ClusterKey
from parl_remote._transport import Channel
from parl_remote._transport.unix import UnixChannel
from parl_remote._transport.zmq import ZmqChannel
from parl_remote.errors import RemoteError
from parl_remote.testing import LoopbackCluster

__all__ = ["WAYS", "Target"]

_A_STREAM = 10  # strange pieces for one connection; who is turned away reads no more of them
_A_CONNECTION = 20  # messages for one connection; the first wrong one ends it
_A_REQUEST = 20  # HTTP requests for one connection
_SEND_S = 5.0
_GREETING_S = 30.0
_ZMTP = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(48)
_CURVE_HELLO = b"\x04\xc8\x05HELLO\x01\0" + bytes(192)
_CURVE_INITIATE = b"\x06\0\0\0\0\0\0\x02\x51\x08INITIATE" + bytes(500)
_NULL = _ZMTP.replace(b"CURVE", b"NULL\0")
_HTTP = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api/nodes?page=-1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /static/..%2f..%2f..%2fetc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api/actors/x/kill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    b"GET /actors?sort=%00&after=999999999999999999999 HTTP/1.0\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
)


@dataclass(frozen=True)
class Target:
    """The listeners of a cluster, which arbitrary bytes can be sent to.

    Attributes:
        ports: TCP ports of nodes.
        data_ports: TCP ports of nodes for sealed connections.
        key: The cluster's key.
        nodes: Unix sockets of nodes.
        actors: Unix sockets of actors.
        leases: Leases of another client that run.
        monitor: The monitor's port; None if there is none.
    """

    ports: tuple[int, ...]
    data_ports: tuple[int, ...]
    key: ClusterKey
    nodes: tuple[str, ...]
    actors: tuple[str, ...]
    leases: tuple[str, ...]
    monitor: int | None

    @classmethod
    def of(cls, cluster: LoopbackCluster, leases: Iterable[str]) -> Target:
        """Everything of a cluster that can be reached from this host."""
        members = [cluster.master, *cluster.nodes.values()]
        lines = [member.toward for member in members if member.toward is not None]
        ports = {int(line.address.rpartition(":")[2]) for line in lines}  # a line has the port that it leads to
        monitors = [process for process in cluster.processes() if "parl_remote._monitor" in process.command]
        return cls(
            ports=tuple(port for member in members for port in member.process.tcp_ports if port in ports),
            data_ports=tuple(port for member in members for port in member.process.tcp_ports if port not in ports),
            key=ClusterKey.from_file(cluster.key_file),
            nodes=tuple(path for member in members for path in member.process.unix_sockets),
            actors=tuple(path for member in members for actor in member.actors for path in actor.unix_sockets),
            leases=tuple(leases),
            monitor=next((port for process in monitors for port in process.tcp_ports), None),
        )


def _raw_tcp(dice: Dice, target: Target, count: int) -> int:
    """Without the key: noise, bent greetings and handshakes, other protocols."""
    openings = (
        _ZMTP,
        _ZMTP + _CURVE_HELLO,
        _ZMTP + _CURVE_HELLO + _CURVE_INITIATE,
        _NULL,
        _NULL + b"\x04\x19\x05READY",
        *_HTTP,
    )
    for _ in range(count // _A_STREAM):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(
                ("127.0.0.1", dice.choice(target.ports + target.data_ports)), _SEND_S
            ) as unauthenticated,
        ):
            pieces = [
                dice.some_bytes() if dice.happens(0.2) else dice.bent(dice.choice(openings)) for _ in range(_A_STREAM)
            ]
            unauthenticated.sendall(b"".join(pieces))
    return count // _A_STREAM * _A_STREAM


def _wrong_key(dice: Dice, target: Target, count: int) -> int:
    """With the key of another cluster: proper handshakes that must fail."""
    for _ in range(count):
        try:
            channel = ZmqChannel.connect(f"127.0.0.1:{dice.choice(target.ports)}", ClusterKey.generate())
        except RemoteError:
            continue
        channel.close()
        raise AssertionError("an unauthenticated peer got in")
    return count


def _member(dice: Dice, target: Target, count: int) -> int:
    """With the key: any message in any order, before and after Hello, as client, worker or master."""

    def dial() -> Channel:
        return ZmqChannel.connect(f"127.0.0.1:{dice.choice(target.ports)}", target.key)

    return _speak(dice, dial, count, dice.message)


def _unix_member(dice: Dice, target: Target, count: int) -> int:
    """The same at a node's unix socket."""
    return _speak(dice, lambda: UnixChannel.connect(dice.choice(target.nodes)), count, dice.message)


def _unix_stream(dice: Dice, target: Target, count: int) -> int:
    """At a node's unix socket: bent framing, lying lengths, noise."""
    return _stream(dice, target.nodes, count, dice.message)


def _actor_stream(dice: Dice, target: Target, count: int) -> int:
    """At an actor's own socket: any call, from an unknown peer."""
    return _stream(dice, target.actors, count, dice.call)


def _relayed(dice: Dice, target: Target, count: int) -> int:
    """Over TCP, as a peer that attaches itself to an actor of another program."""
    from parl_remote._messages import AttachActor
    from parl_remote._messages.wire import encode

    thrown = 0
    while thrown < count:
        channel = ZmqChannel.connect(f"127.0.0.1:{dice.choice(target.ports)}", target.key)
        with contextlib.suppress(RemoteError):
            channel.send([dice.hello(Role.CLIENT).replace(b'"to":"master"', b'"to":"worker"')], _SEND_S)
            channel.send([encode(AttachActor(dice.choice(target.leases)))], _SEND_S)
            for _ in range(_A_CONNECTION):
                channel.send(dice.frames(dice.call), _SEND_S)
        channel.close()
        thrown += _A_CONNECTION
    return thrown


def _sealed_link(dice: Dice, target: Target) -> Channel:
    """Return a sealed link to a node, opened as a program on another host opens it."""
    from parl_remote._links.handshake import ClientIdentity, greet
    from parl_remote._messages.parts import OpenSealed, SealedOpened
    from parl_remote._messages.wire import decode, encode
    from parl_remote._transport.sealed import SealedChannel

    link = ZmqChannel.connect(f"127.0.0.1:{dice.choice(target.ports)}", target.key)
    try:
        greet(link, ClientIdentity("a peer").hello(Role.WORKER), _GREETING_S)
        link.send([encode(OpenSealed(1, link.found[1]))], _SEND_S)
        opened = decode(link.receive(_GREETING_S)[0])
    finally:
        link.close()
    if not isinstance(opened, SealedOpened):
        raise RemoteError("a node without a worker has no sealed connections")
    ticket, key = bytes.fromhex(opened.ticket), bytes.fromhex(opened.key)
    return SealedChannel.open("127.0.0.1", opened.port, ticket, key, limits=Limits(), timeout_s=_GREETING_S)


def _sealed_member(dice: Dice, target: Target, count: int) -> int:
    """Over a sealed connection to a node: any message in any order, before and after Hello."""
    return _speak(dice, lambda: _sealed_link(dice, target), count, dice.message)


def _sealed_caller(dice: Dice, target: Target, count: int) -> int:
    """Over a sealed connection that is passed on to an actor of another program: any call."""
    from parl_remote._links.handshake import ClientIdentity, greet
    from parl_remote._messages import AttachActor
    from parl_remote._messages.wire import encode

    thrown = 0
    while thrown < count:
        try:
            channel = _sealed_link(dice, target)
        except RemoteError:
            continue
        with contextlib.suppress(RemoteError):
            greet(channel, ClientIdentity("a peer").hello(Role.WORKER), _GREETING_S)
            channel.send([encode(AttachActor(dice.choice(target.leases)))], _SEND_S)
            channel.receive(_GREETING_S)
            for _ in range(_A_CONNECTION):
                channel.send(dice.frames(dice.call), _SEND_S)
        channel.close()
        thrown += _A_CONNECTION
    return thrown


def _monitor(dice: Dice, target: Target, count: int) -> int:
    """At the monitor's port: bent requests, and proper ones without its token."""
    if target.monitor is None:
        return 0
    for _ in range(count // _A_REQUEST):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", target.monitor), _SEND_S) as browser,
        ):
            browser.settimeout(_SEND_S)
            for _ in range(_A_REQUEST):
                browser.sendall(dice.bent(dice.choice(_HTTP)) if dice.happens(0.8) else dice.some_bytes())
            browser.shutdown(socket.SHUT_WR)
            while browser.recv(65536):
                pass
    return count // _A_REQUEST * _A_REQUEST


def _speak(dice: Dice, dial: Callable[[], Channel], count: int, make: Callable[[], bytes]) -> int:
    """A peer that is dropped comes again."""
    thrown = 0
    while thrown < count:
        try:
            channel = dial()
        except RemoteError:
            continue
        with contextlib.suppress(RemoteError):
            if dice.happens(0.9):
                channel.send([dice.hello()], _SEND_S)
            for _ in range(_A_CONNECTION):
                channel.send(dice.frames(make), _SEND_S)
                thrown += 1
        channel.close()
    return thrown


def _stream(dice: Dice, paths: tuple[str, ...], count: int, make: Callable[[], bytes]) -> int:
    thrown = 0
    while thrown < count:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(_SEND_S)
            peer.connect(dice.choice(paths))
            if dice.happens(0.7):
                peer.sendall(dice.stream([dice.hello()]))
            pieces = [
                dice.some_bytes() if dice.happens(0.05) else dice.stream(dice.frames(make))
                for _ in range(_A_CONNECTION)
            ]
            peer.sendall(b"".join(pieces))
        thrown += _A_CONNECTION
    return thrown


WAYS: dict[str, tuple[Callable[[Dice, Target, int], int], float]] = {
    "tcp, without the key": (_raw_tcp, 0.2),
    "tcp, with another key": (_wrong_key, 0.0002),
    "tcp, with the key": (_member, 0.15),
    "tcp, with the key, to an actor of another program": (_relayed, 0.1),
    "sealed, to a node": (_sealed_member, 0.05),
    "sealed, to an actor of another program": (_sealed_caller, 0.05),
    "unix socket of a node, messages": (_unix_member, 0.15),
    "unix socket of a node, stream": (_unix_stream, 0.15),
    "unix socket of an actor, stream": (_actor_stream, 0.13),
    "http, the monitor": (_monitor, 0.02),
}
