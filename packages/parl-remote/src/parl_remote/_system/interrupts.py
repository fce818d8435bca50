"""Deferral of signal handlers: in the main thread they run where this package waits, not in the middle of its steps.

    with uninterrupted:              # a handler runs when this is left
        ...
        with interruptible:          # a wait: a handler runs at once, and may raise
            ...
        with undisturbed:            # its waits are steps like others: a handler runs when `uninterrupted` is left
            ...

Python runs a handler between any two steps of the main thread, and Ctrl-C, or the alarm behind a program's time limit,
raises there. State that several steps change, locks and half-written messages would have to survive that everywhere.
Here the handlers of the signals that usually raise are put off instead, so that what has begun is done; a wait is where
the state is whole.

Other threads are never interrupted: for them both do nothing. A signal that comes again after `_LONGEST_DEFERRAL_S` is
handled at once, so that a program whose own code hangs, such as the code that serialises an argument, can still be
ended. Finalizers are an exception, which run while garbage is collected: an error would leave one half done, and end
nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps in conversions, longer than all the rest
import contextlib
import functools
import operator
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from threading import get_ident
from types import FrameType
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "Condition",
    "Event",
    "finalizer",
    "has_own_handlers",
    "interruptible",
    "is_by_handler",
    "is_in_finalizer",
    "may_wait_in_finalizers",
    "run_finalizers",
    "take_items",
    "undisturbed",
    "uninterrupted",
]

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST_DEFERRAL_S = 1.0
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_FINALIZERS = {"__del__", "run_finalizers"}
_OURS = __name__.partition(".")[0]
_OF_ACTORS = f"{_OURS}._actor"
_USED = sys.stdlib_module_names | {"cloudpickle", "numpy", "zmq"}  # code that is called by ours as well as by users'
_whole: set[Any] = set()  # code of this package that finalizers may interrupt and wait
_left: deque[Callable[[], object]] = deque()  # actions of finalizers that have not run yet
_get_handler: Callable[[int], Any] = _signal.getsignal
_set_handler: Callable[[int, Any], Any] = _signal.signal

_main = threading.main_thread().ident
_handlers: dict[int, Any] = {}  # the program's own, by signal
_found: tuple[Any, ...] = (object(),) * len(_SIGNALS)  # their handlers when they last changed
_own: list[tuple[int, Any]] = []  # the signals among them that have a handler of the program, and that handler
_deferred: list[int] = []  # signals whose handlers have not run yet
_deferred_since = 0.0  # when the first of them came
# The blocks and waits that the main thread is in, the innermost last. A handler that raises in a wait ends it at once,
# so that what follows is not interrupted.
_within: list[int] = []
_WAIT, _ENDED_WAIT, _HELD_WAIT, _STEPS, _UNDISTURBED = range(5)


class _Uninterrupted:
    __slots__ = ("_mark",)

    def __init__(self, mark: int) -> None:
        self._mark = mark

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function that is uninterrupted, but for its waits."""

        @functools.wraps(function)
        def whole(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return whole

    def __enter__(self) -> None:
        if get_ident() == _main:
            if not _within:
                found = tuple(map(_get_handler, _SIGNALS))
                if found != _found:
                    _look_at(found)
                for number, handler in _own:
                    if _set_handler(number, _defer) is not handler:  # but equals it
                        _look_at(found)
            _within.append(self._mark)  # last: if a handler raises before this, there is nothing to undo

    def __exit__(self, *_: object) -> None:
        if get_ident() == _main:
            while _within and _within.pop() != self._mark:
                pass  # a wait in whose first or last step a handler has raised
            if not _within:
                _give_back()
            if _deferred and not (_within and _within[-1]):
                _run_handlers(None)


class _Interruptible:
    __slots__ = ()

    def __enter__(self) -> None:
        if get_ident() == _main and _within:
            if _UNDISTURBED in _within:
                _within.append(_HELD_WAIT)
                return
            _within.append(_WAIT)
            if _deferred:
                _run_handlers(None)

    def __exit__(self, *_: object) -> None:
        if get_ident() == _main and _within and _within[-1] < _STEPS:
            _within.pop()


uninterrupted = _Uninterrupted(_STEPS)
undisturbed = _Uninterrupted(_UNDISTURBED)
interruptible = _Interruptible()


class Condition(threading.Condition):
    """A condition whose waits a handler may end; those of the standard library may be left without the lock then.

    A `with` statement takes the lock in C: in the standard library's method a handler may raise when it is taken.
    """

    __enter__ = property(operator.attrgetter("_lock.__enter__"))
    __exit__ = property(operator.attrgetter("_lock.__exit__"))

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait for `notify_all`, and take the lock again; return False if the time has passed."""
        waiter = threading.Lock()
        waiter.acquire()
        woken = False
        with uninterrupted:
            self._waiters.append(waiter)  # type: ignore[attr-defined]  # as `notify_all` expects it
            held = self._release_save()  # type: ignore[attr-defined]
            try:
                with interruptible:
                    woken = waiter.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            finally:
                self._acquire_restore(held)  # type: ignore[attr-defined]
                if not woken:
                    with contextlib.suppress(ValueError):  # it was notified a moment ago
                        self._waiters.remove(waiter)  # type: ignore[attr-defined]
        return woken


class Event(threading.Event):
    """An event whose waits a handler may end; see `Condition`."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition(threading.Lock())


def take_items(into: list[Any], source: Iterator[Any], number: int | None) -> BaseException | None:
    """Add items of the program's own iterator, which may wait, to a list.

    Args:
        into: The list; it has what was taken whatever is raised.
        source: The iterator.
        number: The number of items to take; None for all.

    Returns:
        What ended the iterator, if that was an error.
    """
    with interruptible:
        try:
            into.extend(islice(source, number))
        except BaseException as error:
            trace = None if error.__traceback__ is None else error.__traceback__.tb_next
            if trace is not None and trace.tb_frame.f_code is _defer.__code__:
                raise  # raised by a handler between two steps of this function
            return error
    return None


def finalizer(action: Callable[[], object]) -> Callable[[], object]:
    """Return a finalizer whose action no handler can prevent: it records the action in C, and then runs it.

    In a finalizer written in Python, a handler can raise before the first step. The next call of `run_finalizers` runs
    the action then; a client of a cluster calls it with every heartbeat and when it waits for resources or a name.
    """
    steps: Any = (functools.partial(_left.append, action), run_finalizers)
    return functools.partial(deque, map(operator.call, steps), 0)


def run_finalizers(is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Run the actions of finalizers that a handler has ended; callable in any thread at any time."""
    if is_finalizing():  # the program has disconnected, and modules may be empty
        return
    with uninterrupted:
        while _left:
            try:
                action = _left.popleft()
            except IndexError:  # another thread took it
                return
            action()


def is_in_finalizer() -> bool:
    """Return whether this thread is in a finalizer that has interrupted code of this package, so that a wait may hang.

    The garbage collector runs a user's `__del__` in any thread at any step: in the thread that reads what the finalizer
    waits for, or while that thread is handing it on. Code that runs an actor's methods does nothing for other waits.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_finalizer = frame.f_code.co_name == "__del__" and _package_of(frame) is None
        frame = frame.f_back
        if not is_finalizer:
            continue
        packages = []
        while frame is not None and (package := _package_of(frame)) is not None:
            packages.append(package)
            frame = frame.f_back
        if any(packages) and not any(package.startswith(_OF_ACTORS) for package in packages):
            return True
    return False


def may_wait_in_finalizers(function: Callable[..., object]) -> None:
    """Mark a function of this package that holds nothing that others wait for, wherever a finalizer interrupts it."""
    _whole.add(function.__code__)


def _package_of(frame: FrameType) -> str | None:
    """Return the package of a frame: one of ours, empty for the libraries that ours uses, None for the user's code."""
    if frame.f_code in _whole:
        return ""
    name = str(frame.f_globals.get("__name__", ""))
    top = name.partition(".")[0]
    if top == _OURS:
        return name.rpartition(".")[0]
    return "" if top in _USED else None


def is_by_handler(error: BaseException) -> bool:
    """Return whether a deferred handler, or one that ran in a wait, has raised an error."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _run_handlers.__code__:
            return True
        trace = trace.tb_next
    return False


def has_own_handlers() -> bool:
    """Return whether a wait of this thread may run a handler of the program, which may wait for something itself.

    Python's own handler of SIGINT is none: it raises `KeyboardInterrupt` at once.
    """
    if get_ident() != _main:
        return False
    for number in _SIGNALS:
        handler = _get_handler(number)
        if handler is _defer:
            handler = _handlers[number]
        if callable(handler) and handler is not signal.default_int_handler:
            return True
    return False


def _look_at(found: tuple[Any, ...]) -> None:
    """Record the program's handlers, which have changed since the last time."""
    global _found, _own
    # The program may have put `_defer` back itself, which it found while it was in place.
    handlers = tuple(
        _handlers.get(number) if one is _defer else one for number, one in zip(_SIGNALS, found, strict=True)
    )
    own = [(number, one) for number, one in zip(_SIGNALS, handlers, strict=True) if callable(one)]
    _handlers.update(own)
    _own = own
    _found = handlers  # last: a handler may raise before this


def _defer(number: int, frame: FrameType | None) -> None:
    """Handle a signal later, or now where that is allowed."""
    global _deferred_since
    _deferred.append(number)
    if not _within:  # it came while the handlers were put in place or given back
        _give_back()
    elif _within[-1]:
        now = time.monotonic()
        if len(_deferred) == 1:
            _deferred_since = now
        if now - _deferred_since < _LONGEST_DEFERRAL_S or _is_in_finalizer(frame):
            return
    _run_handlers(frame)


def _is_in_finalizer(frame: FrameType | None) -> bool:
    """Return whether an exception raised here would only end a finalizer, where Python ignores it."""
    while frame is not None:
        if frame.f_code.co_name in _FINALIZERS:
            return True
        frame = frame.f_back
    return False


def _run_handlers(frame: FrameType | None) -> None:
    while _deferred:
        number = _deferred.pop(0)
        try:
            _handlers[number](number, frame)
        except BaseException:
            if _within and _within[-1] == _WAIT:
                _within[-1] = _ENDED_WAIT
            raise


def _give_back() -> None:
    """Put the program's handlers in place again, unless it has set others."""
    for number, handler in _own:
        if _get_handler(number) is _defer:
            _set_handler(number, handler)


def _after_fork() -> None:
    """Treat the thread that has forked as the main thread, as Python does."""
    global _main
    if get_ident() != _main:
        _main = get_ident()
        _within.clear()
        _deferred.clear()
        _give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
