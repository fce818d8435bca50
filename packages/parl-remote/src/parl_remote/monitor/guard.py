"""What stands before every request: who asks, under which host name, from which page; and what browsers may do.

    request --host name?--> --token or session, where one is needed--> --changes something? CSRF--> view --headers-->

On loopback the user who runs the monitor may look. Whoever wants to change something, is another user or asks from
elsewhere, shows the token: a browser once at the login page, a program as `Authorization: Bearer`.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, abort, g, jsonify, redirect, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from parl_remote.monitor.peers import Peers
from parl_remote.monitor.sessions import Session, Sessions
from parl_remote.system.facilities import own_user
from parl_remote.transport.addresses import is_loopback

__all__ = ["Guard", "allowed_target"]

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
    """Who asks.

    Attributes:
        session: The browser session, None without one.
        by_token: Whether the request itself carries the token.
        is_owner: Whether it is the monitor's own user, over loopback.
    """

    session: Session | None
    by_token: bool
    is_owner: bool

    @property
    def known(self) -> bool:
        """Whether the token was shown, now or at a login."""
        return self.by_token or self.session is not None

    @property
    def may_look(self) -> bool:
        """Whether what the monitor knows is for this visitor."""
        return self.known or self.is_owner


class Guard:
    """Installs itself on an application.

    Args:
        app: The application.
        sessions: Who has logged in.
        host: The interface that is listened on.
        port: The port, which tells the cookies of several monitors apart.
        uid_of: The user who has sent a request over loopback, None if that is not known; by default the kernel says.
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
        if not g.visitor.may_look:
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
        """Only somebody who was let in, from a page of ours."""
        visitor: Visitor = g.visitor
        if not visitor.known:
            abort(401, "sign in with the monitor's token to do that")
        if visitor.session is not None and not hmac.compare_digest(
            request.headers.get("X-CSRF-Token", "").encode(), visitor.session.csrf.encode()
        ):
            abort(403, "the request does not come from a page of this monitor; load the page again")
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc != request.host:
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
    """Where to go after a login: a path of this monitor, "/" for anything else."""
    parts = urlsplit(target.replace("\\", "/"))
    plain = target.isascii() and target.isprintable()
    ours = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc
    return target if plain and ours else "/"


def _name_of(host: str) -> str:
    """The host of "host:port"."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
