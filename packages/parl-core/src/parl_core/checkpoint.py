"""The state of a run on disk, from which training continues as if it had never stopped; it contains no pickles.

    <run>/checkpoints/
        000000020000/            one complete checkpoint; the name is the step
            manifest.json        format, version, step, checksums and sizes of the other files
            agent.safetensors    models, targets, optimizers, counters (`parl_core._agent_file`)
            state.json           everything else that is numbers and texts
            arrays.npz           all other arrays; state.json has their places
        replay/                  the replay memory, in pieces that several checkpoints share (`Journal`)
            000000000000-000000010000.npz

A checkpoint is written to a folder with a temporary name, forced to disk, and renamed; a piece of replay memory is
never changed after it has its name. So a folder with the name of a checkpoint is complete, whenever the program ends.
`to_tree` turns a state into JSON and arrays:

    {"end": 7, "obs": array}  <──>  {"end": 7, "obs": {"$array": "obs"}}  and  {"obs": array}

Floating-point numbers come back with the same bits, tuples as lists. `parl_core.training.checkpoints` decides when
which parts are saved.
"""

import contextlib
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parl_core import logger
from parl_core._array_files import read_snapshot, write_snapshot
from parl_core._version import __version__
from parl_core.atomic_write import atomic_write, sync, write_json
from parl_core.checks import check_int
from parl_core.errors import CheckpointError

__all__ = ["AGENT_FILE", "VERSION", "Checkpoint", "CheckpointStore", "Journal", "Journaled", "from_tree", "to_tree"]

_ARRAY, _BYTES = "$array", "$bytes"

VERSION = 1
"""The version of the layout, raised when older readers fail on it. A reader supports this one and all before it."""

AGENT_FILE = "agent.safetensors"
"""Name of the agent's file in a checkpoint's folder."""
_FORMAT = "parl-checkpoint"
_MANIFEST, _STATE, _ARRAYS = "manifest.json", "state.json", "arrays.npz"
_COMPLETE = re.compile(r"\d{12}")
_TEMPORARY = ".writing-"

