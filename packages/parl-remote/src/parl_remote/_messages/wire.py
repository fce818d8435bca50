"""Encoding of control messages: one frame of JSON, `{"is": "LeaseRequest", "request_id": 7, ...}`.

A field with a default may be missing, so that a later version can add one without a new protocol number. Unknown
messages are errors of the peer, and so are unknown fields, except in the messages that begin and end a link: those must
be readable by peers of any version.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
from collections.abc import Hashable
from types import ModuleType
from typing import Any, cast

from parl_remote._codec import from_json, writer_of
from parl_remote._messages import leases, links
from parl_remote._records import Message
from parl_remote.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["all_kinds", "decode", "encode", "request_number"]

# Modules of messages that most processes never use, in the order in which a name is looked for: making a dataclass
# costs half a millisecond, and a private cluster has to answer within two hundred.
_TOPICS = ("parts", "overview")


def _messages_of(module: ModuleType) -> dict[str, type[Message]]:
    found = ((name, getattr(module, name)) for name in module.__all__)
    return {name: kind for name, kind in found if isinstance(kind, type) and issubclass(kind, Message)}


_KINDS: dict[str, type[Message]] = _messages_of(links) | _messages_of(leases)
_ANY_VERSION: dict[str, frozenset[str]] = {
    kind.__name__: frozenset(field.name for field in dataclasses.fields(kind))
    for kind in (links.Hello, links.Welcome, links.Refused, links.Bye)
}


def encode(message: Message) -> bytes:
    """Return a message as one frame, which begins with its kind and its first field: `request_id`, if it has one."""
    kind = type(message)
    name = kind.__name__
    if not isinstance(message, Message) or (name not in _KINDS and _kind(name) is None):
        raise LocalProtocolError(f"{name} is not a message of the control plane")
    fields = writer_of(cast(Hashable, kind))(message)
    return json.dumps({"is": name, **fields}, separators=(",", ":"), allow_nan=False).encode()


def decode(frame: bytes | bytearray | memoryview) -> Message:
    """Return the message of a frame, fully validated.

    Raises:
        RemoteProtocolError: The frame is not a JSON object, no known message, or a field is missing, unknown or wrong.
        OSError: A message of a module that is not imported yet came where there is no descriptor left for that.
    """
    try:
        fields = json.loads(bytes(frame), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a control message of {len(frame)} bytes is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"a control message must be an object, not a {type(fields).__name__}")
    name = fields.pop("is", None)
    kind = _kind(name) if isinstance(name, str) else None
    if kind is None:
        raise RemoteProtocolError(f"unknown message {str(name)[:80]!r}")
    if known := _ANY_VERSION.get(kind.__name__):
        fields = {key: value for key, value in fields.items() if key in known}
    message: Message = from_json(kind, fields, kind.__name__)
    return message


_REQUEST = re.compile(rb'\{"is":"\w+","request_id":(\d+)[,}]')


def request_number(frame: bytes | bytearray | memoryview) -> int | None:
    """Return the `request_id` of a message from the beginning of its frame; None if it has none."""
    found = _REQUEST.match(frame)
    return None if found is None else int(found[1])


def all_kinds() -> dict[str, type[Message]]:
    """Return all message classes by name; imports the modules of all topics."""
    for topic in _TOPICS:
        _KINDS.update(_of_topic(topic))
    return dict(sorted(_KINDS.items()))


def _kind(name: str) -> type[Message] | None:
    """Return the message class of a name; its module is imported on first use."""
    kind = _KINDS.get(name)
    if kind is None:
        kind = next((found for topic in _TOPICS if (found := _of_topic(topic).get(name))), None)
        if kind is not None:
            _KINDS[name] = kind
    return kind


@functools.cache
def _of_topic(topic: str) -> dict[str, type[Message]]:
    return _messages_of(importlib.import_module(f"parl_remote._messages.{topic}"))


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")
