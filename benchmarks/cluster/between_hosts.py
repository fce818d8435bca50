"""Calls between hosts, the worker's relay included, beside raw zmq ROUTER/DEALER with CURVE: programs that take turns.

    python benchmarks/cluster/between_hosts.py

Both run over loopback; `PARL_FORCE_TCP` keeps parl-remote from using unix sockets.
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
from collections.abc import Callable

import numpy as np

MB = 10**6


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

    parl_remote.connect(address)
    actor = Echo()
    figures = measure(actor.nothing, actor.echo, calls)
    parl_remote.disconnect()
    return figures


def zmq_server(pipe: int) -> None:
    """What answers: a ROUTER that sends everything back."""
    import zmq
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

    def echo(array: object) -> None:
        dealer.send(array, copy=False)
        dealer.recv(copy=False)

    figures = measure(call, echo, calls)
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
        variables = {"PARL_RUN_DIR": f"{home}/run", "PARL_FORCE_TCP": "1"}
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
    ):
        floor, ours = (statistics.median(one[side][figure] for one in rounds) for side in ("zmq", "parl"))
        print(f"| {what} | {floor:.3g} | {ours:.3g} | {ours / floor:.2f} | {target} |")


if __name__ == "__main__":
    main()
