"""Named arrays as one flat float32 vector, without copies, and in `.npz` files.

Evolution works on one vector; models work on named arrays. `ParameterLayout` describes the place of each array in the
vector: arrays follow each other in the given order, each in C order. `views` returns arrays that
share the memory of the vector, so perturbing the vector perturbs the model. Files contain arrays only, never code.
"""

import functools
import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf, nan, prod
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import LayoutMismatch, SolverError

__all__ = [
    "FlatVector",
    "ParameterLayout",
    "array_of",
    "float32_array",
    "float64_array",
    "read_arrays",
    "under",
    "within",
    "write_arrays",
]


FlatVector = NDArray[np.float32]
_OF_NUMPY = (int, float, np.number)  # scalars of ml_dtypes are no `np.number`


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and order of a model's parameters.

    Attributes:
        names: The unique name of each array.
        shapes: The shape of each array, in the same order.

    Raises:
        LayoutMismatch: A name is repeated, or names and shapes differ in number.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes):
            raise LayoutMismatch(f"{len(self.names)} names were given, but {len(self.shapes)} shapes")
        repeated = sorted({name for name in self.names if self.names.count(name) > 1})
        if repeated:
            raise LayoutMismatch(f"each parameter needs its own name, but {', '.join(repeated)} came twice")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "ParameterLayout":
        """Return the layout of these arrays, in the mapping's order.

        Raises:
            LayoutMismatch: One has no shape of its own and is not an array of real numbers, such as rows that differ
                in length.
        """
        shapes = []
        for name, each in arrays.items():
            array = each if hasattr(each, "shape") else float32_array(f"parameter {name!r}", each)
            shapes.append(tuple(array.shape))
        return cls(tuple(arrays), tuple(shapes))

    @functools.cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(prod(shape) for shape in self.shapes)

    def flatten(self, arrays: Mapping[str, NDArray[Any]]) -> FlatVector:
        """Copy the arrays into a new vector `[size]`.

        Raises:
            LayoutMismatch: A name is missing or unknown, a shape differs, or an array does not hold real numbers.
        """
        self._require_names(arrays)
        flat = np.empty(self.size, np.float32)
        for name, view in self.views(flat).items():
            array = float32_array(f"parameter {name!r}", arrays[name])
            if array.shape != view.shape:
                raise LayoutMismatch(f"parameter {name!r} has shape {view.shape}, the array given for it {array.shape}")
            view[...] = array
        return flat

    def views(self, flat: FlatVector) -> dict[str, FlatVector]:
        """Return arrays by name that share the memory of `flat`; they are read-only if `flat` is.

        Raises:
            LayoutMismatch: `flat` is not a contiguous float32 vector `[size]`.
        """
        self.require_vector(flat)
        views: dict[str, FlatVector] = {}
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + prod(shape)
            views[name] = flat[start:stop].reshape(shape)
            start = stop
        return views

    def require_vector(self, flat: FlatVector) -> None:
        """Raise an error unless `flat` is a contiguous float32 vector `[size]`.

        Raises:
            LayoutMismatch: It is not; the message has the actual and the expected shape and dtype.
        """
        if flat.shape != (self.size,) or flat.dtype != np.float32 or not flat.flags.c_contiguous:
            raise LayoutMismatch(
                f"the parameters must be a contiguous float32 vector of shape ({self.size},), "
                f"not {flat.dtype} of shape {flat.shape}"
            )

    def digest(self) -> bytes:
        """Return the SHA-256 of names, shapes and order, which the fingerprint of each sample includes."""
        text = json.dumps([self.names, self.shapes], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()

    def _require_names(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        missing = [name for name in self.names if name not in arrays]
        unknown = [name for name in arrays if name not in self.names]
        if missing or unknown:
            raise LayoutMismatch(
                f"the arrays do not fit the parameters: missing {missing or 'none'}, unknown {unknown or 'none'}"
            )


def float32_array(name: str, values: Any) -> NDArray[np.float32]:
    """Return numbers in float32; not finite where they are masked or beyond float32.

    Args:
        name: What they are, for messages.
        values: An array, or what numpy makes one of.

    Raises:
        LayoutMismatch: They are not real numbers.
    """
    with np.errstate(over="ignore"):
        numbers: NDArray[np.float32] = np.ma.filled(_real_numbers(name, values).astype(np.float32), np.nan)
    return numbers


def float64_array(name: str, values: Any) -> NDArray[np.float64]:
    """Return numbers in float64, as `float32_array` does in float32; also those of a condition, 0 and 1."""
    if getattr(values, "dtype", None) == np.bool_:
        values = np.ma.asarray(values).astype(np.float64)
    with np.errstate(over="ignore"):
        numbers: NDArray[np.float64] = np.ma.filled(_real_numbers(name, values).astype(np.float64), np.nan)
    return numbers


def _real_numbers(name: str, values: Any) -> NDArray[Any]:
    """Return values as integers or floats of any precision, masked if they are."""
    try:
        array = array_of(values)
    except (TypeError, ValueError) as error:
        raise LayoutMismatch(f"{name} must be an array of real numbers: {error}") from error
    held = np.ma.getdata(array)
    if held.dtype == object and all(map(_is_real, held.flat)):
        floats = np.array([_float(number) for number in held.flat]).reshape(held.shape)  # as of integers from 2**64
        array = np.ma.array(floats, mask=np.ma.getmask(array))
    if array.dtype.kind not in "fiu":
        raise LayoutMismatch(f"{name} must hold real numbers, not {array.dtype}")
    return array


def array_of(values: Any) -> NDArray[Any]:
    """Return values as an array, masked if they are; bfloat16, which numpy lacks, becomes float32.

    Raises:
        TypeError: As from numpy, as well as `ValueError`; or they are tensors that require gradients.
    """
    if type(values) is np.ndarray and values.dtype.kind in "fiub":  # most often
        return values
    try:
        values = _without_bfloat16(values)
        array = np.ma.asarray(values) if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    except RuntimeError as error:  # of torch
        raise TypeError(f"a tensor that is part of a graph of gradients must be detached: {error}") from error
    foreign = array.dtype.kind == "V" and np.can_cast(array.dtype, np.float32)  # such as float8 of ml_dtypes
    return array.astype(np.float32) if foreign else array


def _without_bfloat16(values: Any) -> Any:
    """Return values with float32 for bfloat16, at any depth of lists and tuples.

    Of tensors in bfloat16 torch makes no array, and paddle one of their bits as integers; numpy makes objects of
    scalars of ml_dtypes among integers.
    """
    if isinstance(values, list | tuple):
        if all(issubclass(kind, _OF_NUMPY) for kind in {*map(type, values)}):  # spares a look at each number
            return values
        return [_without_bfloat16(each) for each in values]
    if not str(getattr(values, "dtype", "")).endswith("bfloat16"):
        return values
    return np.asarray(values.float())[()] if hasattr(values, "float") else values.astype(np.float32)


def _is_real(number: object) -> bool:
    return isinstance(number, Real | Decimal) and not isinstance(number, bool)


def _float(number: Any) -> float:
    """Return a real number as a float, infinite if it is beyond all floats."""
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf
    except ValueError:  # a signalling NaN of `Decimal`
        return nan


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a new file, deterministically: equal arrays result in equal bytes."""
    named: dict[str, Any] = dict(arrays)
    path.unlink(missing_ok=True)  # it may be a link to a file that others read (see `directories.replacing`)
    np.savez(path, **named)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of `write_arrays`; pickled objects raise an error.

    Raises:
        SolverError: The file is missing or damaged.
    """
    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                raise SolverError(f"{path} is damaged: the checksum of {damaged} is wrong")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise SolverError(f"{path} cannot be read: {error}") from error


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays with a prefix before their names, for the state of a part within that of the whole."""
    return {prefix + name: array for name, array in arrays.items()}


def within(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names have a prefix, without the prefix: the inverse of `under`."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
