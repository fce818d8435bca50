"""Arrays on disk: snapshots in one `.npz` file, and arrays that live in a folder instead of in memory.

Replay memories, datasets, checkpoints and statistics use this format. Nothing is ever unpickled. A snapshot gets its
name when it is complete.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parl_core.atomic_write import atomic_write
from parl_core.errors import CheckpointError, HyperparameterError

__all__ = ["ArrayFolder", "check_kinds", "check_same_rows", "read_snapshot", "write_snapshot"]

STATE = "state.json"


def write_snapshot(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]]) -> Path:
    """Write arrays to an `.npz` file (a missing suffix is added), replacing it atomically.

    Returns:
        The path of the file.

    Raises:
        OSError: It cannot be written; an older file of that name is untouched.
    """
    target = Path(path)
    if target.suffix != ".npz":
        target = target.with_name(target.name + ".npz")
    with atomic_write(target) as file:
        np.savez(file, allow_pickle=False, **arrays)
    return target


def read_snapshot(path: str | os.PathLike[str], needed: set[str]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an `.npz` file.

    Raises:
        CheckpointError: There is no such file, it is damaged, or an array that is `needed` is missing.
    """
    source = Path(path)
    if not source.exists() and source.suffix != ".npz":
        source = source.with_name(source.name + ".npz")
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise CheckpointError(f"{source} does not exist: check the path") from error
    except ValueError as error:  # NumPy's message advises unpickling
        raise CheckpointError(f"{source} is not a readable .npz file: not only plain arrays") from error
    except (OSError, TypeError, EOFError, BadZipFile, zlib.error) as error:  # TypeError: a single .npy array
        raise CheckpointError(f"{source} is not a readable .npz file: {error}") from error
    if missing := sorted(needed - arrays.keys()):
        raise CheckpointError(f"{source} has no {missing}: it holds {sorted(arrays)}, another kind of memory wrote it")
    return arrays


def check_kinds(
    path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]], stored: Mapping[str, NDArray[Any]]
) -> None:
    """Raise an error for columns that do not fit the memory's dtypes, such as floats for uint8.

    Raises:
        CheckpointError: A column does not fit; the message has both dtypes.
    """
    for name, column in stored.items():
        if not np.can_cast(arrays[name].dtype, column.dtype, "same_kind"):
            raise CheckpointError(
                f"{path} holds {name} as {arrays[name].dtype}, this memory stores {column.dtype}: create it with the "
                "obs_dtype and act_dtype of the file"
            )


def check_same_rows(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]], columns: Sequence[str]) -> None:
    """Raise an error for a snapshot with inconsistent columns, before any of it is loaded.

    Raises:
        CheckpointError: The columns have different numbers of rows, or fewer than `other` (size and position) requires.
    """
    rows = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in columns}
    other = arrays["other"]
    size = int(other[0]) if other.shape == (2,) else -1
    if len(set(rows.values())) > 1 or not 0 <= size <= min(rows.values()):
        listed = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise CheckpointError(
            f"{path} does not fit together: rows of {listed}; other {other.tolist()} (size, position)"
        )


class ArrayFolder:
    """Zero-filled arrays that live in memory, or, with a directory, in memory-mapped files `<name>.npy` there.

    Args:
        directory: The directory of the files; made if it does not exist. None keeps the arrays in memory.

    Raises:
        CheckpointError: The directory holds a damaged memory, or one that was not closed (its process was killed), so
            that slots may be incomplete.
    """

    REMOVE = "Remove the directory or choose another one"

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self.directory = None if directory is None else Path(directory)
        self.state: dict[str, Any] | None = None
        self._mapped: list[np.memmap[Any, Any]] = []
        if self.directory is not None and (self.directory / STATE).exists():
            self.state = self._read()
            if not self.state.get("closed"):
                raise CheckpointError(
                    f"the replay memory in {self.directory} was not closed by the program that wrote it: "
                    "remove the directory or choose another one"
                )

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the array of that name: zeros, or the contents that a closed memory left in the directory.

        Raises:
            CheckpointError: The file there is missing or damaged, or has another shape or dtype.
            HyperparameterError: It is larger than the memory of this machine.
        """
        if self.directory is None:
            try:
                return np.zeros(shape, dtype)
            except MemoryError as error:
                raise HyperparameterError(
                    f"a replay memory of {shape[0]} rows is too large for this machine ({error}): make it smaller "
                    "(memory_size of a loop's settings, max_size of a memory)"
                ) from None
        file = self.directory / f"{name}.npy"
        if self.state is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            mapped = np.lib.format.open_memmap(file, "w+", np.dtype(dtype), shape)
        else:
            try:
                np.lib.format.open_memmap(file, "r")  # raises an error for a short file; "r+" would lengthen it
                mapped = np.lib.format.open_memmap(file, "r+")
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{file} cannot be read: {error}. {self.REMOVE}") from error
            if mapped.shape != shape or mapped.dtype != np.dtype(dtype):
                needed = f"{np.dtype(dtype)}{list(shape)}"
                raise CheckpointError(
                    f"{file} holds {mapped.dtype}{list(mapped.shape)}, this memory needs {needed}: "
                    "use the same arguments as the program that wrote it, or another directory"
                )
        self._mapped.append(mapped)
        return mapped

    def refuse(self, why: str) -> CheckpointError:
        """Return the error for an unusable state."""
        return CheckpointError(f"{self.directory}/{STATE} {why}. {self.REMOVE}")

    def begin(self) -> None:
        """Mark the directory as in use."""
        self._write({"closed": False})

    def flush(self) -> None:
        """Write every mapped array to its file."""
        for mapped in self._mapped:
            mapped.flush()

    def end(self, state: dict[str, Any]) -> None:
        """Write all arrays, and the state for the next program, which finds it in `state`."""
        self.flush()
        self._write({**state, "closed": True})

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads((self.directory / STATE).read_text())  # type: ignore[operator]  # there is a directory
        except (OSError, ValueError) as error:
            raise self.refuse(f"cannot be read: {error}") from error
        if not isinstance(state, dict):
            raise self.refuse("is not the state of a replay memory")
        return state

    def _write(self, state: dict[str, Any]) -> None:
        if self.directory is not None:
            with atomic_write(self.directory / STATE, "w") as file:
                file.write(json.dumps(state))
