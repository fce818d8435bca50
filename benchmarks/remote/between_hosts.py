"""Calls and 100 MB arrays between hosts, beside TLS 1.3 and raw CURVE by hand, in turns.

    hatch run base:python benchmarks/remote/between_hosts.py [--rounds 5] [--without cryptography]

Everything is on this machine's loopback, and PARL_FORCE_TCP keeps the program from the shorter way. `--without
cryptography` hides that library from the program, so that the relay is measured. TLS takes a certificate of the moment,
which the `openssl` program makes.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zmq

MB = 10**6
SIZE = 100 * MB
_PAGE = 4096


def fork(action: Callable[[], None]) -> None:
    """Run an action in a process of its own, which ends with it."""
    if not os.fork():
        try:
            action()
        finally:
            os._exit(0)


class Tls:
    """A TLS 1.3 stream by hand."""

    def __init__(self, directory: Path) -> None:
        key, certificate = directory / "key.pem", directory / "certificate.pem"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*make, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
        listening = socket.create_server(("127.0.0.1", 0))
        fork(lambda: self._serve(listening, certificate, key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificate)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        plain = socket.create_connection(listening.getsockname())
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = context.wrap_socket(plain)
        self._data = np.full(SIZE, 1, np.uint8)

    @staticmethod
    def _serve(listening: socket.socket, certificate: Path, key: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        plain, _ = listening.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = context.wrap_socket(plain, server_side=True)
        data = np.full(SIZE, 1, np.uint8)
        while asked := stream.recv(1):
            if asked == b"u":
                stream.sendall(bytes([received(stream) % 251]))
            else:
                stream.sendall(data.data if asked == b"d" else b"p")

    def call(self) -> None:
        self._stream.sendall(b"p")
        self._stream.recv(1)

    def up(self) -> None:
        self._stream.sendall(b"u")
        self._stream.sendall(self._data.data)
        self._stream.recv(1)

    def down(self) -> None:
        self._stream.sendall(b"d")
        received(self._stream)


def received(stream: ssl.SSLSocket) -> int:
    """Read an array, and one byte of each page of it."""
    array = np.empty(SIZE, np.uint8)
    view, got = array.data, 0
    while got < SIZE:
        got += stream.recv_into(view[got:])
    return int(array[::_PAGE].sum())


class Curve:
    """A DEALER and a ROUTER with CURVE by hand."""

    def __init__(self) -> None:
        public, secret = zmq.curve_keypair()
        reader, writer = os.pipe()
        fork(lambda: self._serve(writer, public, secret))
        port = int(os.read(reader, 10))
        self._dealer: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
        self._dealer.curve_serverkey = public
        self._dealer.curve_publickey, self._dealer.curve_secretkey = zmq.curve_keypair()
        self._dealer.connect(f"tcp://127.0.0.1:{port}")

    @staticmethod
    def _serve(writer: int, public: bytes, secret: bytes) -> None:
        router: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = public, secret
        os.write(writer, str(router.bind_to_random_port("tcp://127.0.0.1")).encode())
        parent = os.getppid()
        while os.getppid() == parent:
            if router.poll(1000):
                router.send_multipart(router.recv_multipart())

    def call(self) -> None:
        self._dealer.send(b"12345678")
        self._dealer.recv()


def latency_us(call: Callable[[], object]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(1200):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times[200:])


def speed(transfer: Callable[[], object]) -> float:
    """Return GB/s, the first time aside."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        transfer()
        times.append(time.perf_counter() - begun)
    return SIZE / 1e9 / statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", choices=["cryptography"], help="what to hide from the program")
    chosen = parser.parse_args()
    if chosen.without:
        sys.modules[chosen.without] = None  # type: ignore[assignment]  # so that importing it fails
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"PARL_RUN_DIR": directory, "PARL_FORCE_TCP": "1", "PARL_MONITOR": "0"}
        tls, curve = Tls(Path(directory)), Curve()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        xparl = [sys.executable, "-m", "parl_remote.cli"]
        subprocess.run([*xparl, "start", "--port", port, "--cpu_num", "1"], check=True, capture_output=True)
        try:
            measure(f"127.0.0.1:{port}", tls, curve, chosen.rounds)
        finally:
            subprocess.run([*xparl, "stop", "--port", port], check=True, capture_output=True)


def measure(address: str, tls: Tls, curve: Curve, rounds: int) -> None:
    """Print a table of all, measured in turns."""
    from subject import Subject

    import parl_remote

    parl_remote.connect(address)
    actor = parl_remote.remote_class(Subject)()
    array = np.full(SIZE, 1, np.uint8)
    actor.prepare(SIZE)
    rows: dict[str, tuple[Callable[[Callable[[], object]], float], Callable[[], object]]] = {
        "call, TLS by hand, us": (latency_us, tls.call),
        "call, raw CURVE, us": (latency_us, curve.call),
        "call, parl, us": (latency_us, actor.nothing),
        "100 MB there, TLS by hand, GB/s": (speed, tls.up),
        "100 MB there, parl, GB/s": (speed, lambda: actor.take(array)),
        "100 MB there, parl.put and one reader, GB/s": (speed, lambda: actor.ignore(parl_remote.put(array))),
        "100 MB back, TLS by hand, GB/s": (speed, tls.down),
        "100 MB back, parl, GB/s": (speed, lambda: int(actor.give()[::_PAGE].sum())),
    }
    found: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(rounds):
        for row, (how, what) in rows.items():
            found[row].append(how(what))
    print("| what | median of rounds | all |\n| --- | --- | --- |")
    for row, values in found.items():
        print(f"| {row} | {statistics.median(values):.3g} | {', '.join(f'{value:.3g}' for value in values)} |")
    parl_remote.disconnect()


if __name__ == "__main__":
    main()
