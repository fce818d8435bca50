"""Authorization of visitors: the token, sessions after a login, limited attempts. Pure, no flask.

token file (0600) --typed into the login page--> Sessions.open --cookie--> Sessions.of(cookie) -> Session
                  `-Authorization: Bearer------> Sessions.knows
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parl_remote._security import read_private_file, write_private_file
from parl_remote.errors import AuthenticationFailed

__all__ = ["AttemptLimit", "Session", "Sessions", "token_of"]

_TOKEN_BYTES = 32
_SHORTEST_TOKEN = 16
_SESSION_S = 12 * 3600.0  # a working day
_MOST_SESSIONS = 1000  # each took the token to open; more than that is a script that should use the header


@dataclass(frozen=True, slots=True)
class Session:
    """A browser session, opened with the token.

    Attributes:
        csrf: The token that every changing request must carry besides the cookie.
        until: The time of its end, on the clock of `Sessions`.
    """

    csrf: str
    until: float


class Sessions:
    """Checks tokens and manages sessions. Cookies are kept only as hashes.

    Args:
        token: The monitor's token.
        now: Any clock in seconds.
    """

    def __init__(self, token: str, now: Callable[[], float]) -> None:
        self._token = hashlib.sha256(token.encode()).digest()
        self._now = now
        self._open: dict[bytes, Session] = {}
        self._lock = threading.Lock()

    def knows(self, token: str) -> bool:
        """Return whether this is the token, in constant time."""
        return hmac.compare_digest(hashlib.sha256(token.strip().encode()).digest(), self._token)

    def open(self) -> str:
        """Open a session for a visitor whose token was right; return the value of the cookie."""
        cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        now = self._now()
        with self._lock:
            self._open = {name: one for name, one in self._open.items() if one.until > now}
            while len(self._open) >= _MOST_SESSIONS:
                del self._open[next(iter(self._open))]
            self._open[_digest(cookie)] = Session(secrets.token_urlsafe(_TOKEN_BYTES), now + _SESSION_S)
        return cookie

    def of(self, cookie: str) -> Session | None:
        """Return the session of a cookie, None if it has ended or never existed."""
        session = self._open.get(_digest(cookie))
        return session if session is not None and session.until > self._now() else None

    def end(self, cookie: str) -> None:
        """End the session of a cookie."""
        with self._lock:
            self._open.pop(_digest(cookie), None)


class AttemptLimit:
    """A limit on answers to wrong tokens: some at once, then one every few seconds. The right one is never delayed.

    Args:
        now: Any clock in seconds.
        burst: Attempts allowed at once.
        every_s: Seconds until one more is allowed.
    """

    def __init__(self, now: Callable[[], float], burst: int = 5, every_s: float = 10.0) -> None:
        self._now = now
        self._burst = burst
        self._every_s = every_s
        self._free_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait_s(self, who: str) -> float:
        """Count one attempt of `who`; return 0 if it is allowed, else the seconds until the next one is."""
        now = self._now()
        with self._lock:
            if len(self._free_at) > 10_000:
                self._free_at = {name: at for name, at in self._free_at.items() if at > now}
            debt_until = max(self._free_at.get(who, now), now)
            over_s = debt_until - now - (self._burst - 1) * self._every_s
            if over_s > 0:
                return over_s
            self._free_at[who] = debt_until + self._every_s
            return 0.0


def token_of(path: Path) -> str:
    """Return the token in a private file, created if there is none.

    Raises:
        AuthenticationFailed: The file is not private to this user, or its token is too short.
        OSError: It cannot be written.
    """
    if not path.exists():
        write_private_file(path, secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    token = read_private_file(path).strip()
    if len(token) < _SHORTEST_TOKEN:
        raise AuthenticationFailed(f"the token in {path} has {len(token)} characters; {_SHORTEST_TOKEN} are the least")
    return token


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
