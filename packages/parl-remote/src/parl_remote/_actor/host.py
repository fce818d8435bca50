"""The host of one user's object: takes call messages and returns the replies.

    frames of CREATE, CALL, GET, SET  -->  ActorHost.handle  -->  frames of RESULT, FAILURE

    many calls at a time, for runners:     accept, then start -->  the value, or something to await
                                           finish             -->  frames of RESULT, FAILURE

No sockets, no processes and no threads: an actor process, `connect(debug=True)` and `as_remote` drive the same host.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from multiprocessing import process
from typing import Any, NamedTuple, NoReturn, TypeAlias

from parl_remote import _current
from parl_remote._actor.reports import CallMeter, ExitReport
from parl_remote._actor.state import ActorEvent, ActorMachine, ActorState
from parl_remote._data import serialize
from parl_remote._data.answers import describe, slots_of, traceback_of
from parl_remote._data.class_spec import ClassSpec
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import BY_NAME, HEADER_BYTES, Flag, Kind, header_of, pack, payload_of
from parl_remote._streams import can_stream, of_part, open_stream, stream_method
from parl_remote._system.texts import class_name_of, described
from parl_remote._transport import Buffer
from parl_remote.errors import DeathKind, RemoteProtocolError, SerializationError

__all__ = [
    "MANY",
    "ONE_BY_ONE",
    "ActorHost",
    "Concurrency",
    "ConcurrencyMode",
    "Construct",
    "Creation",
    "HoldingReply",
    "Run",
    "concurrency_of",
    "end_copy",
    "flush_output",
]


MANY = 1000  # coroutines are cheap; the limit bounds the memory of an actor with many callers


class ConcurrencyMode(Enum):
    """The means by which calls run."""

    SERIAL = "one after the other"
    THREADS = "threads"
    LOOP = "an event loop"


class Concurrency(NamedTuple):
    """The means by which calls run, and the maximum number at once."""

    how: ConcurrencyMode
    limit: int


ONE_BY_ONE = Concurrency(ConcurrencyMode.SERIAL, 1)


def concurrency_of(cls: type, asked: int | None) -> Concurrency:
    """Return the concurrency of a class.

    Args:
        cls: The actor's class.
        asked: `max_concurrency`, 1 or more; None if it was not given.
    """
    if _has_async_methods(cls):
        return Concurrency(ConcurrencyMode.LOOP, asked or MANY)
    return ONE_BY_ONE if asked in {None, 1} else Concurrency(ConcurrencyMode.THREADS, asked or 1)


def _has_async_methods(cls: type) -> bool:
    """Return whether any method is `async def`, also under decorators that set `__wrapped__`."""
    for base in cls.__mro__:
        for attribute in base.__dict__.values():
            function = getattr(attribute, "__func__", attribute)
            if type(function) is types.FunctionType and not function.__dict__:  # the usual case, without `inspect`
                if function.__code__.co_flags & _ASYNC:
                    return True
            elif callable(function):
                unwrapped = inspect.unwrap(function)
                if inspect.iscoroutinefunction(unwrapped) or inspect.isasyncgenfunction(unwrapped):
                    return True
    return False


_log = logging.getLogger("parl.remote")
_KEYWORDS = int(Flag.KEYWORDS)
_EMPTY = int(Flag.EMPTY)
_NAMES = int(Flag.NAMES)
_STAYS = int(Flag.STAYS)
_HANDLES = int(Flag.HANDLES)
_CREATE, _CALL, _RESULT = int(Kind.CREATE), int(Kind.CALL), int(Kind.RESULT)
# Of each method. A write costs as much as half a call, so answers of quick calls are sent together after that.
_EARLY_RUNS = 64
_NO_KEYWORDS: dict[str, Any] = {}
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_METHOD_TYPES = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


class Creation(NamedTuple):
    """The payload of CREATE.

    Attributes:
        sys_path: The caller's import paths, for importing the class; None stands for the actor's own paths.
        argv: The program's arguments, which the actor's code may parse as well.
        class_name: The class's name, for messages about failures before the class is loaded.
        cls: The class, as `class_spec.dumps_class` gave it.
        names: Methods in the order in which calls number them.
        arguments: Pickle of the constructor's arguments; its buffers are the message's further frames.
        keywords: Whether that is `(args, kwargs)`.
        max_concurrency: The maximum number of calls at once; None if the class determines it.
        saves: Whether the object's state is saved after calls, see `ActorHost.on_state`.
        state: Pickle of the last state that the object saved, None on first creation.
        state_buffers: The number of the message's last frames that belong to the state.
        authkey: The program's key of `multiprocessing`, by which its managers recognise its processes; empty for none.
    """

    sys_path: tuple[str | None, ...]
    argv: tuple[str, ...]
    class_name: str
    cls: bytes
    names: tuple[str, ...]
    arguments: bytes
    keywords: bool
    max_concurrency: int | None = None
    saves: bool = False
    state: bytes | None = None
    state_buffers: int = 0
    authkey: bytes = b""


class HoldingReply(list[Buffer]):
    """A reply that contains references, which are held until the caller has received them.

        reply with Flag.HANDLES --> the caller connects to the actors in it --RECEIVED--> the sender releases them

    Attributes:
        call_id: The number of the call that it answers.
        references: The objects that the references lead to.
    """

    def __init__(self, frames: list[Buffer], call_id: int, references: list[object]) -> None:
        super().__init__(frames)
        self.call_id = call_id
        self.references = references


class Run:
    """One of several concurrent calls.

    Attributes:
        call_id: The caller's number for it.
        name: The method, once it is known.
        stays: True if its result stays in the actor.
    """

    __slots__ = ("began", "call_id", "flags", "frames", "index", "kind", "name", "stays")

    def __init__(self, frames: Sequence[memoryview]) -> None:
        self.kind, self.flags, self.index, self.call_id = header_of(frames[0])
        self.frames: Sequence[memoryview] = frames
        self.name = ""
        self.stays = False
        self.began = 0.0


Construct: TypeAlias = Callable[[Concurrency, Callable[[], object]], object]


def _discard_state(_: list[Buffer]) -> None:
    """Discard a saved state."""


def _nothing() -> None:
    """Do nothing."""


def _construct_here(_: Concurrency, make: Callable[[], object]) -> object:
    """Run a constructor at once."""
    return make()


class ActorHost:
    """Hosts one object and runs its calls.

    Args:
        load_class: Loads the class from `Creation.cls`.
        construct: See the attribute.

    Attributes:
        construct: Runs the constructor where calls will run later; receives their concurrency.
        machine: The state machine of the actor's life.
        running: The method that was started last, for death reports.
        meter: Counts the calls.
        concurrency: The concurrency of calls; known once the object is made.
        on_state: Receives each saved state, a message to the actor's owner.
        on_early_run: Called before the first runs of each method, one of which may end the process.
        page: The file in which the worker sees the counted calls; empty if there is none.
    """

    def __init__(
        self,
        load_class: Callable[[bytes], Any] = serialize.loads,
        construct: Construct = _construct_here,
    ) -> None:
        self._load_class = load_class
        self.construct = construct
        self.concurrency = ONE_BY_ONE
        self._finishing = threading.Lock()  # only where several calls run at a time
        self.machine = ActorMachine(ActorState.LEASED)
        self.running = ""
        self.meter = CallMeter()
        self.page = ""
        self.exit_report = ExitReport(DeathKind.RELEASED)
        self._instance: object = None
        self._class_name = "actor"
        self._methods: tuple[str, ...] = ()
        self._attributes: frozenset[str] = frozenset()
        self.on_state: Callable[[list[Buffer]], None] = _discard_state
        self.on_early_run: Callable[[], None] = _nothing
        self._early_runs: dict[str, int] = {}
        self._proven: set[str] = set()  # methods that have run often
        self._saves = False
        self._state_references: list[object] = []
        self._slots: Mapping[str, types.MemberDescriptorType] = {}
        self._dict: dict[str, Any] | None = None
        self._is_copy = False

    def become_copy(self) -> None:
        """Record that this is the child of a fork: the call that forked ends the process when it returns or raises."""
        self._is_copy = True

    def handle(self, frames: Sequence[memoryview]) -> list[Buffer]:
        """Process a message and return the reply's frames.

        Raises:
            RemoteProtocolError: The message is not allowed in this state, or is malformed.
        """
        kind, flags, index, call_id = header_of(frames[0])
        if kind == _CREATE:
            return self._create(flags, call_id, frames)
        if kind not in _ACTIONS:
            raise RemoteProtocolError(f"an actor cannot take a message of kind {kind}")
        event, action = _ACTIONS[kind]
        self.machine.on(event)
        began = self.meter.began()
        try:
            value, reply_flags = action(self, flags, index, frames)
            if self._is_copy:
                end_copy(None)
            references: list[object] = []
            payload = [] if value is None else self._dumps_result(value, self.running, references)
            if self._dict is None or self._slots or self._dict.keys() != self._attributes:
                names = self._current_attributes()
                if names != self._attributes:
                    self._attributes = names
                    payload, reply_flags = _with_names(payload, names), reply_flags | _NAMES
            reply = _reply(_RESULT, reply_flags, call_id, payload, references)
        except BaseException as error:
            if self._is_copy:
                end_copy(error)
            self.machine.on(ActorEvent.FAILED)
            self.meter.failed(began, error)
            if self._saves:
                self._save()
            return self._failure(error, self.running, call_id)
        if self._saves:
            self._save()
        if self._is_copy:  # made while the answer was pickled, or the state saved
            end_copy(None)
        self.meter.ended(began)
        self.machine.on(ActorEvent.FINISHED)
        return reply

    def hold(self, instance: object) -> None:
        """Host an existing object."""
        self._instance = instance
        with contextlib.suppress(AttributeError):
            self._dict = object.__getattribute__(instance, "__dict__")  # past a `__getattr__` of the user's
        self._slots = slots_of(type(instance))
        self._attributes = self._current_attributes()

    def adopt(self, instance: object, class_name: str, methods: tuple[str, ...]) -> None:
        """Serve an object that was not made by this host.

        Args:
            instance: The object.
            class_name: The name of its class in messages.
            methods: Its methods in the order in which calls number them.
        """
        self._class_name = class_name
        self._methods = methods
        self.machine.state = ActorState.READY
        self.hold(instance)

    @property
    def class_name(self) -> str:
        """The name of the object's class in messages."""
        return self._class_name

    @property
    def sends_at_once(self) -> bool:
        """Return whether the object's class requests that no reply is held while further calls wait."""
        return "_parl_sends_at_once" in vars(type(self._instance))

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the object's attributes, as last reported."""
        return tuple(self._attributes)

    def refuse(self, error: BaseException, call_id: int) -> list[Buffer]:
        """Return the reply to a call that could not be received."""
        return self._failure(error, self.running, call_id)

    def drop_instance(self) -> None:
        """Drop the user's object, so that its `__del__` runs."""
        self._instance = None
        self._dict = None

    # -- several calls at a time -----------------------------------------------------------------------------------

    def accept(self, frames: Sequence[memoryview]) -> Run:
        """Record that a call was queued.

        Raises:
            RemoteProtocolError: The message is not allowed in this state, or is malformed.
        """
        run = Run(frames)
        if run.kind not in _ACTIONS:
            raise RemoteProtocolError(f"an actor cannot take a message of kind {run.kind}")
        with self._finishing:
            self.machine.on(_ACTIONS[run.kind][0])
        return run

    def start(self, run: Run) -> Any:
        """Run a call and return its result, which may have to be awaited.

        Raises:
            BaseException: The exception of the method.
        """
        frames, run.frames = run.frames, ()
        run.began = self.meter.began()
        if run.kind == _CALL:
            if run.index != BY_NAME:
                run.name = self._methods[run.index]
            name, args, kwargs = self._called(run.flags, run.index, frames)
            run.name = name
            value = self._method(name)(*args, **kwargs)
            run.stays = value is self._instance and _may_return_self(name)
        else:
            value, reply_flags = _ACTIONS[run.kind][1](self, run.flags, run.index, frames)
            run.name = self.running
            run.stays = bool(reply_flags & _STAYS)
        return value

    def finish(self, run: Run, value: Any, error: BaseException | None, send: Callable[[list[Buffer]], None]) -> None:
        """Pass a call's reply to `send`; callable from any thread.

        Args:
            run: The call.
            value: The value that it returned.
            error: The exception that it raised instead.
            send: Takes the reply; must not block, because replies that report new attributes are sent in order.
        """
        if self._is_copy:
            end_copy(error)
        if self.machine.state is ActorState.CLOSED:
            return  # the object was given up while this ran
        run.stays = run.stays or (value is self._instance and _may_return_self(run.name))  # known since it was awaited
        flags = _STAYS if run.stays else 0
        payload: list[Buffer] = []
        references: list[object] = []
        if error is None and value is not None and not run.stays:
            try:
                payload = self._dumps_result(value, run.name, references)
            except BaseException as failure:
                error = failure
        if error is not None:
            reply = self._failure(error, run.name, run.call_id)
            self.meter.failed(run.began, error)
            with self._finishing:
                self.machine.on(ActorEvent.FAILED)
            send(reply)
            return
        self.meter.ended(run.began)
        with self._finishing:
            self.machine.on(ActorEvent.FINISHED)
            if self._saves:
                self._save()
            names = self._current_attributes()
            if names != self._attributes:
                self._attributes = names
                payload, flags = _with_names(payload, names), flags | _NAMES
                send(_reply(_RESULT, flags, run.call_id, payload, references))
                return
        send(_reply(_RESULT, flags, run.call_id, payload, references))

    def drop(self, run: Run) -> list[Buffer]:
        """Return the reply for a call that was cancelled before it finished."""
        if run.began:
            self.meter.ended(run.began)
        with self._finishing:
            self.machine.on(ActorEvent.FAILED)
        return pack(Kind.FAILURE, Flag.CANCELLED, 0, run.call_id)

    # -- inner steps -------------------------------------------------------------------------------------------------

    def _create(self, flags: int, call_id: int, frames: Sequence[memoryview]) -> list[Buffer]:
        self.machine.on(ActorEvent.CREATE)
        began = self.meter.began()
        self.meter.runs("__init__")
        try:
            data, buffers = payload_of(flags, frames)
            creation = Creation(*serialize.loads(data))
            self._class_name = creation.class_name
            self._methods = creation.names
            self.running = "__init__"
            sys.path[:] = [path for given in creation.sys_path for path in (sys.path if given is None else (given,))]
            sys.argv[:] = creation.argv
            if creation.authkey:
                process.current_process().authkey = creation.authkey
            self.exit_report = ExitReport(DeathKind.IMPORT)
            cls = self._load_class(creation.cls)
            self.exit_report = ExitReport(DeathKind.CONSTRUCTOR)
            buffers, saved = _split(buffers, creation.state_buffers)
            args, kwargs = _unpack(serialize.loads(creation.arguments, buffers), creation.keywords)

            def make() -> object:
                instance = _current.construct_here(cls, args, kwargs)
                if creation.state is not None:
                    self.running = "__parl_load__"
                    instance.__parl_load__(serialize.loads(creation.state, saved))
                return instance

            concurrency = concurrency_of(cls, creation.max_concurrency)
            instance = self.construct(concurrency, make)
            if self._is_copy:
                end_copy(None)
            self.hold(instance)
            self.concurrency = concurrency
            self._saves = creation.saves
            if self._saves:
                self._save()
            reply = pack(_RESULT, 0, 0, call_id, serialize.dumps(tuple(sorted(self._attributes))))
            self.exit_report = ExitReport(DeathKind.RELEASED)
        except BaseException as error:
            if self._is_copy:
                end_copy(error)
            self.machine.on(ActorEvent.FAILED)
            self.exit_report = self.exit_report.with_error(error)
            self.meter.failed(began, error)
            return self._failure(error, self.running, call_id)
        self.meter.constructed(began)
        if concurrency is not ONE_BY_ONE:
            self.meter = self.meter.shared()
        self.machine.on(ActorEvent.FINISHED)
        return reply

    def _call(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:
        if flags & _EMPTY and index != BY_NAME:
            self.running = name = self._methods[index]
            self.meter.runs(name)
            if name not in self._proven:
                self._runs_early(name)
            value = getattr(self._instance, name)()
            if value is self._instance and _may_return_self(name):
                return None, _STAYS
            return value, 0
        if not flags and index != BY_NAME:  # the usual case: a few small arguments
            self.running = name = self._methods[index]
            self.meter.runs(name)
            try:
                args = serialize.loads(frames[0][HEADER_BYTES:], frames[1:])
            except Exception as error:
                raise self._unreadable(name, error) from error
            if name not in self._proven:
                self._runs_early(name)
            value = getattr(self._instance, name)(*args)
            return (None, _STAYS) if value is self._instance and _may_return_self(name) else (value, 0)
        name, args, kwargs = self._called(flags, index, frames)
        method = self._method(name)
        value = method(*args, **kwargs) if kwargs else method(*args)
        return (None, _STAYS) if value is self._instance and _may_return_self(name) else (value, 0)

    def _runs_early(self, name: str) -> None:
        runs = self._early_runs[name] = self._early_runs.get(name, 0) + 1
        if runs >= _EARLY_RUNS:
            self._proven.add(name)
        self.on_early_run()

    def _method(self, name: str) -> Callable[..., Any]:
        """Return the callable of a call by name: a method of the object, or the reading of one of its generators."""
        if name not in self._proven:
            self._runs_early(name)
        return stream_method(name) or getattr(self._instance, name)

    def _called(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[str, Any, dict[str, Any]]:
        """Return the name, arguments and keyword arguments of a call."""
        self.running = name = "" if index == BY_NAME else self._methods[index]
        self.meter.runs(name)
        if flags & _EMPTY:
            return name, (), _NO_KEYWORDS
        payload = self._loads_arguments(name, flags, frames)
        if not name:
            name, payload = payload
            self.running = name
            self.meter.runs(name)
        return (name, *payload) if flags & _KEYWORDS else (name, payload, _NO_KEYWORDS)

    def _loads_arguments(self, name: str, flags: int, frames: Sequence[memoryview]) -> Any:
        data, buffers = payload_of(flags, frames)
        try:
            return serialize.loads(data, buffers)
        except Exception as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> SerializationError:
        return serialize.unreadable(f"the arguments of {self._class_name}.{name}()", "actor", error)

    def _get(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:  # noqa: ARG002
        name = serialize.loads(*payload_of(flags, frames))
        self.running = f"get {name}"
        self.meter.runs(self.running)
        value = getattr(self._instance, name)
        if isinstance(value, _METHOD_TYPES):
            return None, _STAYS
        return value, 0

    def _set(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:  # noqa: ARG002
        name, value = serialize.loads(*payload_of(flags, frames))
        self.running = f"set {name}"
        self.meter.runs(self.running)
        setattr(self._instance, name, value)
        return None, 0

    def _list_names(self, flags: int, index: int, frames: Sequence[memoryview]) -> tuple[Any, int]:  # noqa: ARG002
        self.running = "the names of its attributes"
        now = ClassSpec(type(self._instance))  # the class may have got more attributes since the caller described it
        return tuple(self._current_attributes() | now.values | (now.methods.keys() - {*self._methods})), 0

    def _save(self) -> None:
        """Send the object's saved state, before the answer to the call that may have changed it."""
        instance: Any = self._instance
        try:
            state = instance.__parl_save__()
            if state is None:
                return
            references: list[object] = []
            frames = pack(Kind.STATE, 0, 0, 0, serialize.dumps(state, references))
            self._state_references = references
        except Exception as error:
            _log.error(
                "%s.__parl_save__() failed; the state that it saved before is kept\n%s",
                self._class_name,
                traceback_of(error),
            )
        else:
            self.on_state(frames)

    def _dumps_result(self, value: object, name: str, references: list[object]) -> list[Buffer]:
        try:
            return serialize.dumps(value, references)
        except Exception as error:
            if isinstance(value, RemoteFuture):  # the caller wants its value or its error
                return self._dumps_result(value.result(), name, references)
            if can_stream(value):
                return serialize.dumps(open_stream(value), references)
            what = f"what {self._class_name}.{name}() returned"
            if stream_method(name) is not None and isinstance(value, tuple):
                what, value = f"what a generator of {self._class_name} yielded", of_part(value)
            raise SerializationError(
                f"{what} (a {class_name_of(type(value))}) cannot be sent back: {serialize.inside(value, 'it')}"
                f"{described(error)}. "
                f"{_advice(value)}",
                what=what,
            ) from error

    def _failure(self, error: BaseException, method: str, call_id: int) -> list[Buffer]:
        references: list[object] = []
        failure = describe(error, f"{self._class_name}.{method}", references)
        return _reply(int(Kind.FAILURE), 0, call_id, serialize.dumps(tuple(failure)), references)

    def _current_attributes(self) -> frozenset[str]:
        names = frozenset(self._dict) if self._dict is not None else frozenset()
        if self._slots:
            names |= {name for name, slot in self._slots.items() if _is_set(slot, self._instance)}
        return names


_ACTIONS: Mapping[int, tuple[ActorEvent, Callable[[ActorHost, int, int, Sequence[memoryview]], tuple[Any, int]]]] = {
    _CALL: (ActorEvent.CALL, ActorHost._call),
    int(Kind.GET): (ActorEvent.GET_ATTR, ActorHost._get),
    int(Kind.SET): (ActorEvent.SET_ATTR, ActorHost._set),
    int(Kind.NAMES): (ActorEvent.GET_ATTR, ActorHost._list_names),
}


def end_copy(error: BaseException | None) -> NoReturn:
    """End a process that a method forked, once the method has returned or raised there, as a program would end.

    Args:
        error: The exception that it raised, which goes to the actor's log; None if it returned.
    """
    code = 0
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        code = error.code or 0
    elif error is not None:
        code = 1
        with contextlib.suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Flush the user's streams, even if they were replaced."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def _with_names(payload: Sequence[Buffer], names: frozenset[str]) -> list[Buffer]:
    """Return the payload of an answer that also names the object's attributes."""
    return serialize.dumps((serialize.Pickled(payload) if payload else None, tuple(names)))


def _reply(kind: int, flags: int, call_id: int, payload: list[Buffer], references: list[object]) -> list[Buffer]:
    """Return a reply's frames, as a `HoldingReply` if they contain references."""
    if not references:
        return pack(kind, flags, 0, call_id, payload)
    return HoldingReply(pack(kind, flags | _HANDLES, 0, call_id, payload), call_id, references)


def _may_return_self(method: str) -> bool:
    """Return whether statements such as `with`, `for` and `+=` need the method's object itself, not a copy."""
    return method in {"__enter__", "__aenter__", "__aiter__"} or (method.startswith("__i") and method.endswith("__"))


def _advice(value: object) -> str:
    """Return advice on a result that cannot be sent."""
    if inspect.iscoroutine(value):
        value.close()  # it will not be awaited
        return "Write the method as `async def`, so that the actor knows that it has to be awaited."
    return "Return plain data, or keep it in the actor."


def _split(buffers: Sequence[memoryview], last: int) -> tuple[Sequence[memoryview], Sequence[memoryview]]:
    """Return all buffers but the last ones, and the last ones."""
    at = len(buffers) - last
    return buffers[:at], buffers[at:]


def _unpack(payload: Any, keywords: bool) -> tuple[Sequence[Any], dict[str, Any]]:
    return payload if keywords else (payload, {})


def _is_set(slot: types.MemberDescriptorType, instance: object) -> bool:
    """Return whether an object's slot has a value; calls no `__getattr__` of its class."""
    try:
        slot.__get__(instance)
    except AttributeError:
        return False
    return True
