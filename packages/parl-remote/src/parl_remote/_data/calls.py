"""One call, frozen when it is made: later changes of an argument by the caller do not reach the actor.

    Call                  pickle and buffers of the arguments; sent at once, the buffers are the caller's own memory
    call.frozen()         the same with copied buffers, for a call that cannot leave at once
    FuturePlaceholder(0)  stands in the pickle for a future among the arguments
    call.completed        the same with the results of those futures; the pickle that was made at the call is inside

A sender never unpickles its own pickle: the actor puts the results into the arguments when it unpickles them.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parl_remote._data import serialize
from parl_remote._system.texts import described
from parl_remote._transport import Buffer, copied
from parl_remote.errors import SerializationError

__all__ = ["Call", "FuturePlaceholder"]


class Call(NamedTuple):
    """A message to an actor that will be answered.

    Attributes:
        kind: The kind of message, see `call_messages.Kind`.
        flags: The format of the payload.
        target: The number of the method or attribute.
        payload: The frames of the arguments, see `serialize.dumps`.
        method: The name of the method, for messages.
        owner: Kept alive until the call is answered: the reference to the actor, and in a tuple with it what references
            among the arguments lead to.
        is_frozen: Whether nothing else can write to the buffers.
    """

    kind: int
    flags: int
    target: int
    payload: Sequence[Buffer] = ()
    method: str = ""
    owner: object = None
    is_frozen: bool = False

    def frozen(self) -> Call:
        """Return the call with buffers that nothing else can write to."""
        if self.is_frozen or len(self.payload) < 2:  # the pickle itself is bytes
            return self
        return self._replace(payload=[self.payload[0], *map(copied, self.payload[1:])], is_frozen=True)

    def completed(self, values: Sequence[Any]) -> Call:
        """Return the call with the results of the futures among its arguments.

        Args:
            values: The results, by the number in `FuturePlaceholder`.

        Raises:
            SerializationError: One of them cannot be sent.
        """
        references: list[object] = []
        whole = _Arguments(self.payload, serialize.with_stand_ins(tuple(values), {})[0])
        try:
            payload = serialize.dumps(whole, references)
        except Exception as error:
            kinds = ", ".join(type(value).__name__ for value in values)
            what = f"the awaited arguments of {self.method}() ({kinds})"
            raise SerializationError(f"{what} cannot be sent to the actor: {described(error)}", what=what) from error
        owner = self.owner if isinstance(self.owner, tuple) else (self.owner,)
        return self._replace(payload=payload, owner=(*owner, *references), is_frozen=False).frozen()


class FuturePlaceholder:
    """A placeholder for a future among the arguments of a call.

    Args:
        number: The position of the future among the futures of the call.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int]]:
        return _value, (self._number,)


class _Arguments:
    """The pickled arguments of a call and the results of its futures; unpickled as one value."""

    def __init__(self, payload: Sequence[Buffer], values: tuple[Any, ...]) -> None:
        self._payload = payload
        self._values = values

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        data, *buffers = self._payload
        return _put_together, (bytes(data), [pickle.PickleBuffer(one) for one in buffers], self._values)


_reading = threading.local()  # its `values` are those to which the pickle that this thread reads refers


def _put_together(data: bytes, buffers: Sequence[Buffer], values: tuple[Any, ...]) -> Any:
    """Return the arguments with the results in place of the futures; named in pickles."""
    outer = getattr(_reading, "values", ())
    _reading.values = values
    try:
        return serialize.loads(data, buffers)
    finally:
        _reading.values = outer


def _value(number: int) -> Any:
    """Return a result; named in pickles."""
    return _reading.values[number]
