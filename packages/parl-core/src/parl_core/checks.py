"""Checks of users' arguments, one function for each kind; code behind the checks trusts the values.

Every message names the argument, its value, the allowed values, and the remedy.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import DivergedError, HyperparameterError, ModelContractError

__all__ = [
    "check_all_known",
    "check_features",
    "check_finite",
    "check_fraction",
    "check_int",
    "check_limit",
    "check_model_method",
    "check_non_negative",
    "check_positive",
    "check_real",
    "check_rows",
    "check_scheduled",
    "check_sizes",
    "first_method",
    "first_not_finite",
    "for_team_of",
    "listed_parameters",
    "same_shape",
]


class _Implements(Protocol):
    """A model that reports the methods of its own class."""

    def implements(self, method: str) -> bool: ...


def _number(name: str, value: object) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise HyperparameterError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not math.isfinite(value):
        raise HyperparameterError(f"{name} must be finite, got {value!r}")
    return float(value)


def check_real(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number.

    Raises:
        HyperparameterError: It is not.
    """
    return _number(name, value)


def check_positive(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number above zero.

    Raises:
        HyperparameterError: It is not.
    """
    number = _number(name, value)
    if number <= 0:
        raise HyperparameterError(f"{name} must be above 0, got {value!r}")
    return number


def check_limit(name: str, value: object) -> float | None:
    """Return `value` as a float if it is a finite number above zero; None, no limit, if it is None or infinity.

    Raises:
        HyperparameterError: It is neither.
    """
    return None if value is None or value == math.inf else check_positive(name, value)


def check_non_negative(name: str, value: object) -> float:
    """Return `value` as a float if it is a finite number of at least zero.

    Raises:
        HyperparameterError: It is not.
    """
    number = _number(name, value)
    if number < 0:
        raise HyperparameterError(f"{name} must be at least 0, got {value!r}")
    return number


def check_scheduled(name: str, value: object) -> float | None:
    """Return `value`, which may be given for one call, as a float if it is a finite number of at least zero, or None.

    Raises:
        HyperparameterError: It is neither.
    """
    return None if value is None else check_non_negative(name, value)


def check_fraction(name: str, value: object) -> float:
    """Return `value` as a float if it lies in [0, 1].

    Raises:
        HyperparameterError: It does not.
    """
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise HyperparameterError(f"{name} must lie in [0, 1], got {value!r}")
    return number


def check_int(name: str, value: object, *, at_least: int = 1) -> int:
    """Return `value` as an int if it is a whole number of at least `at_least`.

    Raises:
        HyperparameterError: It is not.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise HyperparameterError(f"{name} must be a whole number, got {value!r} of type {type(value).__name__}")
    if value < at_least:
        raise HyperparameterError(f"{name} must be at least {at_least}, got {value!r}")
    return int(value)


def check_sizes(name: str, value: Any) -> tuple[int, ...]:
    """Return the sizes of layers as whole numbers of at least 1; there may be none.

    Raises:
        HyperparameterError: It is a single number, or one of them is not such a number.
    """
    if not isinstance(value, Iterable):
        raise HyperparameterError(f"{name} lists the size of each layer, such as {name}=({value!r},), got {value!r}")
    return tuple(check_int(f"{name}[{i}]", size) for i, size in enumerate(value))


def check_all_known(algorithm: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject names in the dictionary `given` that the algorithm does not have.

    Raises:
        HyperparameterError: There are unknown names; the message lists them and the known ones.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        names = ", ".join(unknown)
        raise HyperparameterError(f"{algorithm} has no hyper-parameter {names}; {hint} has {', '.join(known)}")


def check_model_method(model: _Implements, method: str, algo: str) -> None:
    """Reject a model that lacks a method that the algorithm calls.

    Raises:
        ModelContractError: The model does not implement `method`.
    """
    first_method(model, (method,), algo)


def first_method(model: _Implements, methods: Sequence[str], algo: str, team: str | None = None) -> str:
    """Return the first of `methods` that the model implements.

    Args:
        model: The algorithm's model.
        methods: Names of methods, of which it needs one.
        algo: Name of the algorithm.
        team: The kind of `parl.networks.for_team` that makes such a model, for an algorithm for several agents.

    Raises:
        ModelContractError: It implements none of them, or is not a model.
    """
    if isinstance(model, type) or not hasattr(model, "implements"):
        raise ModelContractError(f"{algo} needs a parl.Model, got {model!r} of type {type(model).__name__}")
    for method in methods:
        if model.implements(method):
            return method
    wanted = " or ".join(f"`{method}`" for method in methods)
    raise ModelContractError(
        f"`{algo}`'s model needs to implement {wanted} method; {type(model).__name__} does not: "
        "define it in that class" + (f", or make a model by {for_team_of(team)}" if team else "")
    )


def for_team_of(kind: str) -> str:
    """Return the call that makes a model of a kind for several agents."""
    return f'parl.networks.for_team(env.observation_space, env.action_space, "{kind}")'


def listed_parameters(model: Any, method: str) -> list[Any]:
    """Return the parameters that `model.get_actor_params()` or another method of its kind lists.

    Raises:
        ModelContractError: It lists none, or tensors that are not parameters of the model and would not be trained.
    """
    owner = f"{type(model).__name__}.{method}()"
    found = getattr(model, method)()
    if not isinstance(found, Iterable):
        raise ModelContractError(f"{owner} must list parameters, as layer.parameters() does, got {found!r}")
    listed = list(found)
    known = {id(parameter) for parameter in model._named_parameters().values()}
    strange = [item for item in listed if id(item) not in known]
    if strange:
        raise ModelContractError(
            f"{owner} lists {len(strange)} of {len(listed)} entries that are not trainable parameters of the model, "
            f"the first of type {type(strange[0]).__name__}: list the results of layer.parameters() of its own layers"
        )
    if not listed and not model._waiting():  # paddle's lazily shaped layers have no parameters before the first batch
        raise ModelContractError(f"{owner} lists no parameters, so nothing would be trained: list those of its layers")
    return listed


def check_features(layer: str, shape: tuple[int, ...], leading: int) -> None:
    """Reject inputs of a layer that have no dimension after the `leading` ones.

    Raises:
        ModelContractError: They have none; the message has the shape.
    """
    if len(shape) <= leading:
        raise ModelContractError(
            f"{layer} needs inputs of more than {leading} dimensions, got shape {list(shape)}; the whole numbers of a "
            "Discrete space go through parl.layers.embedding or parl.layers.one_hot first"
        )


def check_rows(what: str, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of rows that all arrays of a batch share.

    Raises:
        ValueError: The batch is empty or the first dimensions differ; the message has all of them.
    """
    rows = {len(array) if array.ndim else -1 for array in arrays.values()}
    if len(rows) == 1 and (count := rows.pop()) > 0:
        return count
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    raise ValueError(f"{what} needs arrays with the same number of rows, at least one; got {shapes}")


def first_not_finite(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the index of the first number that is NaN or infinite; None if all are finite."""
    finite = np.isfinite(array)
    return None if finite.all() else tuple(int(i) for i in np.argwhere(~finite)[0])


def check_finite(source: str, figures: Mapping[str, float]) -> None:
    """Raise an error for NaN or infinity among the figures that an update returned.

    Raises:
        DivergedError: A figure is not finite; the message names the figures, and usual remedies.
    """
    if not all(map(math.isfinite, figures.values())):
        named = ", ".join(f"{name} is {value}" for name, value in figures.items() if not math.isfinite(value))
        raise DivergedError(
            f"{source}: {named}. The weights of this process are spoiled; go back to the last checkpoint, lower the "
            "learning rate or clip gradients, and look for NaN or huge values in observations and rewards"
        )


def same_shape(**tensors: Any) -> None:
    """Raise an error for tensors of different shapes, which would silently broadcast.

    An unknown size, -1 in programs of paddle, fits every size.

    Raises:
        ValueError: Two shapes differ; the message lists all shapes.
    """
    first, *rest = tensors.values()
    for other in rest:
        if other.shape != first.shape and not _may_be_equal(other.shape, first.shape):
            listed = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
            raise ValueError(f"shapes differ: {listed}")


def _may_be_equal(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
