"""Look-up of values that are not in shared memory of this process's host.

    brought(id)    a worker that was sent a copy notes its place in the node's private directory, as a link that points
                   nowhere: its text is the place. Actors look there
    sender()       the sender of the message that this thread is reading, if on another host: it can be asked

Both give a reference that is being unpickled the context of its actor or connection.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from parl_remote._data.object_memory import Place

__all__ = ["Source", "brought", "forget_note", "has_place", "is_id", "look_in", "note", "reading_from", "sender"]

_LONGEST_ID = 100


class Reference(Protocol):
    """A reference to a value, see `object_ref.ObjectRef`."""

    id: str


class Source(Protocol):
    """A node with values that this process cannot map."""

    def hold(self, ref: Reference, place: Place) -> None:
        """Make the node keep a value of one of its processes for the lifetime of the reference."""

    def fetch(self, object_id: str, timeout_s: float | None) -> memoryview:
        """Return the value's image.

        Raises:
            ObjectLost: The node does not have it any more.
            ResultTimeout: The node did not answer in time.
        """


class _Surroundings(threading.local):
    directory: Path | None = None  # the same for all threads: set on the class
    sender: Source | None = None


_here = _Surroundings()


def look_in(socket_directory: str) -> None:
    """Set the directory in which to look for values sent to the node; called once in an actor's process."""
    _Surroundings.directory = Path(socket_directory)


def has_place() -> bool:
    """Return whether `look_in` was called, here or before the fork that made this process."""
    return _Surroundings.directory is not None


def brought(object_id: str) -> Place | None:
    """Return the location of a value that was sent to this node's worker, or None."""
    if _here.directory is None:
        return None
    from parl_remote._data.object_memory import Place  # 10 ms, and every connection imports this module

    try:
        text = os.readlink(_note_of(_here.directory, object_id))
        return Place(*map(int, text.split(":")))
    except (OSError, ValueError, TypeError):
        return None


def note(socket_directory: Path, object_id: str, place: Place) -> None:
    """Record the location of a value that was sent to the worker.

    Raises:
        OSError: The directory cannot be written to.
    """
    os.symlink(":".join(map(str, place)), _note_of(socket_directory, object_id))


def forget_note(socket_directory: Path, object_id: str) -> None:
    """Remove the record of a value."""
    with contextlib.suppress(OSError):
        os.unlink(_note_of(socket_directory, object_id))


def is_id(text: str) -> bool:
    """Return whether this can be the id of a value, and so part of a file's name."""
    return len(text) <= _LONGEST_ID and text.isascii() and text.replace("-", "").isalnum()


def _note_of(socket_directory: Path, object_id: str) -> Path:
    if not is_id(object_id):
        raise ValueError(f"{object_id!r} is no id of a value")
    return socket_directory / f"{object_id}.at"


@contextlib.contextmanager
def reading_from(source: Source | None) -> Iterator[None]:
    """Set the source of the message that this thread reads within the block; None for one on this host."""
    before, _here.sender = _here.sender, source
    try:
        yield
    finally:
        _here.sender = before


def sender() -> Source | None:
    """Return the source of the message that this thread reads, None if it is on this host."""
    return _here.sender
