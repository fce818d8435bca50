"""Where the settings of an algorithm come from: arguments, PARL 1.x's dictionary `hyperparas`, or defaults."""

from collections.abc import Mapping
from typing import Any

from parl_core.checks import check_all_known
from parl_core.errors import HyperparameterError

__all__ = ["merge"]


def merge(
    algorithm: str, hyperparas: Mapping[str, Any] | None, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Settle every setting in `defaults`.

    Args:
        algorithm: name, for messages.
        hyperparas: PARL 1.x's dictionary, or None.
        given: arguments; None means not given. A dictionary in the place of the first of them is PARL 1.x's, too,
            whose manual has it there.
        defaults: value of each setting that neither names.

    Raises:
        HyperparameterError: the dictionary has an unknown name, or one that was given as an argument, too.
    """
    arguments = {name: value for name, value in given.items() if value is not None}
    in_place = [name for name, value in arguments.items() if isinstance(value, Mapping)]
    if len(in_place) == 1 and hyperparas is None:
        hyperparas = arguments.pop(in_place[0])
    old = dict(hyperparas or {})
    check_all_known(algorithm, old, tuple(defaults))
    twice = sorted(set(old) & set(arguments))
    if twice:
        raise HyperparameterError(
            f"{algorithm} got {', '.join(twice)} both in `hyperparas` and as an argument; drop PARL 1.x's `hyperparas`"
        )
    return {**defaults, **old, **arguments}
