"""Tests of the transport between hosts alone: authentication, errors of connecting, unauthenticated peers."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq
import zmq.utils.monitor
import zmq.utils.z85

from faults.polling import eventually
from faults.ports import unused_port
from parl_remote._config import Limits
from parl_remote._security import ClusterKey
from parl_remote._transport import Closed, Event, Opened, Received
from parl_remote._transport.addresses import Address
from parl_remote._transport.zmq import ZmqChannel, ZmqListener, sockets
from parl_remote._transport.zmq import channel as connecting
from parl_remote._transport.zmq.sockets import Kind, pack, pack_bare, unpack
from parl_remote.errors import AuthenticationFailed, ChannelClosed, ClusterUnreachable, RemoteProtocolError

KEY = ClusterKey.generate()
_NO_CLUSTER = r"not a PARL cluster|not as a PARL cluster does|something else listens there"
QUICK = Limits(connect_timeout_s=0.5)


class Served:
    """A listener that a thread polls, as a node's loop would."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.listener = ZmqListener("127.0.0.1", 0, KEY, limits=limits)
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self.listener.fileno(), select.POLLIN)
        while not self._stopping:
            if not self.listener.pending():
                poller.poll(10)
            events = self.listener.poll()
            with self._changed:
                self.events.extend(events)
                self._changed.notify_all()
            for event in events:
                if isinstance(event, Received):
                    with contextlib.suppress(ChannelClosed):
                        self.listener.send(event.peer, event.frames)

    def wait_for(self, happened: Callable[[], object], seconds: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, seconds), f"it did not happen; seen: {self.events[-5:]}"

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self.listener.close()


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.close()


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process that reads the key from its stdin."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    child.stdin.write(KEY.secret.hex() + "\n")
    child.stdin.flush()
    return child


def echo_works(served: Served) -> bool:
    channel = ZmqChannel.connect(served.listener.address, KEY)
    channel.send([b"echo"])
    answer = bytes(channel.receive(10.0)[0])
    channel.close()
    return answer == b"echo"


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize("monitor_first", [False, True])
def test_a_channel_that_nobody_closed_keeps_no_descriptors_of_others(served: Served, monitor_first: bool) -> None:
    assert echo_works(served)
    before = open_descriptors()
    channel = ZmqChannel.connect(served.listener.address, KEY)
    if monitor_first:  # as the garbage collector may do
        channel._monitor.close(0)
    del channel
    for _ in range(3):
        assert echo_works(served)
    eventually(lambda: open_descriptors() <= before)


def test_what_a_monitor_says_of_a_connection_is_not_kept() -> None:
    """Each lost connection comes with a random time, until a reconnection that never happens."""
    context = zmq.Context()
    says, monitor = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    says.bind("inproc://said")
    monitor.connect("inproc://said")
    for time_ms in range(86_400_000, 86_400_003):
        says.send_multipart([struct.pack("=Hi", zmq.EVENT_CONNECT_RETRIED, time_ms), b"tcp://127.0.0.1:1"])
    events = [*sockets.connection_events(monitor)]
    assert events == [(zmq.EVENT_CONNECT_RETRIED, time_ms) for time_ms in range(86_400_000, 86_400_003)]
    assert not {time_ms for _, time_ms in events} & {*zmq.Event._value2member_map_}
    context.destroy(0)


def test_another_clusters_key_is_refused_and_nothing_of_the_peer_is_seen(served: Served) -> None:
    with pytest.raises(AuthenticationFailed, match=r"refused our cluster key.*PARL_KEY_FILE"):
        ZmqChannel.connect(served.listener.address, ClusterKey.generate())
    assert echo_works(served)
    assert len([event for event in served.events if isinstance(event, Opened)]) == 1


def test_the_right_server_key_without_the_members_key_does_not_get_in(served: Served) -> None:
    """The server's public data are not enough to authenticate."""
    context = zmq.Context()
    unauthenticated = context.socket(zmq.DEALER)
    unauthenticated.curve_serverkey = zmq.curve_public(zmq.utils.z85.encode(KEY.derive("curve server")))
    unauthenticated.curve_publickey, unauthenticated.curve_secretkey = zmq.curve_keypair()
    monitor = unauthenticated.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    unauthenticated.connect(f"tcp://{served.listener.address}")
    unauthenticated.send(pack_bare(Kind.OPEN))
    assert monitor.poll(10_000)
    event = zmq.utils.monitor.recv_monitor_message(monitor)
    assert (event["event"], event["value"]) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
    assert served.listener.refused >= 1
    unauthenticated.disable_monitor()
    monitor.close(0)
    unauthenticated.close(0)
    context.term()
    assert served.events == []


