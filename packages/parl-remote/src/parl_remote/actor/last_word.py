"""What an actor says to its worker before it ends by itself, so that this is told apart from `os._exit(0)`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parl_remote.death import DeathKind
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout
from parl_remote.links.call_messages import Kind, header_of, pack, payload_of

if TYPE_CHECKING:
    from parl_remote.transport.unix import UnixChannel

__all__ = ["LastWord"]


@dataclass(frozen=True, slots=True)
class LastWord:
    """What an actor says to its worker before it ends by itself.

    Attributes:
        kind: RELEASED, CLIENT_GONE, CONSTRUCTOR or IMPORT.
        detail: The error, in one line.
    """

    kind: DeathKind
    detail: str = ""

    def because_of(self, error: BaseException) -> LastWord:
        """The same with the error in one line."""
        lines = str(error).strip().splitlines()
        return LastWord(self.kind, f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)

    def say(self, channel: UnixChannel) -> None:
        """Tell the worker; a worker that is gone or does not listen misses it."""
        said = json.dumps({"kind": self.kind.value, "detail": self.detail}).encode()
        with contextlib.suppress(ChannelClosed, ResultTimeout):
            channel.send(pack(Kind.CLOSE, 0, 0, 0, [said]), 0.0)

    @classmethod
    def heard(cls, channel: UnixChannel) -> LastWord | None:
        """What an actor has said, None if it was cut short."""
        with contextlib.suppress(ResultTimeout, ChannelClosed, RemoteProtocolError, ValueError, KeyError, IndexError):
            while True:
                frames = channel.receive(0.0)
                kind, flags, _, _ = header_of(frames[0])
                if kind == Kind.CLOSE:
                    said = json.loads(bytes(payload_of(flags, frames)[0]))
                    return cls(DeathKind(said["kind"]), str(said["detail"]))
        return None
