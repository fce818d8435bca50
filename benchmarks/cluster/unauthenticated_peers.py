"""A million random and mutated messages to a node's port and sockets: does the node survive, and does it leak memory?

python benchmarks/cluster/unauthenticated_peers.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from parl_remote._config import environment
from parl_remote._messages import (
    AttachActor,
    Heartbeat,
    Hello,
    LeaseRelease,
    LeaseRequest,
    NodeJoin,
    Role,
    StartActor,
    StatusRequest,
)
from parl_remote._messages.wire import encode
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._resources import Resources
from parl_remote._run_files import RunFiles
from parl_remote._transport import Channel
from parl_remote._transport.unix import UnixChannel
from parl_remote._transport.zmq import ZmqChannel
from parl_remote.cli._session import ask_status
from parl_remote.errors import ChannelClosed
from parl_remote.testing import Process

MIB = 2**20
A_CONNECTION = 100  # messages, then a new one
OPENING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(48) + b"\x04\xc8\x05HELLO" + bytes(194)


def hello(dice: random.Random) -> bytes:
    to = dice.choice([Role.MASTER, Role.WORKER])
    return encode(Hello(dice.choice(list(Role)), to, f"fuzz{dice.random()}", 1, 1, "host", 1, {}, "fuzz"))


def templates(dice: random.Random) -> list[bytes]:
    one = Resources(cpu=1)
    messages = [LeaseRequest(1, one, 0.0, "A"), LeaseRelease("x"), StatusRequest(1), Heartbeat(1), StartActor("x"),
                AttachActor("x"), NodeJoin("fuzz", "host", (), "/", Resources())]  # fmt: skip
    return [hello(dice), *map(encode, messages)]


def mutated(dice: random.Random, frames: list[bytes]) -> list[bytes]:
    chosen = []
    for _ in range(dice.randrange(1, 3)):
        if dice.random() < 0.3:
            chosen.append(dice.randbytes(dice.randrange(200)))
            continue
        data = bytearray(dice.choice(frames))
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        chosen.append(bytes(data))
    return chosen


def without_the_key(dice: random.Random, port: int, count: int) -> None:
    for _ in range(count // A_CONNECTION):
        with socket.create_connection(("127.0.0.1", port)) as unauthenticated, contextlib.suppress(OSError):
            unauthenticated.sendall(b"".join(b"".join(mutated(dice, [OPENING])) for _ in range(A_CONNECTION)))


def as_a_peer(dice: random.Random, dial: Callable[[], Channel], count: int) -> None:
    frames = templates(dice)
    for _ in range(count // A_CONNECTION):
        channel = dial()
        with contextlib.suppress(ChannelClosed):
            if dice.random() < 0.7:
                channel.send([hello(dice)], 5.0)
            for _ in range(A_CONNECTION):
                channel.send(mutated(dice, frames), 5.0)
        channel.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--port", type=int, default=8954)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        variables = {**os.environ, "PARL_MONITOR": "0", "PARL_RUN_DIR": f"{home}/run"}
        xparl, port = [sys.executable, "-m", "parl_remote.cli"], str(options.port)
        subprocess.run([*xparl, "start", "--port", port, "--cpu_num", "1"], env=variables, check=True, stdout=2)
        found = environment(variables)
        cluster = ClusterAddress(f"127.0.0.1:{port}", found)
        ((_, record),) = RunFiles(Path(home) / "run").clusters()
        node = psutil.Process(record.process.pid)
        (unix,) = [path for path in Process(node.pid).unix_sockets if path.endswith("node.sock")]
        ways: dict[str, Callable[[random.Random, int], None]] = {
            "tcp, without the key": lambda dice, count: without_the_key(dice, options.port, count),
            "tcp, with the key": lambda dice, count: as_a_peer(
                dice, lambda: ZmqChannel.connect(f"127.0.0.1:{port}", cluster.key), count
            ),
            "unix socket": lambda dice, count: as_a_peer(dice, lambda: UnixChannel.connect(unix), count),
        }
        print("| way in | messages | seconds | memory of the node before, after, MB | alive |")
        print("| --- | --- | --- | --- | --- |")
        for way, throw in ways.items():
            dice = random.Random(f"{options.seed} {way}")
            throw(dice, 1000)  # one-time allocations do not count
            before, began = node.memory_info().rss, time.monotonic()
            throw(dice, options.messages // len(ways))
            ask_status(cluster.connect_master, found.limits)  # answered after all earlier messages
            seconds, after = time.monotonic() - began, node.memory_info().rss
            sizes = f"{before / MIB:.1f}, {after / MIB:.1f}"
            print(f"| {way} | {options.messages // len(ways)} | {seconds:.0f} | {sizes} | {node.is_running()} |")
        subprocess.run([*xparl, "stop", "--port", port], env=variables, check=True, stdout=2)


if __name__ == "__main__":
    main()