@pytest.mark.parametrize("mechanism", ["none", "plain"])
def test_a_peer_without_curve_does_not_get_in(served: Served, mechanism: str) -> None:
    context = zmq.Context()
    unauthenticated = context.socket(zmq.DEALER)
    if mechanism == "plain":
        unauthenticated.plain_username, unauthenticated.plain_password = b"parl", b"parl"
    monitor = unauthenticated.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_DISCONNECTED
    )
    unauthenticated.connect(f"tcp://{served.listener.address}")
    unauthenticated.send(pack_bare(Kind.OPEN))
    assert monitor.poll(10_000)
    assert zmq.utils.monitor.recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
    unauthenticated.disable_monitor()
    monitor.close(0)
    unauthenticated.close(0)
    context.term()
    assert echo_works(served)
    assert len([event for event in served.events if isinstance(event, Opened)]) == 1


@pytest.fixture
def few_served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A listener of a process that may have a hundred descriptors, so that a dozen may be unauthenticated."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 100))
    server = Served(Limits(hello_timeout_s=60.0))
    yield server
    server.close()


@pytest.mark.parametrize("says", [b"", b"\xff", bytes.fromhex("ff00000000000000017f03") + b"\0CURVE" + bytes(47)])
def test_outsiders_that_come_and_stay_are_ended_long_before_descriptors_are(few_served: Served, says: bytes) -> None:
    member = ZmqChannel.connect(few_served.listener.address, KEY)
    few_served.wait_for(lambda: Opened in map(type, few_served.events))  # until then it has proved no more than they
    outsiders: list[socket.socket] = []
    for _ in range(60):
        one = socket.create_connection(("127.0.0.1", Address.parse(few_served.listener.address).port))
        with contextlib.suppress(OSError):  # it may be ended already
            one.sendall(says)
        outsiders.append(one)
    few_served.wait_for(lambda: few_served.listener.dropped_unauthenticated >= 60 - 12)
    for one in outsiders[: 60 - 12]:  # the oldest
        one.settimeout(60.0)
        with contextlib.suppress(ConnectionError):
            while one.recv(4096):
                pass
    member.send([b"still here"])
    assert bytes(member.receive(60.0)[0]) == b"still here"
    other = ZmqChannel.connect(few_served.listener.address, KEY)
    other.send([b"and I"])
    assert bytes(other.receive(60.0)[0]) == b"and I"
    for channel in (member, other):
        channel.close()
    for one in outsiders:
        one.close()


