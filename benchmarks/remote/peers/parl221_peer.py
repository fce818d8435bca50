"""PARL 2.2.1, this project's predecessor, as in its manual: `xparl start`, then connect; one CPU per actor."""

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil
import zmq
from peer import NotOffered

with contextlib.redirect_stdout(sys.stderr):  # its log would mix with the output of a measurement
    from parl221_classes import Pipelined, Waiting

    import parl
    from parl.remote import remote_constants
    from parl.remote.exceptions import FutureFunctionError, RemoteError

_READY_WITHIN_S = 150.0  # 32 slots mean 64 interpreters
_LOOK_EVERY_S = 2.0


class _Actor:
    def __init__(self, wait: bool) -> None:
        self.wait = wait
        self.proxy: Any = Waiting() if wait else Pipelined()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def submit(self, method: str, *args: Any) -> Any:
        return getattr(self.proxy, method)(*args)

    def collect(self, ticket: Any) -> Any:
        return ticket.get()

    def drop(self) -> None:
        if not self.wait:
            self.proxy.destroy()  # otherwise its thread keeps the proxy alive
        del self.proxy


class _Parl221:
    imports = "import parl"
    lost = (RemoteError, FutureFunctionError)
    has_slots = True

    def start(self, slots: int) -> None:
        _refuse_an_environment_where_actors_die()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        xparl("start", "--port", str(port), "--cpu_num", str(slots))
        wait_for_worker(f"localhost:{port}", slots)
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
        """Do nothing; the end of the run finds all processes by their mark.

        `xparl stop` would stop every cluster on this host, and disconnecting waits for its heartbeats.
        """


def _refuse_an_environment_where_actors_die() -> None:
    version = tuple(int(part) for part in grpc.__version__.split(".")[:2])
    if version > (1, 45):
        raise RuntimeError(
            f"PARL 2.2.1 asks for grpcio 1.37.0; with {grpc.__version__} its heartbeat server does not answer after a "
            "fork, and every actor ends within 20 s: see the README for an environment that works"
        )


def xparl(*arguments: str) -> None:
    """Run a command of this interpreter's xparl."""
    command = [str(Path(sys.executable).with_name("xparl")), *arguments]
    quiet = subprocess.DEVNULL  # the processes that it starts keep its output open
    subprocess.run(command, check=True, stdin=quiet, stdout=quiet, stderr=quiet)


def wait_for_worker(address: str, slots: int) -> None:
    """Wait until all slots are available."""
    deadline = time.monotonic() + _READY_WITHIN_S
    look_again = 0.0
    while (vacant := _vacant_slots(address)) < slots:
        now = time.monotonic()
        if now > deadline:
            raise RuntimeError(f"PARL 2.2.1's worker had {vacant} of {slots} CPUs ready after {_READY_WITHIN_S:g} s")
        if now > look_again:
            if not _has_worker(address):  # it gives up if the master, started a second earlier, is not ready yet
                xparl("connect", "--address", address, "--cpu_num", str(slots))
            look_again = now + _LOOK_EVERY_S
        time.sleep(0.05)


def _vacant_slots(address: str) -> int:
    """Return the vacant CPUs that `xparl status` reports, without a process for each request."""
    with zmq.Context() as context, context.socket(zmq.REQ) as question:
        question.linger = 0
        question.rcvtimeo = 1000
        question.connect(f"tcp://{address}")
        question.send(remote_constants.STATUS_TAG)
        try:
            _, text = question.recv_multipart()
        except zmq.Again:
            return 0
    found = re.search(rb"(\d+) vacant cpus", text)
    return int(found[1]) if found else 0


def _has_worker(address: str) -> bool:
    wanted = ["--name", "worker", "--address", address]
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(line[i : i + len(wanted)] == wanted for i in range(len(line))):
            return True
    return False


PEER = _Parl221()