_NAME = re.compile(r"(\d{12})-(\d{12})\.npz")


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint.

    Attributes:
        path: The folder of the checkpoint.
        step: Steps (or updates) that had been taken.
        state: The state that was passed to `CheckpointStore.write`.
        segments: Names of the pieces of replay memory that belong to it.
        backend: The backend of its agent; empty if there is none.
    """

    path: Path
    step: int
    state: Any
    segments: tuple[str, ...]
    backend: str

    @property
    def agent(self) -> Path:
        """The file of the agent, which `agent.restore` of either backend reads."""
        return self.path / AGENT_FILE


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: The folder of the checkpoints; made when the first one is written.
        keep: Number of checkpoints that are kept, at least 1. With two, one is left if the disk damages the other.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self._keep = check_int("keep", keep)

    def steps(self) -> list[int]:
        """Return the steps of the existing checkpoints, the oldest first."""
        return sorted(int(path.name) for path in self._complete())

    def needed_segments(self) -> set[str]:
        """Return the names of the pieces of replay memory that these checkpoints need."""
        return {name for path in self._complete() for name in _manifest(path / _MANIFEST)["segments"]}

    def write(
        self,
        step: int,
        state: Any,
        *,
        save_agent: Callable[[Path], object] | None = None,
        backend: str = "",
        segments: Sequence[str] = (),
    ) -> Path:
        """Write a checkpoint, remove surplus old ones, and return its folder.

        Args:
            step: The step that names the checkpoint; an existing one is replaced.
            state: See `parl_core.checkpoint`.
            save_agent: The function that writes the agent to the file that it is given.
            backend: The agent's backend.
            segments: The pieces of replay memory that it needs, already written.

        Raises:
            OSError: It could not be written; the checkpoints before are untouched.
            CheckpointError: The state contains a value that a checkpoint cannot hold.
        """
        tree, arrays = to_tree(state)
        text = json.dumps(tree).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()
        temporary = self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        final = self.folder / f"{step:012d}"
        try:
            temporary.mkdir()
            if save_agent is not None:
                save_agent(temporary / AGENT_FILE)
            write_snapshot(temporary / _ARRAYS, arrays)
            with atomic_write(temporary / _STATE) as file:
                file.write(text)
            files = {path.name: _described(path) for path in sorted(temporary.iterdir())}
            manifest = {
                "format": _FORMAT,
                "version": VERSION,
                "written_by": f"parl-core {__version__}",
                "step": step,
                "backend": backend,
                "files": files,
                "segments": list(segments),
            }
            write_json(temporary / _MANIFEST, manifest)
            sync(temporary)
            if final.exists():  # of a run that continued from an older checkpoint
                self._discard(final)
            os.rename(temporary, final)
            sync(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for path in self._complete()[: -self._keep]:
            self._discard(path)
        return final

    def read(self, step: int) -> Checkpoint:
        """Read the checkpoint of a step.

        Raises:
            CheckpointError: It is missing or damaged, or a newer PARL wrote it; the message names the file.
        """
        path = self.folder / f"{step:012d}"
        manifest = _manifest(path / _MANIFEST)
        for name, written in manifest["files"].items():
            found = _described(path / name)
            if found != written:
                raise CheckpointError(f"{path / name} is damaged: it is {found}, but {written} was written")
        text = (path / _STATE).read_bytes()
        state = from_tree(json.loads(text), read_snapshot(path / _ARRAYS, set()))
        return Checkpoint(path, int(manifest["step"]), state, tuple(manifest["segments"]), str(manifest["backend"]))

    def read_latest(self, usable: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """Read the newest complete checkpoint; None if there is no checkpoint.

        A checkpoint that was damaged on disk is renamed, with a line in the log, and the previous one is read.

        Args:
            usable: Function that raises CheckpointError if a part of a checkpoint is damaged.

        Raises:
            CheckpointError: No checkpoint is complete, or a newer PARL wrote the newest one.
        """
        damage: CheckpointError | None = None
        for step in reversed(self.steps()):
            try:
                checkpoint = self.read(step)
                if usable is not None:
                    usable(checkpoint)
                return checkpoint
            except _NewerCheckpoint:
                raise
            except CheckpointError as error:
                damage = damage or error
                path = self.folder / f"{step:012d}"
                aside = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
                os.rename(path, aside)
                logger.error("The checkpoint of step %d cannot be used and is now %s: %s", step, aside.name, str(error))
        if damage is not None:
            raise damage
        return None

    def _complete(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _COMPLETE.fullmatch(path.name))

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint atomically for readers."""
        going = self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        os.rename(path, going)
        shutil.rmtree(going, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        for path in self.folder.glob(f"{_TEMPORARY}*"):  # left by a killed program
            shutil.rmtree(path, ignore_errors=True)


class _NewerCheckpoint(CheckpointError):
    """A newer PARL wrote the checkpoint; an older one is not used silently, because this would lose work."""


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads(path.read_text())
        known = manifest["format"] == _FORMAT
        version = int(manifest["version"])
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a folder of a checkpoint has one") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not describe a checkpoint: {error}") from error
    if not known:
        raise CheckpointError(f"{path} describes something other than a checkpoint: {manifest['format']!r}")
    if version > VERSION:
        raise _NewerCheckpoint(
            f"{path} has version {version}, written by {manifest.get('written_by')}; this is parl-core {__version__}, "
            f"which reads versions up to {VERSION}: pip install --upgrade parl-core"
        )
    return dict(manifest)


def _described(path: Path) -> Mapping[str, int] | None:
    """Return size and checksum of a file; None if there is no file."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    return {"bytes": len(content), "crc32": zlib.crc32(content)}


class Journaled(Protocol):
    """A memory that a journal can save, such as `ReplayMemory` or `FrameReplayMemory`."""

    def place(self) -> dict[str, Any]:
        """Return the number of records ever written (`end`), and the first one that is still held (`start`)."""

    def rows_since(self, place: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
        """Return the records written since an earlier `place()` that are still held; for None, all held records."""

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Restore the records that `rows_since` returned; records that no longer fit are left out."""

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as the last one of its episode, by truncation.

        Returns:
            a place before all transitions that this may have changed.
        """

    def get_state(self) -> dict[str, Any]:
        """Return counters, generator and priorities."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `get_state`; call it before `put_rows`."""


