"""Visitors that open connections and send nothing take none away from the others."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

server_of = pytest.importorskip("waitress.server")

from parl_remote._monitor.server import share_fairly  # noqa: E402  # its package needs flask and waitress

OTHER, OWNER = 12345, 1000
MOST = 10


class Users:
    """Tells users apart by the address that they come from."""

    def uid_of(self, environ: Mapping[str, Any]) -> int | None:
        return {"127.0.0.2": OTHER, "127.0.0.1": OWNER}.get(environ["REMOTE_ADDR"])


@pytest.fixture
def port() -> Iterator[int]:
    def answer(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    sockets: dict[int, Any] = {}
    server = server_of.create_server(answer, host="127.0.0.1", port=0, threads=2, map=sockets, connection_limit=500)
    users: Any = Users()
    share_fairly([one for one in sockets.values() if hasattr(one, "channel_class")], users, MOST)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            server.asyncore.loop(timeout=0.05, map=sockets, count=1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield int(server.effective_port)
    over.set()
    thread.join(60.0)
    server.task_dispatcher.shutdown()
    for one in list(sockets.values()):
        one.close()


def open_slowly(port: int, user: str, says: bytes) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), 60.0, (user, 0))
    with contextlib.suppress(OSError):
        one.sendall(says)
    return one


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_slow_connections_of_another_user_do_not_keep_the_owner_out(port: int, says: bytes) -> None:
    owner = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    owner.request("GET", "/")
    assert owner.getresponse().read() == b"ok"
    slow = [open_slowly(port, "127.0.0.2", says) for _ in range(5 * MOST)]
    for one in slow[: 4 * MOST]:  # the oldest were closed
        with contextlib.suppress(ConnectionError):
            while one.recv(4096):
                pass
    owner.request("GET", "/")  # on the connection that was open before
    assert owner.getresponse().read() == b"ok"
    for _ in range(3):
        new = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
        new.request("GET", "/")
        assert new.getresponse().read() == b"ok"
        new.close()
    owner.close()
    for one in slow:
        one.close()
