"""Calls and 100 MB arrays between hosts, compared in turns with handwritten TLS 1.3, AES-GCM records and raw CURVE.

    hatch run base:python benchmarks/remote/between_hosts.py [--rounds 5] [--without cryptography]

Everything runs over this machine's loopback; PARL_FORCE_TCP keeps the program from using unix sockets. `--without
cryptography` hides that library from the program, so that the relay is measured. TLS uses a temporary certificate, made
by the `openssl` program. `AES-GCM by hand` is the minimum cost in Python of a stream of records of our size with that
library: seal, send, receive, open. The CPU time of the processes (for `put`, including the worker that receives the
value) depends less on the machine's other load than the speed does.
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
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import zmq

MB = 10**6
SIZE = 100 * MB
RECORD, TAG = 2**18, 16
CALLS, TRANSFERS = 1200, 5
_PAGE = 4096
_PROCESS_CLOCK = 2  # the id of a process's clock, as the kernel derives it from the process id


def fork(action: Callable[[], None]) -> int:
    """Run an action in a child process, and return the process id."""
    pid = os.fork()
    if not pid:
        try:
            action()
        finally:
            os._exit(0)
    return pid


class Tls:
    """A handwritten TLS 1.3 stream."""

    def __init__(self, directory: Path) -> None:
        key, certificate = directory / "key.pem", directory / "certificate.pem"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*make, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
        listening = socket.create_server(("127.0.0.1", 0))
        self.pid = fork(lambda: self._serve(listening, certificate, key))
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
    """Receive an array, and read one byte of each page."""
    array = np.empty(SIZE, np.uint8)
    view, got = array.data, 0
    while got < SIZE:
        got += stream.recv_into(view[got:])
    return int(array[::_PAGE].sum())


class Records:
    """A handwritten stream of records under AES-256-GCM."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(bytes(32))
        self._count = 0
        listening = socket.create_server(("127.0.0.1", 0))
        self.pid = fork(lambda: self._serve(listening))
        self._stream = socket.create_connection(listening.getsockname())
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = np.full(SIZE, 1, np.uint8)

    def _serve(self, listening: socket.socket) -> None:
        self._stream, _ = listening.accept()
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = np.full(SIZE, 1, np.uint8)
        while asked := self._stream.recv(1):
            if asked == b"u":
                self._receive()
            else:
                self._send(data)
            self._stream.sendall(b"p")

    def _send(self, data: np.ndarray) -> None:
        for start in range(0, SIZE, RECORD):
            self._count += 1
            nonce = self._count.to_bytes(12, "little")
            self._stream.sendall(self._cipher.encrypt(nonce, data.data[start : start + RECORD], None))

    def _receive(self) -> None:
        array = np.empty(SIZE, np.uint8)
        into = memoryview(bytearray(RECORD + TAG))
        for start in range(0, SIZE, RECORD):
            size = min(RECORD, SIZE - start)
            got = 0
            while got < size + TAG:
                got += self._stream.recv_into(into[got : size + TAG])
            self._count += 1
            plain = self._cipher.decrypt(self._count.to_bytes(12, "little"), into[:got], None)
            array[start : start + size] = np.frombuffer(plain, np.uint8)
            int(array[start : start + size : _PAGE].sum())

    def up(self) -> None:
        self._stream.sendall(b"u")
        self._send(self._data)
        self._stream.recv(1)

    def down(self) -> None:
        self._stream.sendall(b"d")
        self._receive()
        self._stream.recv(1)


class Curve:
    """A handwritten DEALER and ROUTER with CURVE."""

    def __init__(self) -> None:
        public, secret = zmq.curve_keypair()
        reader, writer = os.pipe()
        self.pid = fork(lambda: self._serve(writer, public, secret))
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
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times[200:])


def speed(transfer: Callable[[], object]) -> float:
    """Return the speed in GB/s, without the first transfer."""
    times = []
    for _ in range(TRANSFERS):
        begun = time.perf_counter()
        transfer()
        times.append(time.perf_counter() - begun)
    return SIZE / 1e9 / statistics.median(times[1:])


