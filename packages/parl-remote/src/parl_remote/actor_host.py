"""What holds one user's object: takes call messages, gives the replies.

    frames of CREATE, CALL, GET, SET  -->  ActorHost.handle  -->  frames of CREATED, RESULT, FAILURE

No sockets and no processes: an actor process and `connect(debug=True)` drive the same host.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parl_remote import serialize
from parl_remote.actor_state import ActorEvent, ActorMachine, ActorState
from parl_remote.call_errors import describe
from parl_remote.call_messages import BY_NAME, Flag, Kind, header_of, pack, payload_of
from parl_remote.errors import RemoteProtocolError, SerializationError
from parl_remote.transport import Buffer

__all__ = ["ActorHost", "Creation"]

_KEYWORDS = int(Flag.KEYWORDS)
_EMPTY = int(Flag.EMPTY)
_NAMES = int(Flag.NAMES)
_STAYS = int(Flag.STAYS)
_CALL, _RESULT = int(Kind.CALL), int(Kind.RESULT)
# Of these, unlike of methods with other names, Python's own statements expect the object and not a copy.
_MAY_GIVE_ITSELF = frozenset({"__enter__", "__iter__"})
_METHOD_TYPES = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


class Creation(NamedTuple):
    """The payload of CREATE.

    Attributes:
        sys_path: Where the caller's modules are, to import the class from; None stands for the actor's own paths.
        argv: The program's arguments, which the actor's code may want to parse as well.
        class_name: The class's name, for messages that come before the class itself.
        cls: The class, as `class_shipping.dumps_class` gave it.
        names: Methods in the order in which calls number them.
        arguments: Pickle of the constructor's arguments; its buffers are the message's further frames.
        keywords: Whether that is `(args, kwargs)`.
    """

    sys_path: tuple[str | None, ...]
    argv: tuple[str, ...]
    class_name: str
    cls: bytes
    names: tuple[str, ...]
    arguments: bytes
    keywords: bool


class ActorHost:
    """One object and its calls.

    Args:
        load_class: Makes a class of `Creation.cls`.

    Attributes:
        machine: Where the actor is in its life.
        running: The method that runs now or ran last, for reports of its end.
    """

    def __init__(self, load_class: Callable[[bytes], Any] = serialize.loads) -> None:
        self._load_class = load_class
        self.machine = ActorMachine(ActorState.LEASED)
        self.running = ""
        self._instance: object = None
        self._class_name = "actor"
        self._methods: tuple[str, ...] = ()
        self._attributes: frozenset[str] = frozenset()
        self._slots: tuple[str, ...] = ()
        self._dict: dict[str, Any] | None = None

    def handle(self, frames: Sequence[memoryview]) -> list[Buffer]:
        """Do what a message asks for and give the reply's frames.

        Raises:
            RemoteProtocolError: The message may not come now, or is malformed.
        """
        kind, flags, index, call_id = header_of(frames[0])
        if kind == _CALL:
            self.machine.on(ActorEvent.CALL)
            return self._answer(self._call, flags, index, call_id, frames)
        if kind == Kind.GET:
            self.machine.on(ActorEvent.GET_ATTR)
            return self._answer(self._get, flags, index, call_id, frames)
        if kind == Kind.SET:
            self.machine.on(ActorEvent.SET_ATTR)
            return self._answer(self._set, flags, index, call_id, frames)
        if kind == Kind.CREATE:
            return self._create(flags, call_id, frames)
        raise RemoteProtocolError(f"an actor cannot take a message of kind {kind}")

    def drop_instance(self) -> None:
        """Let the user's object go, so that its `__del__` runs."""
        self._instance = None
        self._dict = None

    def _create(self, flags: int, call_id: int, frames: Sequence[memoryview]) -> list[Buffer]:
        self.machine.on(ActorEvent.CREATE)
        try:
            data, buffers = payload_of(flags, frames)
            creation = Creation(*serialize.loads(data))
            self._class_name = creation.class_name
            self._methods = creation.names
            self.running = "__init__"
            sys.path[:] = [path for given in creation.sys_path for path in (sys.path if given is None else (given,))]
            sys.argv[:] = creation.argv
            cls = self._load_class(creation.cls)
            args, kwargs = _unpack(serialize.loads(creation.arguments, buffers), creation.keywords)
            self._instance = instance = cls(*args, **kwargs)
            self._dict = getattr(instance, "__dict__", None)
            self._slots = tuple(_slots_of(type(instance)))
            self._attributes = self._current_attributes()
            reply = pack(Kind.CREATED, 0, 0, call_id, serialize.dumps(tuple(self._attributes)))
        except BaseException as error:
            self.machine.on(ActorEvent.FAILED)
            return self._failure(error, "__init__", call_id)
        self.machine.on(ActorEvent.FINISHED)
        return reply

    def _answer(
        self,
        action: Callable[[int, int, Sequence[memoryview]], tuple[Any, int]],
        flags: int,
        index: int,
        call_id: int,
        frames: Sequence[memoryview],
    ) -> list[Buffer]:
        try:
            value, reply_flags = action(flags, index, frames)
            if self._dict is None or self._slots or self._dict.keys() != self._attributes:
                names = self._current_attributes()
                if names != self._attributes:
                    self._attributes = names
                    value, reply_flags = (value, tuple(names)), reply_flags | _NAMES
            if value is None:
                reply = pack(_RESULT, reply_flags, 0, call_id)
            else:
                reply = pack(_RESULT, reply_flags, 0, call_id, self._dumps_result(value))
        except BaseException as error:
            self.machine.on(ActorEvent.FAILED)
            return self._failure(error, self.running, call_id)
        self.machine.on(ActorEvent.FINISHED)
        return reply

    def _call(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:
        if flags & _EMPTY and index != BY_NAME:
            self.running = name = self._methods[index]
            value = getattr(self._instance, name)()
            if value is self._instance and name in _MAY_GIVE_ITSELF:
                return None, _STAYS
            return value, 0
        self.running = name = "" if index == BY_NAME else self._methods[index]
        payload = self._loads_arguments(flags, frames)
        if not name:
            name, payload = payload
            self.running = name
        if flags & _KEYWORDS:
            return getattr(self._instance, name)(*payload[0], **payload[1]), 0
        return getattr(self._instance, name)(*payload), 0

    def _loads_arguments(self, flags: int, frames: Sequence[memoryview]) -> Any:
        data, buffers = payload_of(flags, frames)
        try:
            return serialize.loads(data, buffers)
        except Exception as error:
            what = f"the arguments of {self._class_name}.{self.running}()"
            raise SerializationError(
                f"{what} cannot be read in the actor: {type(error).__name__}: {error}", what=what
            ) from error

    def _get(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:  # noqa: ARG002
        name = serialize.loads(*payload_of(flags, frames))
        self.running = f"get {name}"
        value = getattr(self._instance, name)
        if isinstance(value, _METHOD_TYPES):
            return None, _STAYS
        return value, 0

    def _set(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:  # noqa: ARG002
        name, value = serialize.loads(*payload_of(flags, frames))
        self.running = f"set {name}"
        setattr(self._instance, name, value)
        return None, 0

    def _dumps_result(self, value: object) -> list[Buffer]:
        try:
            return serialize.dumps(value)
        except Exception as error:
            what = f"what {self._class_name}.{self.running}() returned"
            raise SerializationError(
                f"{what} (a {type(value).__name__}) cannot be sent back: {type(error).__name__}: {error}. "
                "Return plain data, or keep it in the actor.",
                what=what,
            ) from error

    def _failure(self, error: BaseException, method: str, call_id: int) -> list[Buffer]:
        failure = describe(error, f"{self._class_name}.{method}")
        return pack(Kind.FAILURE, 0, 0, call_id, serialize.dumps(tuple(failure)))

    def _current_attributes(self) -> frozenset[str]:
        names = frozenset(self._dict) if self._dict is not None else frozenset()
        if self._slots:
            names |= {name for name in self._slots if hasattr(self._instance, name)}
        return names


def _unpack(payload: Any, keywords: bool) -> tuple[Sequence[Any], dict[str, Any]]:
    return payload if keywords else (payload, {})


def _slots_of(cls: type) -> set[str]:
    names: set[str] = set()
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    return names - {"__dict__", "__weakref__"}
