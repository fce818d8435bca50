"""Weights in files of other programs, read without running code that the files name.

    PARL 2.x on torch     a zip archive of torch.save: data.pkl, and one file of numbers for each storage
    PARL 2.x on paddle    a pickle of paddle.save: a dictionary of arrays
    Stable-Baselines3     a zip archive: policy.pth (of torch.save), `data` (JSON), and pickles that are not read
    VecNormalize          a pickle of Stable-Baselines3: the statistics of observations, and other objects

A pickle is a program. This reader has a fixed list of names: each is a function of this module that only builds arrays,
or a record that stores its arguments. Any other name raises an error.
"""

import io
import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import CheckpointError

__all__ = ["ForeignWeights", "read_statistics", "read_weights"]

Names = Mapping[tuple[str, str], Any]

_LARGEST_JSON = 1 << 26
_PADDLE_TABLE = "StructuredToParameterName@@"  # names of variables, which PARL's models do not need
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<?",
}
_DAMAGE = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


class ForeignWeights(NamedTuple):
    """The content of a file.

    Attributes:
        arrays: The arrays by name, in the file's order and layout: a linear layer's weight is `[out, in]` in files of
            torch and `[in, out]` in those of paddle.
        framework: "torch" or "paddle".
        settings: The JSON values of Stable-Baselines3; None for other files.
    """

    arrays: dict[str, NDArray[Any]]
    framework: str
    settings: Mapping[str, Any] | None = None


def read_weights(path: Path) -> ForeignWeights:
    """Read a file of PARL 2.x or Stable-Baselines3.

    Raises:
        CheckpointError: The file is missing, damaged or of another kind, or contains names that weights do not need.
    """
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return ForeignWeights(_of_paddle(file), "paddle")
            with zipfile.ZipFile(file) as archive:
                if "policy.pth" not in archive.namelist():
                    return ForeignWeights(_of_torch(archive), "torch")
                settings = json.loads(_member(archive, "data", _LARGEST_JSON))
                if not isinstance(settings, dict):
                    raise ValueError("its data is not a JSON object")
                policy = _member(archive, "policy.pth", archive.getinfo("policy.pth").compress_size)
                with zipfile.ZipFile(io.BytesIO(policy)) as inner:
                    return ForeignWeights(_of_torch(inner), "torch", settings)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path} is not a file of weights that PARL 2.x or Stable-Baselines3 saved, or is damaged: {error}"
        ) from error


def read_statistics(path: Path) -> Mapping[str, Any]:
    """Return the attributes of a saved VecNormalize of Stable-Baselines3, by name, with numpy arrays.

    Raises:
        CheckpointError: As in `read_weights`.
    """
    try:
        with path.open("rb") as file:
            found = _finished(_Reader(file, _ARRAYS, records=_RECORDED).load())
        if not isinstance(found, dict) or found.get("class") != "VecNormalize":
            raise ValueError("it holds something else")
        return found
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise CheckpointError(f"{path} holds no VecNormalize of Stable-Baselines3, or is damaged: {error}") from error


def _of_paddle(file: BinaryIO) -> dict[str, NDArray[Any]]:
    found = _finished(_Reader(file, _ARRAYS).load())
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not a dictionary of arrays")
    found.pop(_PADDLE_TABLE, None)
    # paddle.save writes a tensor as (name, array), and a tensor in a state_dict as an array.
    return _arrays_of({name: part[1] if type(part) is tuple else part for name, part in found.items()})


