"""A replay memory on disk, in pieces: each checkpoint adds what was written since the one before.

    piece     [0, 10000)   [10000, 20000)   [20000, 30000)        numbers of transitions, counted from the first
    memory                     [15000 ............. 30000)        of max_size 15000: the first piece is not needed

Saving costs what is new, not what is there: a memory of a million transitions takes as long as an empty one. Pieces
are never changed, so checkpoints share them; a piece goes when no checkpoint needs it. Where a resumed run begins new
episodes, the next piece begins earlier, with the transitions that became the last ones of theirs.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from parl_core.errors import CheckpointError
from parl_core.replay.files import read_snapshot, write_snapshot

__all__ = ["Journal", "Journaled"]

_NAME = re.compile(r"(\d{12})-(\d{12})\.npz")


class Journaled(Protocol):
    """What is kept of a memory; `ReplayMemory` and `FrameReplayMemory` have it."""

    def place(self) -> dict[str, Any]:
        """How much was ever written (`end`), and from where on it is held (`start`)."""

    def rows_since(self, place: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
        """What was written since an earlier `place()` and is still held; all of it for None."""

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `rows_since` returned; what is not held any more by then is left out."""

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as the last one of its episode, by truncation.

        Returns:
            a place after which come all transitions that this may have changed.
        """

    def get_state(self) -> dict[str, Any]:
        """Counters, generator and priorities."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take them back; before `put_rows`."""


class Journal:
    """The pieces of one memory in a folder.

    Args:
        folder: where they are; made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place: dict[str, Any] | None = None
        self._names: list[str] = []

    def write(self, memory: Journaled) -> list[str]:
        """Write what is new, and return the names of all pieces that the memory needs now.

        Raises:
            OSError: it could not be written; what is there stays valid.
        """
        place = memory.place()
        first = place["start"] if self._place is None else max(self._place["end"], place["start"])
        if place["end"] > first:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{first:012d}-{place['end']:012d}.npz"
            write_snapshot(self._folder / name, memory.rows_since(self._place))
            self._names.append(name)
        self._place = place
        self._names = [name for name in self._names if _stop(name) > place["start"]]
        return list(self._names)

    def read(self, memory: Journaled, state: Mapping[str, Any], names: Sequence[str]) -> None:
        """Give a memory back its contents.

        Args:
            memory: made with the arguments of the saved one.
            state: what `memory.get_state()` returned when the pieces were written.
            names: the pieces.

        Raises:
            CheckpointError: the memory is another one, or a piece is missing or damaged.
        """
        memory.set_state(state)
        for name in names:
            memory.put_rows(read_snapshot(self._folder / name, {"span"}))
        self._place, self._names = memory.place(), list(names)

    def cut_episodes(self, memory: Journaled) -> None:
        """Cut the episodes of a memory that was read: the next piece has the marked transitions once more."""
        self._place = memory.cut_episodes()

    def check(self, names: Iterable[str]) -> None:
        """Refuse pieces that cannot be read, before anything is changed.

        Raises:
            CheckpointError: one is missing or damaged.
        """
        for name in names:
            read_snapshot(self._folder / name, {"span"})

    def prune(self, needed: Iterable[str]) -> None:
        """Remove all pieces but those that a checkpoint needs."""
        kept = {*needed, *self._names}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in kept and (_NAME.fullmatch(path.name) or path.name.endswith(".part")):
                    with contextlib.suppress(OSError):
                        path.unlink()


def _stop(name: str) -> int:
    found = _NAME.fullmatch(name)
    if found is None:
        raise CheckpointError(f"{name!r} is no name of a piece of replay memory")
    return int(found[2])
