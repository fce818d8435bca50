"""Calls between hosts and through the worker's relay, compared with raw zmq ROUTER/DEALER with CURVE, in turns.

    python benchmarks/cluster/between_hosts.py

Both run over loopback; `PARL_FORCE_TCP` keeps parl-remote from using unix sockets. The row with a round trip uses a
delaying relay in user space (`parl_remote.testing.Line`), in the process of each side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

MB = 10**6
ROUND_TRIP_S = 0.02
IN_FLIGHT = 1000


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(call: Callable[[], object], echo: Callable[[object], object], calls: int) -> dict[str, float]:
    for _ in range(50):
        call()
    laps = sorted(timed(call) for _ in range(calls))
    array = np.ones(100 * MB // 8)
    echo(array)
    transfer = statistics.median(timed(lambda: echo(array)) for _ in range(5))
    return {"p50_us": laps[len(laps) // 2] * 1e6, "p99_us": laps[len(laps) * 99 // 100] * 1e6,
            "gb_s": 2 * array.nbytes / transfer / 1e9}  # fmt: skip


def parl_side(address: str, calls: int) -> dict[str, float]:
    import parl_remote

    @parl_remote.remote_class
    class Echo:
        def nothing(self) -> None:
            return None

        def echo(self, array: object) -> object:
            return array

        def size(self, array: np.ndarray) -> int:
            return array.nbytes

    parl_remote.connect(address)
    actor: Any = Echo()
    figures = measure(actor.nothing, actor.echo, calls)
    array = parl_remote.put(np.ones(100 * MB // 8))
    figures["stored_ms"] = statistics.median(timed(lambda: actor.size(array)) for _ in range(5)) * 1e3
    parl_remote.disconnect()
    port = address.rpartition(":")[2]
    with line_to("127.0.0.1", int(port), listen="127.0.2.1") as far:
        parl_remote.connect(far)
        distant: Any = parl_remote.with_options(Echo, wait=False)()
        submit = distant.nothing

        def burst() -> None:
            for future in [submit() for _ in range(IN_FLIGHT)]:
                future.result()

        figures["far_ms"] = median_of(burst)
        parl_remote.disconnect()
    return figures


@contextmanager
def line_to(host: str, port: int, listen: str) -> Iterator[str]:
    """Start a relay to a port with a round trip of `ROUND_TRIP_S`, and return its address with the same port."""
    from parl_remote.testing import Conditions, Line

    line = Line((host, port), listen=(listen, port))
    line.set(Conditions(delay_s=ROUND_TRIP_S / 2))
    try:
        yield line.address
    finally:
        line.close()


def median_of(burst: Callable[[], None]) -> float:
    """Return the milliseconds of the median burst."""
    burst()
    return statistics.median(timed(burst) for _ in range(5)) * 1e3


def zmq_server(pipe: int) -> None:
    """Echo every message from a ROUTER."""
    import zmq.auth
    from zmq.auth.thread import ThreadAuthenticator

    public, secret = zmq.curve_keypair()
    context = zmq.Context()
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
    router = context.socket(zmq.ROUTER)
    router.curve_server, router.curve_publickey, router.curve_secretkey = True, public, secret
    port = router.bind_to_random_port("tcp://127.0.0.1")
    os.write(pipe, json.dumps([port, public.decode()]).encode())
    os.close(pipe)
    while True:
        router.send_multipart(router.recv_multipart(copy=False), copy=False)


def zmq_side(calls: int) -> dict[str, float]:
    import zmq

    reading, writing = os.pipe()
    server = subprocess.Popen([sys.executable, __file__, "--zmq-server", str(writing)], pass_fds=(writing,))
    os.close(writing)
    port, public = json.loads(os.read(reading, 4096))
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.curve_serverkey = public.encode()
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.connect(f"tcp://127.0.0.1:{port}")

    def call() -> None:
        dealer.send(b"call")
        dealer.recv()

    def echo(array: Any) -> None:
        dealer.send(array, copy=False)
        dealer.recv(copy=False)

    figures = measure(call, echo, calls)
    with line_to("127.0.0.1", port, listen="127.0.2.1") as far:
        distant: Any = zmq.Context.instance().socket(zmq.DEALER)
        distant.curve_serverkey = public.encode()
        distant.curve_publickey, distant.curve_secretkey = zmq.curve_keypair()
        distant.connect(f"tcp://{far}")

        def burst() -> None:
            for _ in range(IN_FLIGHT):
                distant.send(b"call")
            for _ in range(IN_FLIGHT):
                distant.recv()

        figures["far_ms"] = median_of(burst)
        distant.close(0)
    dealer.close(0)
    server.kill()
    server.wait()
    return figures


def in_own_process(*arguments: str, **variables: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8953)
    parser.add_argument("--side", choices=["parl", "zmq"])
    parser.add_argument("--zmq-server", type=int)
    options = parser.parse_args()
    if options.zmq_server:
        zmq_server(options.zmq_server)
    if options.side:
        address = f"localhost:{options.port}"
        print(json.dumps(parl_side(address, options.calls) if options.side == "parl" else zmq_side(options.calls)))
        return
    with tempfile.TemporaryDirectory() as home:
        variables = {"PARL_MONITOR": "0", "PARL_RUN_DIR": f"{home}/run", "PARL_FORCE_TCP": "1"}
        xparl, port = [sys.executable, "-m", "parl_remote.cli"], str(options.port)
        environment = {**os.environ, **variables}
        subprocess.run([*xparl, "start", "--port", port, "--cpu_num", "1"], env=environment, check=True, stdout=2)
        common = ("--calls", str(options.calls), "--port", port)
        rounds = [
            {side: in_own_process("--side", side, *common, **variables) for side in ("zmq", "parl")}
            for _ in range(options.rounds)
        ]
        subprocess.run([*xparl, "stop", "--port", port], env=environment, check=True, stdout=2)
    print("| what | raw zmq + CURVE | parl-remote | ratio | target |\n| --- | --- | --- | --- | --- |")
    for figure, what, target in (
        ("p50_us", "blocking empty call, p50, us", "<= 2x"),
        ("p99_us", "the same, p99, us", ""),
        ("gb_s", "100 MB array there and back, GB/s", ">= 0.75x"),
        ("far_ms", f"{IN_FLIGHT} calls in flight at a round trip of 20 ms, ms", "<= 110 ms"),
    ):
        floor, ours = (statistics.median(one[side][figure] for one in rounds) for side in ("zmq", "parl"))
        print(f"| {what} | {floor:.3g} | {ours:.3g} | {ours / floor:.2f} | {target} |")
    stored = statistics.median(one["parl"]["stored_ms"] for one in rounds)
    print(f"| call with a stored (put) 100 MB array that the worker has, ms | | {stored:.3g} | | |")


if __name__ == "__main__":
    main()
