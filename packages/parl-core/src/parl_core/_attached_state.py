"""The state of objects attached to an algorithm: a framework's optimizers, schedulers, generators and modules.

    self.opt = torch.optim.Adam(...)         state_dict() and load_state_dict(), or paddle's set_state_dict()
    self.rng = np.random.default_rng(0)      the state of its bit generator
    self.heads = [Head(), Head()]            also objects in lists, tuples and dictionaries
    self.e_greed -= 1e-6                     numbers, arrays and tensors that have changed
    self.model.mean = 0.9 * mean + ...       also values and generators in layers of the user's own classes

A state is written as JSON and arrays, never pickled. Models of `parl.Model` and optimizers of `parl.optim` are not
among them: `parl_core.algorithm` has those.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import CheckpointError

__all__ = [
    "Digest",
    "StateAccessor",
    "accessor_of",
    "attributes",
    "changed_values",
    "decode",
    "encode",
    "first_value",
    "is_generator",
    "values_of",
]

_DICTIONARIES = (dict, MappingProxyType)

_LARGE = 2**20  # bytes; statistics of images are smaller

_ARRAY, _NUMBER, _TENSOR, _TUPLE, _ITEMS = "$array", "$number", "$tensor", "$tuple", "$items"


@dataclass(frozen=True)
class StateAccessor:
    """The functions that read and write the state of one object."""

    get: Callable[[], Any]
    set: Callable[[Any], object]


def attributes(owner: object, *, of_any_class: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object's attributes by name; those in lists, tuples and dictionaries as `heads.0`.

    A collection with its own state is one value, and so is a mapping that is not a dictionary, because it may read a
    file.

    Args:
        owner: The object.
        of_any_class: True to include the elements of subclasses of lists, tuples and dictionaries.
    """
    for name, value in list(vars(owner).items()):  # a copy, because another thread may act for the first time meanwhile
        yield from _held(name, value, of_any_class)


def _held(name: str, value: Any, of_any_class: bool) -> Iterator[tuple[str, Any]]:
    looked_into = of_any_class or type(value) in (list, tuple, dict)
    if not looked_into or (isinstance(value, (list, tuple, *_DICTIONARIES)) and accessor_of(value) is not None):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _held(f"{name}.{index}", part, of_any_class)
    elif isinstance(value, _DICTIONARIES):
        for key, part in list(value.items()):
            yield from _held(f"{name}.{str(key).replace('/', '|')}", part, of_any_class)
    else:
        yield name, value


def is_generator(value: Any) -> bool:
    """Return whether an object is a random generator of numpy or Python with a state."""
    if isinstance(value, random.SystemRandom):
        return False
    return isinstance(value, (np.random.Generator, np.random.RandomState, random.Random))


def accessor_of(value: Any) -> StateAccessor | None:
    """Return the functions that read and write the state of an object; None if it has no state."""
    if isinstance(value, type):
        return None
    if isinstance(value, np.random.Generator):
        return StateAccessor(
            lambda: value.bit_generator.state, lambda state: setattr(value.bit_generator, "state", state)
        )
    if isinstance(value, np.random.RandomState):
        return StateAccessor(lambda: value.get_state(legacy=False), value.set_state)
    if isinstance(value, random.Random):
        return StateAccessor(value.getstate, value.setstate)
    for getter, setters in (("state_dict", ("load_state_dict", "set_state_dict")), ("get_state", ("set_state",))):
        get = getattr(value, getter, None)
        sets = [found for name in setters if callable(found := getattr(value, name, None))]
        if callable(get) and sets:
            return StateAccessor(get, sets[0])
    return None


