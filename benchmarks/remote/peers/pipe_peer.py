"""By hand: one forked process per actor and a `multiprocessing.Pipe`, without the features of an actor system."""

import contextlib
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from peer import NotOffered
from subject import Subject

_fork = multiprocessing.get_context("fork")
_IN_FLIGHT = 100  # more small messages would fill the socket in both directions, so that both ends wait for ever


def _serve(ours: Connection, theirs: Connection) -> None:
    theirs.close()
    subject = Subject()
    while True:
        try:
            message = ours.recv()
        except EOFError:
            return
        if message is None:
            return
        method, args = message
        ours.send(getattr(subject, method)(*args))


class _Actor:
    def __init__(self) -> None:
        self.pipe, other = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(other, self.pipe), daemon=True)
        self.process.start()
        other.close()

    def call(self, method: str, *args: Any) -> Any:
        self.pipe.send((method, args))
        return self.pipe.recv()

    def submit(self, method: str, *args: Any) -> None:
        self.pipe.send((method, args))

    def collect(self, ticket: None) -> Any:  # noqa: ARG002
        return self.pipe.recv()

    def drop(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            self.pipe.send(None)  # closing is not enough, because processes forked later have a copy of this end
        self.pipe.close()
        self.process.join()


class _Pipe:
    imports = "import multiprocessing.connection, multiprocessing.reduction"
    lost = (EOFError, ConnectionResetError)
    has_slots = False

    def start(self, slots: int) -> None:
        """Do nothing."""

    def create(self, *, wait: bool = True) -> _Actor:  # noqa: ARG002
        return _Actor()

    def burst(self, actors: Sequence[_Actor], calls: int) -> None:
        pipes = [actor.pipe for actor in actors]
        n = len(pipes)
        ahead = min(calls, _IN_FLIGHT * n)
        for i in range(ahead):
            pipes[i % n].send(("nothing", ()))
        for i in range(calls):
            pipes[i % n].recv()
            if i + ahead < calls:
                pipes[(i + ahead) % n].send(("nothing", ()))

    def broadcast(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        message = ForkingPickler.dumps((method, (value,)))
        for actor in actors:
            actor.pipe.send_bytes(message)
        for actor in actors:
            actor.pipe.recv()

    def broadcast_stored(self, actors: Sequence[_Actor], method: str, value: Any) -> None:  # noqa: ARG002
        raise NotOffered("it stores nothing")

    def stop(self) -> None:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()


PEER = _Pipe()
