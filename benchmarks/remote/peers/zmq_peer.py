"""By hand: a ROUTER in the driver and a DEALER in each actor over ipc, with arrays as separate frames."""

import multiprocessing
import pickle
import shutil
import tempfile
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import zmq
from peer import NotOffered
from subject import Subject

_server = multiprocessing.get_context("forkserver")


def _frames(value: Any) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    return [pickle.dumps(value, 5, buffer_callback=buffers.append), *buffers]


def _value(frames: Sequence[zmq.Frame]) -> Any:
    return pickle.loads(frames[0].buffer, buffers=[frame.buffer for frame in frames[1:]])


def _serve(address: str, identity: bytes) -> None:
    subject = Subject()
    socket = zmq.Context().socket(zmq.DEALER)
    _no_limits(socket)
    socket.identity = identity
    socket.connect(address)
    socket.send(b"here")
    while True:
        method, args = _value(socket.recv_multipart(copy=False))
        socket.send_multipart(_frames(getattr(subject, method)(*args)), copy=False)


def _no_limits(socket: Any) -> None:
    socket.set_hwm(0)
    socket.linger = 0


class _Actor:
    def __init__(self, peer: "_Zmq", identity: bytes) -> None:
        self.peer = peer
        self.identity = identity
        self.process = _server.Process(target=_serve, args=(peer.address, identity), daemon=True)
        self.process.start()
        peer.receive(self.identity)

    def call(self, method: str, *args: Any) -> Any:
        self.submit(method, *args)
        return _value(self.peer.receive(self.identity))

    def submit(self, method: str, *args: Any) -> None:
        self.peer.socket.send_multipart([self.identity, *_frames((method, args))], copy=False)

    def collect(self, ticket: None) -> Any:  # noqa: ARG002
        return _value(self.peer.receive(self.identity))

    def drop(self) -> None:
        self.process.kill()
        self.process.join()


class _Zmq:
    imports = "import multiprocessing, zmq"
    lost = ()
    has_slots = False
    context: zmq.Context[Any] | None = None

    def start(self, slots: int) -> None:  # noqa: ARG002
        _server.set_forkserver_preload(["subject", "zmq"])
        self.directory = tempfile.mkdtemp(prefix="bench-zmq-")
        self.address = f"ipc://{self.directory}/router"
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        _no_limits(self.socket)
        self.socket.bind(self.address)
        self.inbox: defaultdict[bytes, deque[list[zmq.Frame]]] = defaultdict(deque)
        self.made = 0

    def create(self, *, wait: bool = True) -> _Actor:  # noqa: ARG002
        self.made += 1
        return _Actor(self, b"%d" % self.made)

    def receive(self, identity: bytes) -> list[zmq.Frame]:
        inbox = self.inbox[identity]
        while not inbox:
            sender, *frames = self.socket.recv_multipart(copy=False)
            if sender.bytes == identity:
                return frames
            self.inbox[sender.bytes].append(frames)
        return inbox.popleft()

    def burst(self, actors: Sequence[_Actor], calls: int) -> None:
        socket = self.socket
        names = [actor.identity for actor in actors]
        n = len(names)
        message = pickle.dumps(("nothing", ()))
        for i in range(calls):
            socket.send_multipart([names[i % n], message])
        for _ in range(calls):
            pickle.loads(socket.recv_multipart()[1])

    def broadcast(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        frames = _frames((method, (value,)))
        for actor in actors:
            self.socket.send_multipart([actor.identity, *frames], copy=False)
        for actor in actors:
            self.receive(actor.identity)

    def broadcast_stored(self, actors: Sequence[_Actor], method: str, value: Any) -> None:  # noqa: ARG002
        raise NotOffered("it stores nothing")

    def stop(self) -> None:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        if self.context is not None:
            self.context.destroy(linger=0)
            shutil.rmtree(self.directory, ignore_errors=True)


PEER = _Zmq()