class Journal:
    """A replay memory on disk, in pieces: each checkpoint adds the transitions since the previous one.

        piece     [0, 10000)   [10000, 20000)   [20000, 30000)        numbers of transitions, counted from the first
        memory                     [15000 ............. 30000)        of max_size 15000: the first piece is not needed

    The time to save depends only on the number of new transitions. Pieces are never changed, so checkpoints share them;
    a piece is removed when no checkpoint needs it. If a resumed run begins new episodes, the next piece begins earlier,
    with the transitions that became the last ones of their episodes.

    Args:
        folder: The folder of the checkpoints; made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place: dict[str, Any] | None = None
        self._names: list[str] = []

    def write(self, memory: Journaled) -> list[str]:
        """Write the new records, and return the names of all pieces that the memory needs now.

        Raises:
            OSError: It could not be written; the existing pieces stay valid.
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
        """Restore the contents of a memory.

        Args:
            memory: The memory, made with the arguments of the saved one.
            state: The result of `memory.get_state()` when the pieces were written.
            names: The pieces.

        Raises:
            CheckpointError: The memory is a different one, or a piece is missing or damaged.
        """
        memory.set_state(state)
        for name in names:
            memory.put_rows(read_snapshot(self._folder / name, {"span"}))
        self._place, self._names = memory.place(), list(names)

    def cut_episodes(self, memory: Journaled) -> None:
        """Cut the episodes of a memory that was read, and write the marked transitions again in the next piece."""
        self._place = memory.cut_episodes()

    def check(self, names: Iterable[str]) -> None:
        """Check all pieces before anything is changed.

        Raises:
            CheckpointError: A piece is missing or damaged.
        """
        for name in names:
            read_snapshot(self._folder / name, {"span"})

    def prune(self, needed: Iterable[str]) -> None:
        """Remove the pieces that no checkpoint needs."""
        kept = {*needed, *self._names}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in kept and (_NAME.fullmatch(path.name) or path.name.endswith(".part")):
                    with contextlib.suppress(OSError):
                        path.unlink()


def _stop(name: str) -> int:
    found = _NAME.fullmatch(name)
    if found is None:
        raise CheckpointError(f"{name!r} is not a name of a piece of replay memory")
    return int(found[2])


def to_tree(state: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the JSON part of a state, and its arrays by their position in the state.

    Raises:
        CheckpointError: It contains a value other than numbers, texts, arrays and collections of these; the message
            names the place.
    """
    arrays: dict[str, NDArray[Any]] = {}
    return _split(state, "", arrays), arrays


def from_tree(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the state that was passed to `to_tree`.

    Raises:
        CheckpointError: An array is missing.
    """
    if isinstance(tree, list):
        return [from_tree(part, arrays) for part in tree]
    if not isinstance(tree, dict):
        return tree
    for marker in (_ARRAY, _BYTES):
        if marker in tree:
            if tree[marker] not in arrays:
                raise CheckpointError(f"the checkpoint lacks the array {tree[marker]!r}")
            array = arrays[tree[marker]]
            return array if marker == _ARRAY else array.tobytes()
    return {name: from_tree(part, arrays) for name, part in tree.items()}


def _split(value: Any, place: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, bytes):
        arrays[place] = np.frombuffer(value, np.uint8)
        return {_BYTES: place}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays[place] = value
        return {_ARRAY: place}
    if isinstance(value, (list, tuple)):
        return [_split(part, _below(place, str(index)), arrays) for index, part in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: _split(part, _below(place, name), arrays) for name, part in value.items()}
    raise CheckpointError(
        f"a checkpoint holds numbers, texts, bytes, numpy arrays, and lists and dictionaries of these (with texts for "
        f"names that do not begin with $); {place or 'the state'} is {type(value).__name__}: {str(value)[:100]}"
    )


def _below(place: str, name: str) -> str:
    # Arrays become members of a zip file, so a slash in a name must not create folders there.
    return f"{place}/{name.replace('/', '|')}" if place else name.replace("/", "|")
