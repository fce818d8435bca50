"""The file of a saved agent: safetensors with JSON metadata, the same for both backends.

    <path>                      when the path has a suffix (`./model.ckpt`) or is a file already
    <path>/agent.safetensors    when it has none (`./model_dir`) or is a directory already

Arrays are named `<attribute of the algorithm>/<name>` (see `AlgorithmState`), in PyTorch's names and layouts: a linear
layer's weight is `[out, in]`. Running statistics of observations, where they were saved with the agent, are float64
arrays named `environment.normalization/<name>`. Other objects that a program attached to the algorithm are described by
`others` (see `AlgorithmState`). The metadata entry `parl` is a JSON object: `format` ("parl-agent"), `version` (1),
`algorithm`, `backend`, `counters`, and `crc32` of the arrays' bytes in the order of their names, which detects
corrupted numbers; files of other programs may omit it. Nothing is ever unpickled. A file is written under a temporary
name and renamed, so a reader sees the old one or the new one, whole.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parl_core.algorithm import AlgorithmState
from parl_core.atomic_write import atomic_write
from parl_core.errors import CheckpointError
from parl_core.model import Weights

__all__ = ["SavedAgent", "locate", "read", "write"]

_FORMAT, _VERSION = "parl-agent", 1
_NAME_IN_DIRECTORY = "agent.safetensors"
_STATISTICS = "environment.normalization/"  # no attribute of an algorithm contains a dot
_OF_PARL_2 = (b"PK", b"\x80")  # the first bytes of files of torch.save and paddle.save
_LENGTH = struct.Struct("<Q")  # safetensors begins with the length of its JSON header


@dataclass(frozen=True)
class SavedAgent:
    """The content of a file.

    Attributes:
        state: Arrays and counters.
        algorithm: Class name of the algorithm that wrote it, for messages.
        backend: `torch` or `paddle`, for messages.
        normalization: Statistics of the normalisation of observations; empty if none were saved.
    """

    state: AlgorithmState
    algorithm: str
    backend: str
    normalization: Weights = field(default_factory=dict)


def locate(path: str | os.PathLike[str]) -> Path:
    """Return the file that belongs to `path`, a file or a directory, existing or not; `~` is the user's home."""
    given = Path(path).expanduser()
    is_directory = given.is_dir() or (not given.is_file() and (not given.suffix or os.fspath(path).endswith(os.sep)))
    return given / _NAME_IN_DIRECTORY if is_directory else given


def write(path: str | os.PathLike[str], saved: SavedAgent) -> Path:
    """Write the file atomically and return its path; missing directories are created."""
    from safetensors.numpy import save

    target = locate(path)
    named = saved.state.arrays | {f"{_STATISTICS}{name}": array for name, array in saved.normalization.items()}
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in named.items()}
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "algorithm": saved.algorithm,
        "backend": saved.backend,
        "counters": saved.state.counters,
        "crc32": _checksum(arrays),
    }
    if saved.state.others:
        metadata["others"] = saved.state.others
    content = save(arrays, metadata={"parl": json.dumps(metadata)})
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(content)
    return target


def read(path: str | os.PathLike[str]) -> SavedAgent:
    """Read and check a file.

    Raises:
        CheckpointError: The file is missing or damaged, or is not a saved agent of a known version; the message names
            the file and the fault.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = locate(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        arrays = load(content)
        header = json.loads(content[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(content)[0]])
    except (SafetensorError, ValueError, struct.error) as error:
        if content.startswith(_OF_PARL_2):
            advice = f"if PARL 2.x saved it, call parl_core.importing.restore(agent, {str(path)!r})"
            raise CheckpointError(f"{file} is a pickle or a zip file, not a safetensors file: {advice}") from error
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}") from error
    metadata = _metadata(file, header.get("__metadata__", {}))
    if metadata.get("crc32", found := _checksum(arrays)) != found:
        raise CheckpointError(f"{file} is damaged: the checksum of its arrays is wrong")
    statistics = {name.removeprefix(_STATISTICS): arrays[name] for name in arrays if name.startswith(_STATISTICS)}
    own = {name: array for name, array in arrays.items() if not name.startswith(_STATISTICS)}
    state = AlgorithmState(own, dict(metadata["counters"]), dict(metadata.get("others", {})))
    return SavedAgent(state, str(metadata["algorithm"]), str(metadata["backend"]), statistics)


def _checksum(arrays: Weights) -> int:
    checksum = 0
    for name in sorted(arrays):
        checksum = zlib.crc32(arrays[name].reshape(-1).view("u1").data, checksum)
    return checksum


def _metadata(file: Path, entries: dict[str, str]) -> dict[str, Any]:
    try:
        metadata: dict[str, Any] = json.loads(entries["parl"])
        counters = metadata["counters"]
        known = metadata["format"] == _FORMAT and set(metadata) >= {"version", "algorithm", "backend"}
        known = (
            known
            and isinstance(metadata.get("others", {}), dict)
            and isinstance(counters, dict)
            and all(type(value) is int for value in counters.values())
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} is a safetensors file, but not of a PARL agent: no `parl` metadata") from error
    if not known:
        raise CheckpointError(f"{file} has `parl` metadata of another kind: {entries['parl'][:200]}")
    if metadata["version"] != _VERSION:
        raise CheckpointError(
            f"{file} has version {metadata['version']}; this PARL reads version {_VERSION}: upgrade parl-core, "
            "or the program that wrote the file"
        )
    return metadata