TIMES: dict[Callable[..., float], int] = {latency_us: CALLS, speed: TRANSFERS}


def cpu_ms(pids: Iterable[int]) -> float:
    """Return the CPU time of processes, including threads that have ended."""
    return 1e3 * sum(time.clock_gettime(~pid << 3 | _PROCESS_CLOCK) for pid in pids)


def ancestors(pid: int) -> list[int]:
    """Return the ancestors of a process, without the system's first process."""
    found = []
    while (pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) > 1:
        found.append(pid)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", choices=["cryptography"], help="library to hide from the program")
    chosen = parser.parse_args()
    if chosen.without:
        sys.modules[chosen.without] = None  # type: ignore[assignment]  # so that importing it fails
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"PARL_RUN_DIR": directory, "PARL_FORCE_TCP": "1", "PARL_MONITOR": "0"}
        tls, curve, records = Tls(Path(directory)), Curve(), None if chosen.without else Records()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        xparl = [sys.executable, "-m", "parl_remote.cli"]
        subprocess.run([*xparl, "start", "--port", port, "--cpu_num", "1"], check=True, capture_output=True)
        try:
            measure(f"127.0.0.1:{port}", tls, curve, records, chosen.rounds)
        finally:
            subprocess.run([*xparl, "stop", "--port", port], check=True, capture_output=True)


def measure(address: str, tls: Tls, curve: Curve, records: Records | None, rounds: int) -> None:
    """Measure all contenders in turns and print a table."""
    from subject import Subject

    import parl_remote

    parl_remote.connect(address)
    actor = parl_remote.remote_class(Subject)()
    array = np.full(SIZE, 1, np.uint8)
    actor.prepare(SIZE)
    ours = [actor.pid()]
    with_worker = ours + ancestors(*ours)  # the worker receives the values of `put`
    rows: dict[str, tuple[Callable[[Callable[[], object]], float], Callable[[], object], list[int]]] = {
        "call, TLS by hand": (latency_us, tls.call, [tls.pid]),
        "call, raw CURVE": (latency_us, curve.call, [curve.pid]),
        "call, parl": (latency_us, actor.nothing, ours),
        "100 MB there, TLS by hand": (speed, tls.up, [tls.pid]),
        "100 MB there, parl": (speed, lambda: actor.take(array), ours),
        "100 MB there, parl.put and one reader": (speed, lambda: actor.ignore(parl_remote.put(array)), with_worker),
        "100 MB back, TLS by hand": (speed, tls.down, [tls.pid]),
        "100 MB back, parl": (speed, lambda: int(actor.give()[::_PAGE].sum()), ours),
    }
    if records is not None:
        rows["100 MB there, AES-GCM by hand"] = speed, records.up, [records.pid]
        rows["100 MB back, AES-GCM by hand"] = speed, records.down, [records.pid]
    found: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for _ in range(rounds):
        for row, (how, what, pids) in rows.items():
            before = cpu_ms((os.getpid(), *pids))
            value = how(what)
            found[row].append((value, (cpu_ms((os.getpid(), *pids)) - before) / TIMES[how]))
    print("| us, or GB/s | median of rounds | to TLS by hand | CPU of all, ms | all |\n| --- | --- | --- | --- | --- |")
    for row, values in found.items():
        wall, cpu = zip(*values, strict=True)
        of_tls = [value for value, _ in found[f"{row.partition(',')[0]}, TLS by hand"]]
        quotient = statistics.median(one / other for one, other in zip(wall, of_tls, strict=True))
        cells = f"{statistics.median(wall):.3g} | {quotient:.2f} | {statistics.median(cpu):.3g}"
        print(f"| {row} | {cells} | {', '.join(f'{value:.3g}' for value in wall)} |")
    parl_remote.disconnect()


if __name__ == "__main__":
    main()
