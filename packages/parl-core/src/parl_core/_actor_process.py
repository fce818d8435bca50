"""The process of one of `subprocess_actors`: makes an object, and calls its methods one after another.

    first frame: (class, args, kwargs) ─> ("answer", None) or ("error", exception)
    every other: (method, args, kwargs) ─> ("answer", value) or ("error", exception)

It ends when its parent closes the connection, and also during a call when its parent dies: then the lifeline, a pipe
that only the parent could write to, is closed.
"""

import contextlib
import multiprocessing.spawn
import os
import pickle
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Mapping
from typing import Any

from parl_core.errors import ParlError

__all__ = ["HEADER", "PROGRAM_NAMES", "by_value", "main", "program_is_being_imported", "unwrapped"]

HEADER = struct.Struct("<QQ")
"""Each frame is the length of its pickle, the call's number, and the pickle; an answer has the number of its call."""
JOINED = 1 << 14
"""Bytes of an answer up to which it is copied behind its header, so that the parent wakes once."""
PROGRAM_NAMES = ("init_main_from_name", "init_main_from_path")
"""Keys of `multiprocessing.spawn.get_preparation_data` that say how to import the parent's program."""
_importing = threading.Event()


def main(connection: int, lifeline: int, program: Mapping[str, Any] | None = None) -> None:
    """Serve until the parent closes the connection.

    Args:
        connection: Descriptor of a stream socket to the parent.
        lifeline: Descriptor of a pipe's reading end.
        program: The entries of `multiprocessing.spawn.get_preparation_data` that apply here; None if none do.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the connection
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    if program:
        _importing.set()
        multiprocessing.spawn.prepare(dict(program))
        _importing.clear()
    with socket.socket(fileno=connection) as link:
        instance: Any = None
        while (received := _receive(link)) is not None:
            number, frame = received
            try:
                target, args, kwargs = pickle.loads(frame)
                if instance is None:
                    cls, args, kwargs = unwrapped(target)
                    instance, answer = cls(*args, **kwargs), None
                else:
                    answer = getattr(instance, target)(*args, **kwargs)
                reply = pickle.dumps(("answer", answer), 5)
            except Exception as error:  # any exception of the user's method is the answer
                reply = _packed_error(error)
            try:
                header = HEADER.pack(len(reply), number)
                if len(reply) <= JOINED:
                    link.sendall(header + reply)
                else:
                    link.sendall(header)
                    link.sendall(reply)
            except OSError:
                return  # the parent has closed the connection


def program_is_being_imported() -> bool:
    """Return whether this is an actor's process that is importing its parent's program."""
    return _importing.is_set()


def _receive(link: socket.socket) -> tuple[int, bytearray] | None:
    header = _exactly(link, HEADER.size)
    if header is None:
        return None
    length, number = HEADER.unpack(header)
    frame = _exactly(link, length)
    return None if frame is None else (number, frame)


def _exactly(link: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = link.recv_into(view)
        except OSError:
            return None
        if not count:
            return None
        view = view[count:]
    return data


def _packed_error(error: Exception) -> bytes:
    trace = "".join(traceback.format_exception(error))
    note = f"in the actor's process {os.getpid()}:\n{trace}"
    error.add_note(note)
    error = error.with_traceback(None)
    for made in (lambda: error, lambda: by_value(error)):
        with contextlib.suppress(Exception):  # any exception of the exception's own methods
            packed = pickle.dumps(("error", made()), 5)
            pickle.loads(packed)  # some exceptions can be pickled, but not unpickled
            return packed
    stand_in = ParlError(f"{type(error).__name__} in an actor's process: {error}")
    stand_in.add_note(note)
    return pickle.dumps(("error", stand_in), 5)


def by_value(value: object) -> Any:
    """Return an object that is pickled together with its classes and functions of the main program.

    A class that was received so is sent back as the original class. This uses Gymnasium's dependency cloudpickle, whose
    import takes longer than the start of Python.

    Raises:
        ImportError: It is not installed.
    """
    from gymnasium.vector.utils import CloudpickleWrapper

    wrapper: Any = CloudpickleWrapper
    return wrapper(value)


def unwrapped(value: Any) -> Any:
    """Return the argument of `by_value`; any other object unchanged."""
    return value.fn if type(value).__name__ == "CloudpickleWrapper" else value


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written, so this returns when the other end is closed
    os._exit(1)
