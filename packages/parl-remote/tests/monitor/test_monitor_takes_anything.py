"""Random and mutated requests at the monitor's port: nothing ends it, nothing gets past the token, nothing is a 500."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

ROUNDS = 1500
PATHS = [
    "/",
    "/login",
    "/healthz",
    "/metrics",
    "/cluster",
    "/static/app.css",
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static//etc/passwd",
    "/api/v1/actors?sort=calls&order=desc&page=2&per_page=7&q=a+b",
    "/api/v1/actors/lease-1/log?position=0",
    "/api/v1/actors/lease-1/history?window=60",
    "/api/v1/actors/lease-1/kill",
    "/api/v1/actors/lease-1/stack",
    "/api/v1/nodes/map",
    "/api/v1/deaths/lease-1",
    "/logout",
]
HEADERS = [
    "Host: localhost",
    "Host: \xff\xfe",
    "Host:",
    "Authorization: Bearer",
    "Authorization: Bearer \xe4\xf6",
    "Authorization: Basic ==",
    "Cookie: parl_monitor_8137=\x7f; parl_monitor_8137=\xff",
    "X-CSRF-Token: \xe9",
    "Content-Length: 5",
    "Content-Length: -5",
    "Content-Length: 99999999999",
    "Transfer-Encoding: chunked",
    "Content-Type: application/json",
    "Content-Type: application/x-www-form-urlencoded",
    "Content-Type: multipart/form-data; boundary=",
    "Origin: null",
    "Origin: http://[",
    "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-Host: localhost",
    "Range: bytes=0-999999999999",
    "If-None-Match: *",
    "Accept-Encoding: \x00",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "G\xcbT", ""]


def request_of(dice: random.Random) -> bytes:
    """A request that is more or less one."""
    if dice.random() < 0.1:
        return dice.randbytes(dice.randrange(1, 400)) + b"\r\n\r\n"
    lines = [f"{dice.choice(METHODS)} {dice.choice(PATHS)} {dice.choice(['HTTP/1.1', 'HTTP/1.0', 'HTTP/9', ''])}"]
    lines += dice.sample(HEADERS, dice.randrange(6))
    body = dice.choice(["", "{}", '{"reason": 5}', "[[[[", "token=x&next=//y", "5\r\nhello\r\n0\r\n\r\n", "\x00\xff"])
    data = bytearray(("\r\n".join([*lines, "Connection: close", "", ""]) + body).encode("latin-1"))
    for _ in range(dice.choice([0, 0, 1, 5])):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def answer_to(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, 10) as connection:
        connection.settimeout(60)
        received = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
        return received


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_whatever_is_sent_is_answered_or_refused(
    make_cluster: Any, make_monitor: Any, serve: Callable[[Any], str], host: str
) -> None:
    monitor = make_monitor(make_cluster(), host=host)
    monitor.look()
    parts = urlsplit(serve(monitor))
    address = (str(parts.hostname), int(parts.port or 0))
    dice = random.Random(20)
    for number in range(ROUNDS):
        sent = request_of(dice)
        answer = answer_to(address, sent)
        status = answer[9:12]
        assert status != b"500", (number, sent, answer)
        if host != "127.0.0.1":
            assert b"node-0" not in answer, (number, sent)
        assert b"root:x:" not in answer
    assert monitor.cluster.killed == []
    health = answer_to(address, b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert health.startswith(b"HTTP/1.0 200 OK")