def _of_torch(archive: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
    pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise ValueError("the archive holds no data.pkl of torch.save")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist() and _member(archive, f"{folder}byteorder", 16) != b"little":
        raise ValueError("its numbers are big-endian")

    def storage(pid: Any) -> NDArray[Any]:
        kind, (typed, key, _, count) = pid[0], pid[1:5]
        if kind != "storage":
            raise ValueError(f"it refers to a {kind!r}")
        dtype = np.dtype("<u2" if typed.name == "BFloat16Storage" else _DTYPES[typed.name])
        numbers = np.frombuffer(_member(archive, f"{folder}data/{key}", count * dtype.itemsize), dtype, count)
        if typed.name == "BFloat16Storage":  # the upper half of a float32
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return numbers

    content = _member(archive, pickles[0], archive.getinfo(pickles[0]).compress_size)
    found = _finished(_Reader(io.BytesIO(content), _TENSORS, storage).load())
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not a state_dict: save model.state_dict() alone")
    return _arrays_of(found)


def _arrays_of(found: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    for name, array in found.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise ValueError(f"{name!r} is a {type(array).__name__}, not an array")
    return dict(found)


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return a member of an archive, up to a limit of bytes, because a small archive can expand to any size."""
    info = archive.getinfo(name)
    if info.file_size > limit:
        raise ValueError(f"{name} has {info.file_size} bytes; the limit is {limit}")
    return archive.read(info)


class _Reader(pickle.Unpickler):
    """Reads a pickle with a fixed list of names.

    Args:
        file: The file with the pickle.
        names: The object of each name.
        storage: The function that returns the numbers of a storage of torch.
        records: Prefixes of modules whose classes become records.
    """

    def __init__(
        self,
        file: BinaryIO,
        names: Names,
        storage: Callable[[Any], NDArray[Any]] | None = None,
        records: tuple[str, ...] = (),
    ) -> None:
        super().__init__(file)
        self._names, self._storage, self._records = names, storage, records

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of a name.

        Raises:
            pickle.UnpicklingError: The name is not on the list.
        """
        if (module, name) in self._names:
            return _Name(self._names[module, name], name)
        if module.startswith(self._records):
            return type(name, (_Record,), {})
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which such a file does not need and which could run code"
        )

    def persistent_load(self, pid: Any) -> Any:
        """Return the numbers of a storage.

        Raises:
            pickle.UnpicklingError: This kind of file has no storages.
        """
        if self._storage is None:
            raise pickle.UnpicklingError("it refers to an object outside the file")
        return self._storage(pid)


class _Name:
    """A global name of a pickle; each use is a new object, so that changes stay local."""

    def __init__(self, means: Callable[..., Any], name: str) -> None:
        self._means, self.name = means, name

    def __call__(self, *arguments: Any) -> Any:
        return self._means(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError(f"it sets a state of {self.name}")


class _DType:
    """A numpy dtype as pickles describe it."""

    def __init__(self, code: str, align: object = False, copy: object = False) -> None:  # noqa: ARG002 - numpy's order
        self.dtype = np.dtype(code)
        if self.dtype.kind not in "fiub":
            raise ValueError(f"it holds arrays of {self.dtype}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder({"|": "="}.get(state[1], state[1]))


class _Array:
    """A numpy array as pickles describe it: created empty, and filled later."""

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, content = state
        self.array = _filled(content, dtype, shape, "F" if is_fortran else "C")


def _reconstruct(subtype: object, shape: object, code: object) -> _Array:  # noqa: ARG001 - numpy's arguments
    return _Array()


def _frombuffer(content: bytes, dtype: _DType, shape: tuple[int, ...], order: str) -> _Array:
    made = _Array()
    made.array = _filled(content, dtype, shape, order)
    return made


def _filled(content: bytes, dtype: _DType, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    if not isinstance(content, (bytes, bytearray)):
        raise ValueError("an array's content is not bytes")
    return np.frombuffer(content, dtype.dtype).reshape(shape, order="F" if order == "F" else "C").copy()


def _scalar(dtype: _DType, content: bytes) -> Any:
    return np.frombuffer(content, dtype.dtype, 1)[0]


def _encoded(text: str, encoding: str) -> bytes:  # bytes in pickles of protocol 2
    if encoding != "latin1":
        raise ValueError(f"it encodes text as {encoding!r}")
    return text.encode("latin1")


def _tensor(
    storage: NDArray[Any],
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    *_: object,  # requires_grad and hooks
) -> NDArray[Any]:
    if len(size) != len(stride) or min((offset, *size, *stride)) < 0:
        raise ValueError("the size and the strides of a tensor do not match")
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if math.prod(size) and last >= len(storage):
        raise ValueError("a tensor reaches beyond its storage")
    width = storage.itemsize
    view = np.lib.stride_tricks.as_strided(storage[offset:], size, [step * width for step in stride])
    return np.array(view) if math.prod(size) else np.zeros(size, storage.dtype)


def _parameter(tensor: NDArray[Any], *_: object) -> NDArray[Any]:
    return tensor


class _Record:
    """A placeholder for an object of an unneeded class, with its state."""

    state: dict[str, Any]

    def __new__(cls, *arguments: object, **named: object) -> "_Record":  # noqa: ARG004 - what it was made of
        made = super().__new__(cls)
        made.state = {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {"state": state}


def _unused(*_: object) -> None:
    raise ValueError("it constructs a storage or an array in another way than torch and numpy")


def _finished(value: Any) -> Any:
    """Return a value with arrays instead of their descriptions."""
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {name: _finished(part) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_finished, value))
    if isinstance(value, _Record):
        return {"class": type(value).__name__, **_finished(value.state)}
    return value


_ARRAYS: Names = {
    **{(f"numpy{core}.multiarray", "_reconstruct"): _reconstruct for core in (".core", "._core")},
    **{(f"numpy{core}.multiarray", "scalar"): _scalar for core in (".core", "._core")},
    **{(f"numpy{core}.numeric", "_frombuffer"): _frombuffer for core in (".core", "._core")},
    ("numpy", "ndarray"): _unused,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encoded,
    ("builtins", "tuple"): tuple,
    ("collections", "OrderedDict"): OrderedDict,
}
_TENSORS: Names = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", name): _unused for name in (*_DTYPES, "BFloat16Storage")},
}
_RECORDED = ("stable_baselines3.", "gymnasium.spaces", "gym.spaces", "numpy.random")
