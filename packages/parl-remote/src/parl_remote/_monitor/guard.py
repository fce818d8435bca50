"""Checks of every request: the visitor, the host name, the page of origin; and the permissions of browsers.

    request --host name?--> --token or session, where one is needed--> --changes something? CSRF--> view --headers-->

On loopback the user who runs the monitor may look; the kernel tells which user of this host has sent a request.
Changes, other users and requests from elsewhere need the token: a browser shows it once at the login page, a program as
`Authorization: Bearer`.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from flask import Flask, Response, abort, g, jsonify, redirect, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from parl_remote._monitor.sessions import Session, Sessions
from parl_remote._system.facilities import own_user
from parl_remote._transport.addresses import is_loopback

__all__ = ["Guard", "Peers", "allowed_target"]


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns of /proc/net/tcp
_NETLINK, _NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST = 16, 4, 20, 1
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_QUESTION = struct.Struct("=BBBxI")  # inet_diag_req_v2 up to its sockid: family, protocol, extensions, states
_ENDS = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports and addresses of the socket that is meant
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_ENDS = _HEADER.size + 4
_ANSWER_UID = _ANSWER_ENDS + _ENDS.size + len(_ANY_COOKIE) + 12
_ANSWER_BYTES = 4096
_PATIENCE_S = 1.0


class Peers:
    """Identifies the visitors of one listening socket.

    Args:
        host: The interface that is listened on.
        tables: The directory of the kernel's tables.
    """

    def __init__(self, host: str, tables: Path = Path("/proc/net")) -> None:
        self._tables = tables
        try:
            found = {target[4][0] for target in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except OSError:
            found = set()
        self._own = [ipaddress.ip_address(str(name).partition("%")[0]) for name in sorted(found, key=str)]

    def uid_of(self, environ: Mapping[str, Any]) -> int | None:
        """Return the user whose process has sent a WSGI request; None if unknown, as for other hosts."""
        try:
            address = ipaddress.ip_address(environ["REMOTE_ADDR"])
            theirs, ours = int(environ["REMOTE_PORT"]), int(environ["SERVER_PORT"])
        except (KeyError, ValueError):
            return None
        if not address.is_loopback or not (0 < theirs < 65536 and 0 < ours < 65536):
            return None
        try:
            for own in self._own:
                if own.version == address.version:
                    uid = _ask_kernel(address, theirs, own, ours)
                    if uid is not None:
                        return uid
        except OSError:
            return self._look_up(address, theirs, ours)
        return None

    def _look_up(self, address: _Address, theirs: int, ours: int) -> int | None:
        local, remote = f"{_as_kernel_prints(address)}:{theirs:04X}", f":{ours:04X}"
        try:
            table = (self._tables / ("tcp" if address.version == 4 else "tcp6")).read_text()
        except OSError:
            return None
        for line in table.splitlines():
            if local in line:
                fields = line.split()
                if fields[_LOCAL] == local and fields[_REMOTE].endswith(remote):
                    return int(fields[_UID])
        return None


def _ask_kernel(address: _Address, port: int, own: _Address, own_port: int) -> int | None:
    """Return the owner of the socket from `address` to `own`, None if there is no such socket.

    Raises:
        OSError: This kernel does not support the query.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    ends = _ENDS.pack(port, own_port, address.packed, own.packed)
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _ANY_COOKIE
    with socket.socket(_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_PATIENCE_S)
        link.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0) + question)
        answer = link.recv(_ANSWER_BYTES)
    if len(answer) < _ANSWER_UID + 4 or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    if answer[_ANSWER_ENDS : _ANSWER_ENDS + _ENDS.size] != ends:
        return None  # the listener on that port, because the socket itself is gone
    return int(struct.unpack_from("=I", answer, _ANSWER_UID)[0])


