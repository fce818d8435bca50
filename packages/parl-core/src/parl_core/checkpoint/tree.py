"""States as JSON and arrays: nested dictionaries and lists of numbers, texts, bytes and numpy arrays, and nothing else.

    {"end": 7, "obs": array}  <──>  {"end": 7, "obs": {"$array": "obs"}}  and  {"obs": array}

Floating-point numbers come back with the same bits, tuples as lists.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import CheckpointError

__all__ = ["from_tree", "to_tree"]

_ARRAY, _BYTES = "$array", "$bytes"


def to_tree(state: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return what JSON holds of a state, and the arrays that belong to it, by their place in the state.

    Raises:
        CheckpointError: something in it is neither a number, a text, an array, nor a collection of these; the message
            says where.
    """
    arrays: dict[str, NDArray[Any]] = {}
    return _split(state, "", arrays), arrays


def from_tree(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the state that `to_tree` was given.

    Raises:
        CheckpointError: an array is missing.
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
    # Arrays become members of a zip file: a slash in a name must not make folders of its own there.
    return f"{place}/{name.replace('/', '|')}" if place else name.replace("/", "|")
