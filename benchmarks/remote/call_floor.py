"""The lower bound of a blocking call: ours, a handwritten pipe, and handwritten code with our system calls, in turns.

    hatch run base:python benchmarks/remote/call_floor.py [--windows 20] [--one-cpu]

`by hand` has the same system calls as ours: a stream socket, a header, a pickle, and a peer that polls because it may
have several callers. It has one method and no exceptions, threads, futures, counters or cancellation. The script prints
medians over windows of the p50, and of the CPU time of a call in both processes, which depends less on the machine's
other load; then the time of an empty call that starts at each layer of the caller, from its socket up to the proxy.
With `--one-cpu` all processes share a CPU, so that none has to be woken on another CPU.
"""

import argparse
import multiprocessing
import os
import pickle
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from subject import SMALL, SMALL_ARRAYS, Subject

import parl
from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import Kind, pack
from parl_remote._program.proxy import reference_of
from parl_remote._transport.unix.sockets import PACK_ONE

_HEADER = struct.Struct("<IQBBHI")
_clock = time.perf_counter


def serve_pipe(end: Any) -> None:
    subject = Subject()
    while True:
        name, args = end.recv()
        end.send(getattr(subject, name)(*args))


def serve_socket(end: socket.socket) -> None:
    subject, poller, into = Subject(), select.poll(), bytearray(65536)
    poller.register(end, select.POLLIN)
    while True:
        poller.poll()
        got = end.recv_into(into, 0, socket.MSG_DONTWAIT)
        name, args = pickle.loads(memoryview(into)[_HEADER.size : got])
        end.send(_HEADER.pack(1, 0, 0, 0, 0, 0) + pickle.dumps(getattr(subject, name)(*args), 5))


def socket_caller(end: socket.socket) -> Callable[..., Any]:
    into = bytearray(65536)

    def call(name: str, *args: Any) -> Any:
        end.send(_HEADER.pack(1, 0, 0, 0, 0, 0) + pickle.dumps((name, args), 5))
        got = end.recv_into(into)
        return pickle.loads(memoryview(into)[_HEADER.size : got])

    return call


def cpu_us(pid: int) -> float:
    """Return the CPU time of a process's threads in microseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def layers(actor: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that make an empty call of an actor, starting at each layer of the caller."""
    ref = reference_of(actor)
    assert ref is not None
    connection: Any = ref.outbox.path
    channel = connection.channel
    connected: socket.socket = channel._socket
    number, into = ref.spec.methods["nothing"], bytearray(65536)

    def through_socket() -> None:
        frame = pack(Kind.CALL, 0, number, 0)[0]
        connected.send(PACK_ONE(1, len(frame)) + frame)
        connected.recv_into(into)

    def through_channel() -> None:
        channel.post(pack(Kind.CALL, 0, number, 0))
        channel.receive()

    def through_connection() -> None:
        future: RemoteFuture[Any] = RemoteFuture(None, ref, "nothing")
        connection.send(Call(int(Kind.CALL), 0, number, (), "nothing", ref), future)
        connection.wait_for(future, None)

    return {
        "socket": through_socket,
        "channel": through_channel,
        "connection, future": through_connection,
        "outbox, signals": lambda: ref.call("nothing", (), {}),
        "proxy": lambda: actor.nothing(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--windows",
        type=int,
        default=20,
        help="number of windows of 0.2 s per contender and kind of call (default: 20)",
    )
    parser.add_argument("--one-cpu", action="store_true", help="run all processes on the same CPU")
    options = parser.parse_args()
    windows = options.windows
    if options.one_cpu:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    machine.compile_sources()
    fork = multiprocessing.get_context("fork")
    ours_end, pipe_end = fork.Pipe()
    hand_end, socket_end = socket.socketpair()
    piped = fork.Process(target=serve_pipe, args=(pipe_end,), daemon=True)
    by_hand = fork.Process(target=serve_socket, args=(socket_end,), daemon=True)
    piped.start()
    by_hand.start()
    parl.connect()
    actor: Any = parl.remote_class(Subject)()

    def pipe(name: str, *args: Any) -> Any:
        ours_end.send((name, args))
        return ours_end.recv()

    ways: dict[str, tuple[Callable[..., Any], int]] = {
        "pipe": (pipe, piped.pid or 0),
        "by hand": (socket_caller(hand_end), by_hand.pid or 0),
        "parl": (lambda name, *args: getattr(actor, name)(*args), actor.pid()),
    }
    kinds: dict[str, tuple[Any, ...]] = {
        "empty": ("nothing",),
        "small dictionary": ("echo", SMALL),
        "eight arrays": ("ignore", SMALL_ARRAYS),
    }
    found: dict[tuple[str, str], list[tuple[float, float]]] = {(kind, way): [] for kind in kinds for way in ways}
    for number in range(1 + windows):
        for kind, args in kinds.items():
            for way, (call, pid) in ways.items():
                before, end, times = cpu_us(os.getpid()) + cpu_us(pid), _clock() + 0.2, []
                while (begun := _clock()) < end:
                    call(*args)
                    times.append(1e6 * (_clock() - begun))
                used = (cpu_us(os.getpid()) + cpu_us(pid) - before) / len(times)
                if number:  # the first window is a warm-up
                    found[kind, way].append((statistics.median(times), used))
    heads = ["p50, us (CPU of both processes)", *ways, "parl / pipe", "by hand / pipe"]
    print(f"load average {machine.load()}\n\n| {' | '.join(heads)} |\n| {' | '.join(['---'] * len(heads))} |")
    for kind in kinds:
        middle = {way: [statistics.median(column) for column in zip(*found[kind, way], strict=True)] for way in ways}
        cells = [f"{p50:.1f} ({used:.1f})" for p50, used in middle.values()]
        ratios = []
        for way in ("parl", "by hand"):
            pairs = list(zip(found[kind, way], found[kind, "pipe"], strict=True))
            p50, used = (statistics.median(ours[i] / theirs[i] for ours, theirs in pairs) for i in (0, 1))
            ratios.append(f"{p50:.2f} ({used:.2f})")
        print(f"| {' | '.join([kind, *cells, *ratios])} |")
    print(f"\n| an empty call from | {' | '.join(by_layer := layers(actor))} |\n|{' --- |' * (1 + len(by_layer))}")
    of_layer: dict[str, list[float]] = {layer: [] for layer in by_layer}
    for _ in range(windows):
        for layer, empty_call in by_layer.items():
            end, times = _clock() + 0.1, []
            while (begun := _clock()) < end:
                empty_call()
                times.append(1e6 * (_clock() - begun))
            of_layer[layer].append(statistics.median(times))
    print(f"| p50, us | {' | '.join(f'{statistics.median(found):.1f}' for found in of_layer.values())} |")
    parl.disconnect()
    piped.kill()
    by_hand.kill()


if __name__ == "__main__":
    main()
