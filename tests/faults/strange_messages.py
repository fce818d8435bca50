"""Invalid messages: random bytes, and every kind of message with odd values and further changes.

a message's fields by their types --dice--> a message that is right in form --mutations--> one that is not
"""

from __future__ import annotations

import dataclasses
import enum
import json
import random
import struct
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from parl_remote._messages import Hello, Role
from parl_remote._messages.wire import all_kinds, encode

__all__ = ["Dice"]

# What a member may do to a cluster on purpose is no fault of the cluster.
_LEFT_OUT = frozenset({"Shutdown"})
_ODD_NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**30)
_ODD_FLOATS = (0.0, -0.0, 1e308, -1e308, 1e-320, 0.5)
_ODD_TEXTS = (
    "",
    "x",
    "../../etc/passwd",
    "/etc/passwd",
    "\0",
    "\ud7ff",
    "lease-1",
    "a" * 3000,
    "%s%n",
    "{}",
    "\x1b[2J",
)
_ODD_JSON: tuple[Any, ...] = (None, True, [], {}, [[[[]]]], {"is": "Hello"}, -1, 1e308, "x", [None] * 50)


class Dice(random.Random):
    """A generator with a few more throws; the same seed throws the same."""

    def some_bytes(self, most: int = 200) -> bytes:
        """Noise, shorter than `most`."""
        return self.randbytes(self.randrange(most))

    def happens(self, share: float) -> bool:
        """True in that share of cases."""
        return self.random() < share

    def value(self, kind: Any, depth: int = 0) -> Any:
        """Something of a type, mostly odd."""
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in {typing.Union, types.UnionType}:
            return self.value(self.choice(inner), depth)
        if kind is type(None):
            return None
        if kind is bool:
            return self.happens(0.5)
        if kind is int:
            return self.choice(_ODD_NUMBERS) if self.happens(0.5) else self.randrange(1000)
        if kind is float:
            return self.choice(_ODD_FLOATS) if self.happens(0.5) else self.uniform(-10, 1000)
        if kind is str:
            return self.choice(_ODD_TEXTS) if self.happens(0.5) else f"x{self.randrange(10**6)}"
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self.choice(list(kind)).value
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self.fields(kind, depth + 1)
        if origin is tuple or kind is tuple:
            return [self.value(inner[0], depth + 1) for _ in range(self.randrange(3))] if inner and depth < 4 else []
        if origin is not None and issubclass(origin, Mapping):
            return {self.value(str): self.value(inner[1], depth + 1) for _ in range(self.randrange(3))}
        return self.choice(_ODD_JSON)

    def fields(self, kind: type, depth: int = 0) -> dict[str, Any]:
        """A message's fields with odd values of the right types."""
        hints = _HINTS.setdefault(kind, typing.get_type_hints(kind))
        return {
            one.name: self.value(hints[one.name], depth)
            for one in dataclasses.fields(kind)
            if one.default is dataclasses.MISSING or self.happens(0.7)
        }

    def message(self) -> bytes:
        """A control message that is right in form, or nearly."""
        name, kind = self.choice(_KINDS)
        fields = {"is": name, **self.fields(kind)}
        if self.happens(0.2) and len(fields) > 1:
            fields[self.choice(list(fields))] = self.choice(_ODD_JSON)
        if self.happens(0.1):
            fields["no such field"] = 1
        if self.happens(0.1) and len(fields) > 1:
            del fields[self.choice(list(fields))]
        return json.dumps(fields).encode("utf-8", "surrogatepass")

    def bent(self, data: bytes) -> bytes:
        """The same with some bytes changed, lost, doubled or cut off."""
        bent = bytearray(data)
        for _ in range(self.randrange(4)):
            if not bent:
                break
            at = self.randrange(len(bent))
            match self.randrange(4):
                case 0:
                    bent[at] = self.randrange(256)
                case 1:
                    del bent[at : at + self.randrange(8)]
                case 2:
                    bent[at:at] = bent[at : at + self.randrange(8)]
                case _:
                    del bent[at:]
        return bytes(bent)

    def frames(self, make: Callable[[], bytes]) -> list[bytes]:
        """One message of a few frames."""
        first = self.bent(make()) if self.happens(0.5) else make()
        return [first, *(self.some_bytes() for _ in range(self.randrange(3) if self.happens(0.2) else 0))]

    def call(self) -> bytes:
        """The first frame of a call to an actor, or of an answer of one; the payload is not a pickle of anything."""
        header = struct.pack(
            "<BBHI", self.randrange(24), self.randrange(256), self.randrange(2**16), self.randrange(2**32)
        )
        return header + self.some_bytes(60)

    def hello(self, role: Role | None = None) -> bytes:
        """A proper Hello."""
        who = role or self.choice(list(Role))
        to = self.choice([Role.MASTER, Role.WORKER])
        return encode(Hello(who, to, f"fuzz-{self.randrange(2**60)}", 1, 1, "host", 1, {}, "fuzz"))

    def stream(self, frames: list[bytes]) -> bytes:
        """Frames as they lie in a unix stream, mostly with right lengths."""
        head = struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))
        if self.happens(0.1):
            head = self.bent(head)
        return head + b"".join(frames)


_HINTS: dict[type, dict[str, Any]] = {}
_KINDS = [(name, kind) for name, kind in all_kinds().items() if name not in _LEFT_OUT]