def _as_kernel_prints(address: _Address) -> str:
    """Return an address in hexadecimal words of 32 bits, each in this machine's byte order."""
    packed = address.packed
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_OPEN = frozenset({"static", "pages.login", "pages.sign_in", "probes.health"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request.

    Attributes:
        session: The browser session, None if there is none.
        by_token: Whether the request itself carries the token.
        is_owner: Whether it is the monitor's own user, over loopback.
    """

    session: Session | None
    by_token: bool
    is_owner: bool

    @property
    def known(self) -> bool:
        """Return whether the token was presented, now or at a login."""
        return self.by_token or self.session is not None

    @property
    def may_view(self) -> bool:
        """Return whether this visitor may see the monitor's data."""
        return self.known or self.is_owner


class Guard:
    """Guards an application, on which it installs itself.

    Args:
        app: The application.
        sessions: The sessions after logins.
        host: The interface that is listened on.
        port: The port, which distinguishes the cookies of several monitors.
        uid_of: Returns the user who has sent a request over loopback, None if unknown; by default from the kernel.
    """

    def __init__(
        self,
        app: Flask,
        sessions: Sessions,
        host: str,
        port: int,
        uid_of: Callable[[Mapping[str, Any]], int | None] | None = None,
    ) -> None:
        self.sessions = sessions
        self.cookie = f"parl_monitor_{port}"
        self._on_loopback = is_loopback(host)
        self._uid_of = uid_of or Peers(host).uid_of
        self._hosts = {"localhost", "127.0.0.1", "[::1]", host, f"[{host}]"}
        app.before_request(self._check)
        app.after_request(self._add_headers)
        app.register_error_handler(HTTPException, self._explain)

    def _check(self) -> BaseResponse | None:
        g.visitor = self._visitor()
        if self._on_loopback and _name_of(request.host) not in self._hosts:
            # A page elsewhere whose name was made to point here would otherwise read along.
            abort(421, f"this monitor is at http://localhost or 127.0.0.1, not at {request.host}")
        if request.endpoint in _OPEN:
            return None
        if not g.visitor.may_view:
            if request.path.startswith(("/api/", "/metrics")) or request.method not in _SAFE:
                abort(401, "the monitor's token is needed, as `Authorization: Bearer <token>`")
            return redirect(url_for("pages.login", next=request.full_path.rstrip("?")))
        if request.method not in _SAFE:
            self._check_change()
        return None

    def _visitor(self) -> Visitor:
        is_owner = self._on_loopback and self._uid_of(request.environ) in {own_user() or 0, 0}
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.casefold() == "bearer":
            return Visitor(None, self.sessions.knows(token), is_owner)
        return Visitor(self.sessions.of(request.cookies.get(self.cookie, "")), False, is_owner)

    def _check_change(self) -> None:
        """Abort unless the visitor has presented the token and the request comes from a page of this monitor."""
        visitor: Visitor = g.visitor
        if not visitor.known:
            abort(401, "sign in with the monitor's token to do that")
        if visitor.session is not None and not hmac.compare_digest(
            request.headers.get("X-CSRF-Token", "").encode(), visitor.session.csrf.encode()
        ):
            abort(403, "the request does not come from a page of this monitor; load the page again")
        origin = request.headers.get("Origin")
        if origin and origin.partition("://")[2] != request.host:
            abort(403, "the request comes from a page elsewhere")

    def _add_headers(self, response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if request.endpoint != "static":
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _explain(self, error: HTTPException) -> BaseResponse | tuple[BaseResponse, int]:
        if request.path.startswith("/api/"):
            answer: BaseResponse = jsonify(error=error.description)
        else:
            answer = Response(f"{error.code} {error.name}: {error.description}\n", mimetype="text/plain")
        answer.status_code = error.code or 500
        for name, value in error.get_headers():
            if name.casefold() not in {"content-type", "content-length"}:
                answer.headers[name] = value
        if error.code == 401:
            answer.headers["WWW-Authenticate"] = 'Bearer realm="PARL monitor"'
        return answer


def allowed_target(target: str) -> str:
    """Return the target of a redirect after a login: a path of this monitor, "/" for anything else."""
    plain = target.isascii() and target.isprintable()
    ours = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if plain and ours else "/"


def _name_of(host: str) -> str:
    """Return the host of "host:port"."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
