"""Looks at what the methods of a model return, once, before the first update; such as those that have to be pairs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import Algorithm
from parl_core.errors import ModelContractError
from parl_core.nested import map_nested

__all__ = ["check_pairs", "outputs_of", "tried_out"]

# More than two, so that what a single critic returns cannot be unpacked as a pair.
_ROWS = 3


def check_pairs(algorithm: Algorithm, pairs: Mapping[str, str], obs: Any, action: NDArray[Any]) -> None:
    """Refuse a model of which one of the methods returns something else than a pair.

    Args:
        algorithm: whose model is asked.
        pairs: what each method has to return, in words; methods other than `policy` also take the action.
        obs: of a batch, `[batch, ...]` or a dictionary of such; the first row is tried.
        action: `[batch, act_dim]`.

    Raises:
        ModelContractError: it names the method, what it returned and what it has to return.
    """

    with tried_out(algorithm, obs, action) as (rows, actions, _):
        for method, wanted in pairs.items():
            try:
                found = getattr(algorithm.model, method)(*((rows,) if method == "policy" else (rows, actions)))
            except Exception:  # any: the update, which is next, raises it again and is explained
                return
            _check_pair(algorithm, method, wanted, found)


def outputs_of(algorithm: Algorithm, method: str, obs: Any, dimensions: int = 2) -> int | None:
    """How many numbers a method of the model returns side by side for an observation.

    Args:
        algorithm: whose model is asked.
        method: takes observations alone; where it returns several arrays, the first one counts.
        obs: of a batch, `[batch, ...]` or a dictionary of such; the first row is tried.
        dimensions: of what it returns, with that of the batch.

    Returns:
        The size of the last dimension; None where the method fails or returns something else, which the update, which
        is next, explains.
    """
    with tried_out(algorithm, obs, np.zeros(1)) as (rows, _, _), suppress(Exception):  # any, as above
        found = algorithm._run(getattr(algorithm.model, method), rows)
        shape = tuple((found[0] if isinstance(found, tuple) else found).shape)
        return int(shape[-1]) if len(shape) == dimensions else None
    return None


@contextmanager
def tried_out(algorithm: Algorithm, obs: Any, action: NDArray[Any]) -> Iterator[tuple[Any, Any, int]]:
    """A context in which the model can be looked at: nothing is learned, counted or drawn by it.

    Args:
        algorithm: whose model is asked.
        obs: of a batch, `[batch, ...]` or a dictionary of such; the first row is tried.
        action: `[batch, act_dim]`.

    Yields:
        (observations, actions, rows): tensors of so many equal rows.
    """

    def repeated(array: Any) -> Any:
        return algorithm._tensor(np.repeat(array[:1], _ROWS, axis=0))

    switched = [layer for layer in algorithm._layers_by_mode() if layer.training]
    for layer in switched:
        layer.training = False
    try:
        with algorithm._no_gradients(), algorithm._drawing_from(0):
            yield map_nested(repeated, obs), repeated(action), _ROWS
    finally:
        for layer in switched:
            layer.training = True


def _check_pair(algorithm: Algorithm, method: str, wanted: str, found: Any) -> None:
    if hasattr(found, "__len__") and len(found) == 2:
        return
    returned = f"{len(found)} parts" if isinstance(found, tuple | list) else f"one {type(found).__name__}"
    shape = f" of shape {list(found.shape)} for {_ROWS} rows" if hasattr(found, "shape") else ""
    raise ModelContractError(
        f"{type(algorithm.model).__name__}.{method} has to return {wanted} for {type(algorithm).__name__}; it returned "
        f"{returned}{shape}"
    )