def test_a_port_without_a_listener_is_reported_at_once() -> None:
    port = unused_port()
    with pytest.raises(ClusterUnreachable, match=f"nothing listens at 127.0.0.1:{port}") as caught:
        ZmqChannel.connect(f"127.0.0.1:{port}", KEY)
    assert caught.value.address == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00" * 300]
)
def test_a_port_where_something_else_listens_is_reported(greeting: bytes) -> None:
    """The connection ends before or after zmq takes it for a peer, a matter of microseconds; both messages say so."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(greeting)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises((ClusterUnreachable, AuthenticationFailed), match=_NO_CLUSTER):
            ZmqChannel.connect(f"127.0.0.1:{other.getsockname()[1]}", KEY)
        thread.join(60.0)


def test_a_port_that_accepts_and_says_nothing_is_reported_within_the_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ClusterUnreachable, match=r"within 0\.5 s"),
    ):
        ZmqChannel.connect(f"127.0.0.1:{silent.getsockname()[1]}", KEY, limits=QUICK)


@pytest.mark.parametrize("address", ["no-such-host.invalid:1", "localhost", "localhost:0", "localhost:99999", "::1:5"])
def test_what_is_no_address_is_reported(address: str) -> None:
    with pytest.raises(ClusterUnreachable, match="cannot connect to"):
        ZmqChannel.connect(address, KEY, limits=QUICK)


def test_a_port_in_use_is_an_error_of_the_second_listener(served: Served) -> None:
    with pytest.raises(OSError, match="cannot listen on"):
        ZmqListener("127.0.0.1", Address.parse(served.listener.address).port, KEY)


def test_a_name_leads_to_the_interface_that_it_stands_for(served: Served) -> None:
    port = Address.parse(served.listener.address).port
    ZmqChannel.connect(f"localhost:{port}", KEY).close()


def test_a_waiting_thread_sees_a_message_that_was_announced_to_another_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = ZmqChannel.connect(served.listener.address, KEY)
    wait = channel._wait

    def wait_later(timeout_s: float | None) -> bool:
        while not channel.pending():  # as another thread asks, between this one's look and its wait
            pass
        return wait(timeout_s)

    monkeypatch.setattr(channel, "_wait", wait_later)
    channel.send([b"hello"])
    assert [bytes(frame) for frame in channel.receive(20.0)] == [b"hello"]
    channel.close()


def test_a_finalizer_may_send_while_its_thread_looks_for_a_message(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ZmqChannel.connect(served.listener.address, KEY)
    posted: list[bool] = []

    def readable(socket: Any) -> bool:  # the garbage collector may run where a list is made, between any two steps
        if not posted:
            posted.append(True)
            posted[0] = mine.post([b"the last words"])
        return sockets.readable(socket)

    monkeypatch.setattr(connecting, "readable", readable)
    assert mine.receive(60.0) == [b"the last words"]
    assert posted == [True]
    mine.close()


def test_a_peer_whose_process_is_killed_is_seen_at_once(served: Served) -> None:
    program = (
        "import sys; from parl_remote._transport.zmq import ZmqChannel; from parl_remote._security import ClusterKey\n"
        "channel = ZmqChannel.connect(sys.argv[1], ClusterKey(bytes.fromhex(sys.stdin.readline())))\n"
        "[channel.send([b'x']) for _ in range(100)]\n"
        "channel.receive()\n"
        "print('up', flush=True); channel.receive() and sys.stdin.read()\n"
    )
    child = started(program, served.listener.address)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    served.wait_for(lambda: len([event for event in served.events if isinstance(event, Received)]) == 100)
    child.kill()
    served.wait_for(lambda: any(isinstance(event, Closed) for event in served.events))
    child.communicate()


def test_a_peer_that_is_stopped_is_lost_after_the_liveness_limit() -> None:
    """Its kernel keeps the connection open, so only the heartbeats tell."""
    served = Served(Limits(heartbeat_interval_s=0.1, liveness_limit_s=0.5))
    program = (
        "import sys; from parl_remote._transport.zmq import ZmqChannel; from parl_remote._security import ClusterKey\n"
        "channel = ZmqChannel.connect(sys.argv[1], ClusterKey(bytes.fromhex(sys.stdin.readline())))\n"
        "print('up', flush=True); channel.receive()\n"
    )
    child = started(program, served.listener.address)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        served.wait_for(lambda: any(isinstance(event, Opened) for event in served.events))
        psutil.Process(child.pid).suspend()
        served.wait_for(lambda: any(isinstance(event, Closed) for event in served.events))
    finally:
        child.kill()
        child.communicate()
        served.close()


def test_posting_does_not_wait_for_a_peer_that_takes_nothing() -> None:
    program = (
        "import select, sys; from parl_remote._config import Limits; from parl_remote._security import ClusterKey\n"
        "from parl_remote._transport import Received; from parl_remote._transport.zmq import ZmqListener\n"
        "key = ClusterKey(bytes.fromhex(sys.stdin.readline()))\n"
        "listener = ZmqListener('127.0.0.1', 0, key, limits=Limits(liveness_limit_s=600.0))\n"
        "print(listener.address, flush=True)\n"
        "while True:\n"
        "    select.select([listener.fileno()], [], [], 0.01)\n"
        "    for event in listener.poll():\n"
        "        if isinstance(event, Received):\n"
        "            print(sum(map(len, event.frames)), sum(event.frames[-1][::4096]), flush=True)\n"
    )
    child = started(program)
    try:
        assert child.stdout is not None
        channel = ZmqChannel.connect(child.stdout.readline().strip(), KEY, limits=Limits(liveness_limit_s=600.0))
        psutil.Process(child.pid).suspend()
        data = bytearray(b"\1") * 16_000_000
        for _ in range(4):
            channel.post([b"long", data])
            channel.freeze()
        data[:] = bytes(len(data))  # which the peer never sees
        psutil.Process(child.pid).resume()
        assert [child.stdout.readline() for _ in range(4)] == [f"{len(data) + 4} {len(data) // 4096 + 1}\n"] * 4
        channel.close()
    finally:
        child.kill()
        child.communicate()


def test_a_channel_notices_that_its_listener_is_gone_without_a_word(tmp_path: Path) -> None:
    program = (
        "import sys, time; from parl_remote._transport.zmq import ZmqListener; "
        "from parl_remote._security import ClusterKey\n"
        "listener = ZmqListener('127.0.0.1', 0, ClusterKey(bytes.fromhex(sys.stdin.readline())))\n"
        "print(listener.address, flush=True)\n"
        "import select\n"
        "while True: select.select([listener], [], [], 0.01); listener.poll()\n"
    )
    child = started(program)
    assert child.stdout is not None
    channel = ZmqChannel.connect(child.stdout.readline().strip(), KEY)
    child.kill()
    with pytest.raises(ChannelClosed, match="was lost"):
        channel.receive(10.0)
    with pytest.raises(ChannelClosed):
        channel.send([b"x"])
    channel.close()
    child.communicate()


# -- the wire format ------------------------------------------------------------------------------------------------

HEAD_OF_ONE = b"\x01\x00\x00\x00\x01\x00\x00\x00"  # PARTS, one frame


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"\x00"],
        [b"\x09" + bytes(7)],
        [HEAD_OF_ONE],
        [b"\x00\x00\x00\x00\xff\xff\xff\xff"],
        [HEAD_OF_ONE + (2**63).to_bytes(8, "little")],
        [HEAD_OF_ONE + (5).to_bytes(8, "little"), b"four"],
        [HEAD_OF_ONE + (4).to_bytes(8, "little"), b"four", b"more"],
        [bytes(8), b"more"],
        [bytes(8) + b"more"],
    ],
)
def test_parts_that_are_no_message_are_an_error_of_the_peer(parts: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack([memoryview(part) for part in parts])


def test_frames_of_a_small_message_lie_as_arrays_want_to() -> None:
    frames = [b"x" * size for size in (3, 0, 9, 8)]
    (part,) = pack(frames)
    base = memoryview(part)
    _, found = unpack([base])
    start = np.frombuffer(base, np.uint8).ctypes.data
    assert [bytes(frame) for frame in found] == frames
    assert all((np.frombuffer(frame, np.uint8).ctypes.data - start) % 8 == 0 for frame in found if len(frame))


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [5], [2**14], [2**20, 0, 2**20 + 1, 3], [3 * 2**20]])
def test_a_message_comes_out_of_its_parts_as_it_went_in(sizes: list[int]) -> None:
    frames = [os.urandom(size) for size in sizes]
    parts = pack(frames)
    assert all(len(part) <= 2 * 2**20 for part in parts)
    kind, back = unpack([memoryview(part) for part in parts])
    assert kind in {Kind.INLINE, Kind.PARTS}
    assert [bytes(frame) for frame in back] == frames


# -- unauthenticated peers ---------------------------------------------------------------------------------------------


def random_bytes(dice: random.Random, template: bytes) -> bytes:
    """Half of it noise, half a real opening with some bytes changed."""
    if dice.random() < 0.5:
        return dice.randbytes(dice.randrange(1, 400))
    data = bytearray(template)
    for _ in range(dice.randrange(1, 6)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data[: dice.randrange(1, len(data) + 1)])


ZMTP_CURVE_OPENING = (
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(15) + bytes(33) + b"\x04\xc8\x05HELLO" + bytes(194)
)


def test_ten_thousand_strange_openings_without_the_key_have_no_effect(served: Served) -> None:
    dice = random.Random(7)
    address = Address.parse(served.listener.address)
    process = psutil.Process()
    assert echo_works(served)
    before = process.memory_info().rss
    for _ in range(500):  # each one with a burst of frames behind its opening
        with socket.create_connection((address.host, address.port)) as unauthenticated, contextlib.suppress(OSError):
            unauthenticated.sendall(b"".join(random_bytes(dice, ZMTP_CURVE_OPENING) for _ in range(20)))
    assert echo_works(served)
    assert process.memory_info().rss - before < 10 * 2**20
    assert len([event for event in served.events if isinstance(event, Opened)]) == 2


def test_ten_thousand_strange_messages_with_the_key_are_dropped_or_delivered(served: Served) -> None:
    dice = random.Random(8)
    context = zmq.Context()
    templates = [b"".join(map(bytes, pack([b"hello", b"world"]))), pack_bare(Kind.OPEN), pack_bare(Kind.BYE)]
    process = psutil.Process()
    assert echo_works(served)
    before = process.memory_info().rss
    for _ in range(20):
        member = context.socket(zmq.DEALER)
        client = zmq.utils.z85.encode(KEY.derive("curve client"))
        member.curve_serverkey = zmq.curve_public(zmq.utils.z85.encode(KEY.derive("curve server")))
        member.curve_secretkey, member.curve_publickey = client, zmq.curve_public(client)
        member.connect(f"tcp://{served.listener.address}")
        member.send(pack_bare(Kind.OPEN))
        for _ in range(500):
            parts = [random_bytes(dice, dice.choice(templates)) for _ in range(dice.randrange(1, 4))]
            member.send_multipart(parts)
        member.close(2000)
    context.term()
    assert echo_works(served)
    assert process.memory_info().rss - before < 20 * 2**20
