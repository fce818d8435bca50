"""Access to the monitor: reading, acting, and the rights of browsers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parl_remote._monitor import guard
from parl_remote._monitor.guard import Peers, allowed_target
from parl_remote._monitor.sessions import AttemptLimit, Sessions, token_of
from parl_remote.errors import AuthenticationFailed

KILL = "/api/v1/actors/lease-1/kill"


@pytest.fixture
def abroad(make_cluster: Callable[..., Any], make_monitor: Callable[..., Any]) -> Any:
    """A monitor that listens to other hosts."""
    monitor = make_monitor(make_cluster(), host="0.0.0.0")
    monitor.look()
    return monitor


@pytest.mark.parametrize("uid", [None, 12345])
def test_on_loopback_other_users_need_the_token(monitor: Any, token: str, uid: int | None) -> None:
    monitor.visitor_uid = uid
    assert monitor.client().get("/api/v1/actors").status_code == 401
    assert monitor.client().get("/actors").status_code == 302
    assert monitor.client().get("/healthz").get_json() == {"ok": True}
    bearer = {"Authorization": f"Bearer {token}"}
    assert monitor.client().get("/api/v1/actors", headers=bearer).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("offers_netlink", [True, False])
def test_the_kernel_knows_whose_connection_it_is(
    host: str, offers_netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_offered(*_: object) -> int:
        raise OSError("not here")

    if not offers_netlink:
        monkeypatch.setattr(guard, "_ask_kernel", not_offered)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"this host has no {host}: {error}")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        environ = {
            "REMOTE_ADDR": host,
            "REMOTE_PORT": str(client.getsockname()[1]),
            "SERVER_PORT": str(server.getsockname()[1]),
        }
        asked = Peers(host)
        assert asked.uid_of(environ) == os.geteuid()
        assert asked.uid_of({**environ, "SERVER_PORT": "1"}) is None
        assert asked.uid_of({**environ, "REMOTE_PORT": environ["SERVER_PORT"]}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a connection as another user")
@pytest.mark.parametrize("offers_netlink", [True, False])
def test_a_connection_of_another_user_is_known_as_his(offers_netlink: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_offered(*_: object) -> int:
        raise OSError("not here")

    if not offers_netlink:
        monkeypatch.setattr(guard, "_ask_kernel", not_offered)
    program = (
        "import encodings.idna, os, socket, sys; os.setuid(12345);"
        "one = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
        "print(one.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        unauthenticated = subprocess.Popen(
            [sys.executable, "-c", program, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert unauthenticated.stdout is not None
        theirs = unauthenticated.stdout.readline().strip()
        environ = {"REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": theirs, "SERVER_PORT": port}
        assert Peers("127.0.0.1").uid_of(environ) == 12345
        unauthenticated.communicate()


def test_the_owner_of_a_connection_is_read_from_the_line_that_is_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_offered(*_: object) -> int:
        raise OSError("not here")

    monkeypatch.setattr(guard, "_ask_kernel", not_offered)
    lines = [
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
        "   0: 0100007F:1FC9 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 1 1",
        "   1: 0100007F:C350 0100007F:1FC8 01 00000000:00000000 00:00000000 00000000  1002        0 2 1",
        "   2: 0100007F:C350 0100007F:1FC9 01 00000000:00000000 00:00000000 00000000  1001        0 3 1",
    ]
    (tmp_path / "tcp").write_text("\n".join(lines))
    environ = {"REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "50000", "SERVER_PORT": "8137"}
    asked = Peers("127.0.0.1", tmp_path)
    assert asked.uid_of(environ) == 1001
    assert asked.uid_of({**environ, "REMOTE_ADDR": "10.0.0.1"}) is None
    assert asked.uid_of({**environ, "REMOTE_ADDR": "::1"}) is None
    assert asked.uid_of({**environ, "REMOTE_PORT": "x"}) is None
    assert asked.uid_of({**environ, "REMOTE_PORT": "123456"}) is None
    assert asked.uid_of({}) is None


def test_on_loopback_one_may_look_without_the_token(monitor: Any) -> None:
    for path in ("/", "/api/v1/actors", "/metrics", "/healthz"):
        assert monitor.client().get(path).status_code == 200


def test_on_loopback_nothing_changes_without_the_token(monitor: Any) -> None:
    answer = monitor.client().post(KILL)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="PARL monitor"')
    assert monitor.client().post(KILL, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert monitor.client().post("/api/v1/actors/lease-1/stack").status_code == 401
    assert monitor.cluster.killed == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8137", "127.0.0.1.evil.example", "10.0.0.1:8137"])
def test_a_name_that_was_made_to_point_to_loopback_is_turned_away(monitor: Any, host: str) -> None:
    assert monitor.client().get("/api/v1/actors", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8137", "127.0.0.1:8137", "[::1]:8137", "localhost"])
def test_loopbacks_own_names_are_welcome(monitor: Any, host: str) -> None:
    assert monitor.client().get("/api/v1/actors", headers={"Host": host}).status_code == 200


def test_beyond_loopback_nothing_is_visible_without_the_token(abroad: Any) -> None:
    client = abroad.client()
    for path in ("/", "/actors", "/nodes/node-1"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["Location"].split("?")[0]) == (302, "/login")
        assert b"node-0" not in answer.data
    for path in ("/api/v1/cluster", "/api/v1/session", "/metrics", "/api/v1/actors/lease-1/log"):
        assert client.get(path).status_code == 401
    assert client.get("/cluster").status_code == 302
    assert client.post(KILL).status_code == 401


def test_elsewhere_a_probe_says_only_whether_it_is_well(abroad: Any) -> None:
    assert abroad.client().get("/healthz").get_json() == {"ok": True}


def test_elsewhere_the_login_page_does_not_name_the_cluster(abroad: Any) -> None:
    answer = abroad.client().get("/login")
    assert answer.status_code == 200
    assert b"localhost:8037" not in answer.data


def test_elsewhere_the_token_opens_everything(abroad: Any, token: str) -> None:
    client, bearer = abroad.client(), {"Authorization": f"Bearer {token}"}
    assert client.get("/metrics", headers=bearer).status_code == 200
    assert client.get("/api/v1/actors", headers=bearer).status_code == 200


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_cannot_use(abroad: Any, token: str) -> None:
    client = abroad.client()
    answer = client.post("/login", data={"token": token, "next": "/actors?state=busy"})
    assert answer.headers["Location"] == "/actors?state=busy"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert token not in cookie
    assert client.get("/actors").status_code == 200


def test_a_change_from_a_browser_needs_the_csrf_token_too(monitor: Any) -> None:
    client, headers = monitor.signed_in()
    assert client.post(KILL).status_code == 403
    assert client.post(KILL, headers={"X-CSRF-Token": "guess"}).status_code == 403
    assert client.post(KILL, headers=headers | {"Origin": "http://evil.example"}).status_code == 403
    assert client.post(KILL, headers=headers | {"Origin": "http://["}).status_code == 403
    assert monitor.cluster.killed == []
    assert client.post(KILL, headers=headers | {"Origin": "http://localhost"}).status_code == 200
    assert len(monitor.cluster.killed) == 1


def test_a_csrf_token_of_one_session_is_of_no_use_in_another(monitor: Any) -> None:
    _, headers = monitor.signed_in()
    client, _ = monitor.signed_in()
    assert client.post(KILL, headers=headers).status_code == 403


def test_after_signing_out_the_cookie_is_worth_nothing(abroad: Any) -> None:
    client, headers = abroad.signed_in()
    kept = client.get_cookie("parl_monitor_8137")
    assert client.post("/logout", headers=headers).status_code == 302
    client.set_cookie("parl_monitor_8137", kept.value)
    assert client.get("/api/v1/actors").status_code == 401


def test_a_session_ends_after_a_working_day(abroad: Any) -> None:
    client, _ = abroad.signed_in()
    assert client.get("/actors").status_code == 200
    abroad.time += 13 * 3600
    assert client.get("/actors").status_code == 302


def test_wrong_tokens_are_slowed_down(monitor: Any) -> None:
    client = monitor.client()
    answers = [client.post("/login", data={"token": "wrong"}) for _ in range(7)]
    assert [one.status_code for one in answers] == [403] * 5 + [429] * 2
    assert int(answers[-1].headers["Retry-After"]) > 0
    monitor.time += 60
    assert client.post("/login", data={"token": "wrong"}).status_code == 403


def test_the_right_token_gets_in_whatever_others_try(monitor: Any, token: str) -> None:
    other, owner = monitor.client(), monitor.client()
    for _ in range(50):
        other.post("/login", data={"token": "wrong"})
    assert other.post("/login", data={"token": "wrong"}).status_code == 429
    assert owner.post("/login", data={"token": token}).status_code == 302


def test_a_login_from_a_page_elsewhere_is_refused(monitor: Any, token: str) -> None:
    answer = monitor.client().post("/login", data={"token": token}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "//[",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil",
        "javascript:alert(1)",
        "/a\r\nX: y",
        "",
    ],
)
def test_a_login_leads_nowhere_else(target: str) -> None:
    assert allowed_target(target) == "/"


def test_a_login_leads_back_to_where_one_was() -> None:
    assert allowed_target("/actors/lease-1?x=1") == "/actors/lease-1?x=1"


@pytest.mark.parametrize("path", ["/", "/api/v1/cluster", "/login", "/static/app.css", "/metrics", "/nowhere"])
def test_browsers_are_told_to_load_nothing_from_elsewhere(monitor: Any, path: str) -> None:
    with monitor.client().get(path) as answer:
        headers = answer.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"


def test_a_body_that_is_too_large_is_refused(monitor: Any, token: str) -> None:
    answer = monitor.client().post("/login", data={"token": "x" * 100_000})
    assert answer.status_code == 413


def test_a_token_is_made_once_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "monitor.token"
    token = token_of(path)
    assert token == token_of(path)
    assert len(token) >= 40
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "monitor.token"
    token_of(path)
    path.chmod(0o644)
    with pytest.raises(AuthenticationFailed, match="mode 0644"):
        token_of(path)


def test_sessions_are_kept_as_hashes_only() -> None:
    sessions = Sessions("secret", lambda: 0.0)
    cookie = sessions.open()
    assert cookie not in repr(vars(sessions))
    assert "secret" not in repr(vars(sessions))
    assert sessions.of(cookie) is not None
    assert sessions.of(cookie + "x") is None
    assert sessions.of("") is None


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = Sessions("secret", lambda: 0.0)
    first = sessions.open()
    for _ in range(1000):
        sessions.open()
    assert sessions.of(first) is None


def test_tries_are_counted_for_each_visitor_apart() -> None:
    clock = [0.0]
    tries = AttemptLimit(lambda: clock[0], burst=2, every_s=10.0)
    assert [tries.wait_s("a") for _ in range(3)] == [0.0, 0.0, 10.0]
    assert tries.wait_s("b") == 0.0
    clock[0] = 10.0
    assert [tries.wait_s("a") for _ in range(2)] == [0.0, 10.0]
