"""Named arrays in one file: numpy's `.npz`, which never holds code here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import SolverError

__all__ = ["read_arrays", "under", "within", "write_arrays"]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a new file; equal arrays give equal bytes."""
    named: dict[str, Any] = dict(arrays)
    path.unlink(missing_ok=True)  # it may be a link to a file that others read (see `directories.replacing`)
    np.savez(path, **named)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read what `write_arrays` wrote; pickled objects are refused.

    Raises:
        SolverError: The file is missing or damaged.
    """
    import zipfile  # here, because it is slow to import and only loading needs it

    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                raise SolverError(f"{path} is damaged: the checksum of {damaged} does not hold")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SolverError(f"{path} cannot be read: {error}") from error


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The same arrays, their names after a prefix: a part's state within that of the whole."""
    return {prefix + name: array for name, array in arrays.items()}


def within(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Those arrays whose names begin with a prefix, without it: what `under` put there."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
