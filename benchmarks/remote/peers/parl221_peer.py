"""PARL 2.2.1, this project's forerunner, as its documents say: `xparl start`, then connect; one CPU an actor."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer import NotOffered
from subject import Subject

import parl


@parl.remote_class
class Waiting(Subject):
    pass


@parl.remote_class(wait=False)
class Pipelined(Subject):
    pass


class _Actor:
    def __init__(self, wait: bool) -> None:
        self.proxy: Any = Waiting() if wait else Pipelined()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def submit(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def collect(self, ticket: Any) -> Any:
        return ticket.get()

    def drop(self) -> None:
        del self.proxy


class _Parl221:
    imports = "import parl"
    lost = (Exception,)
    has_slots = True

    def start(self, slots: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        beside = Path(sys.executable).with_name("xparl")
        self._xparl = str(beside) if beside.exists() else str(shutil.which("xparl"))
        command = [self._xparl, "start", "--port", str(port), "--cpu_num", str(slots)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        parl.connect(f"localhost:{port}")

    def create(self, *, wait: bool = True) -> _Actor:
        return _Actor(wait)

    def burst(self, actors: Sequence[_Actor], calls: int) -> None:
        proxies = [actor.proxy for actor in actors]
        n = len(proxies)
        for future in [proxies[i % n].nothing() for i in range(calls)]:
            future.get()

    def broadcast(self, actors: Sequence[_Actor], method: str, value: Any) -> None:
        for future in [getattr(actor.proxy, method)(value) for actor in actors]:
            future.get()

    def broadcast_stored(self, *_: object) -> None:
        raise NotOffered("it has no put")

    def stop(self) -> None:
        parl.disconnect()  # `xparl stop` would end every cluster of this host; what is left is ended by its mark


PEER = _Parl221()