def values_of(
    owner: object, to_array: Callable[[Any], NDArray[Any] | None], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return copies of the numbers and arrays among an object's own attributes by name, and None where they are None.

    Private attributes with a default in the class are left out, because they only cache values.

    Args:
        owner: The object.
        to_array: The function that returns a copy of a tensor, and None for anything else.
        given: The attributes to consider; default: all.
    """
    found: dict[str, Any] = {}
    for name, value in list((getattr(owner, "__dict__", {}) if given is None else given).items()):
        if name.startswith("_") and hasattr(type(owner), name):
            continue
        if value is None or isinstance(value, (bool, int, float, np.generic)):
            found[name] = value
        elif isinstance(value, np.ndarray):
            if not value.dtype.hasobject:
                found[name] = value.copy()
        elif (array := to_array(value)) is not None:
            found[name] = array
    return found


@dataclass(frozen=True)
class Digest:
    """A digest of the values of a large array, which takes less memory than a copy."""

    shape: tuple[int, ...]
    digest: bytes

    @classmethod
    def of(cls, array: NDArray[Any]) -> "Digest":
        """Return the digest of an array."""
        numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(array.shape, hashlib.blake2b(numbers.data).digest())


def first_value(value: Any) -> Any:
    """Return a value for later comparisons: the value itself, or the digest of a large array."""
    return Digest.of(value) if isinstance(value, np.ndarray) and value.nbytes > _LARGE else value


def changed_values(now: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present values that differ from the first ones."""
    return {name: value for name, value in now.items() if value is not None and not _same_value(value, first.get(name))}


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(other, Digest):
        return isinstance(one, np.ndarray) and Digest.of(one) == other
    if other is None or np.shape(one) != np.shape(other):
        return False
    if np.array_equal(one, other):  # faster than with `equal_nan`
        return True
    return np.asarray(one).dtype.kind in "fc" and bool(np.array_equal(one, other, equal_nan=True))


def encode(
    value: Any, place: str, arrays: dict[str, NDArray[Any]], to_array: Callable[[Any], NDArray[Any] | None]
) -> Any:
    """Return the JSON part of a state; its arrays and tensors go into `arrays`.

    Args:
        value: Numbers, texts, arrays, tensors, and collections of these.
        place: Its name in messages and arrays.
        arrays: The dictionary that receives copies.
        to_array: The function that returns a copy of a tensor, and None for anything else.

    Raises:
        CheckpointError: It contains a value of another type; the message says where.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        arrays[place] = np.asarray(value)
        return {_NUMBER: place}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays[place] = value.copy()
        return {_ARRAY: place}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(part, f"{place}/{key}", arrays, to_array) for key, part in value.items()}
        pairs = [
            [encode(key, f"{place}/key{index}", arrays, to_array), encode(part, f"{place}/{index}", arrays, to_array)]
            for index, (key, part) in enumerate(value.items())
        ]
        return {_ITEMS: pairs}
    if isinstance(value, (list, tuple)):
        parts = [encode(part, f"{place}/{index}", arrays, to_array) for index, part in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    array = to_array(value)
    if array is None:
        raise CheckpointError(
            f"the state of the algorithm's {place} cannot be saved: it is a {type(value).__name__}, and a checkpoint "
            "holds numbers, texts, arrays, tensors and collections of these; leave it out of its state_dict(), "
            "or do not make it an attribute of the algorithm"
        )
    arrays[place] = array
    return {_TENSOR: place}


def decode(tree: Any, arrays: Mapping[str, NDArray[Any]], to_tensor: Callable[[NDArray[Any]], Any]) -> Any:
    """Return the state that was passed to `encode`.

    Raises:
        KeyError: An array is missing.
    """
    if isinstance(tree, list):
        return [decode(part, arrays, to_tensor) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if _ARRAY in tree:
        return arrays[tree[_ARRAY]].copy()
    if _NUMBER in tree:
        return arrays[tree[_NUMBER]][()]
    if _TENSOR in tree:
        return to_tensor(arrays[tree[_TENSOR]].copy())
    if _TUPLE in tree:
        return tuple(decode(part, arrays, to_tensor) for part in tree[_TUPLE])
    if _ITEMS in tree:
        return {decode(key, arrays, to_tensor): decode(part, arrays, to_tensor) for key, part in tree[_ITEMS]}
    return {key: decode(part, arrays, to_tensor) for key, part in tree.items()}
