"""Deprecated functions and methods, which work with a warning, and removed attributes with their successors."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "REMOVED_ATTRIBUTES",
    "REMOVED_CLIENT_ATTRIBUTES",
    "REMOVED_OPTIMIZER_ATTRIBUTES",
    "RENAMED_METHODS",
    "STEPS_OF_PARL2",
    "class_of_old_name",
    "deprecated",
    "found_or_successor",
]

RENAMED_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "define_learn": "learn",
        "define_policy_learn": "policy_learn",
        "define_predict": "predict",
        "define_sample": "sample",
        "define_value_learn": "value_learn",
        "define_value_predict": "value_predict",
        "get_params": "get_weights",
        "set_params": "set_weights",
        "sync_params_to": "sync_weights_to",
    }
)
"""Methods of models, algorithms and agents in PARL 1.x, with their present names."""

STEPS_OF_PARL2: Mapping[str, str] = MappingProxyType(
    {
        "_actor_learn": "override actor_loss(batch, ...), which returns the loss and its figures, or learn",
        "_critic_learn": "override critic_loss(batch, ...), which returns the loss and its figures, or learn",
    }
)
"""Methods that `learn` of PARL 2.x called, with their replacements in a subclass."""

REMOVED_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        **{old: f"use {new}" for old, new in RENAMED_METHODS.items() if old != "sync_params_to"},  # only of models
        **STEPS_OF_PARL2,
        "Q_next": "use Q(obs_n, act_n, use_target_model=True)",
        "actor_learn": "learn takes the steps of actor and critic",
        "alpha_optimizer": "use temperature_optimizer",
        "alpha_prime": "use multiplier.alpha()",
        "alpha_prime_optimizer": "use multiplier_optimizer",
        "build_program": "an agent may define it on paddle, for static graphs; without it, updates are eager",
        "critic_learn": "learn takes the steps of actor and critic",
        "fluid_executor": "static graphs are for paddle; elsewhere parl.Agent calls the algorithm with tensors",
        "get_model_ids": "use get_model_id() of each model",
        "log_alpha_prime": "use multiplier.log_alpha",
        "init_hidden": "COMA acts on joint observations, with a model of parl.networks.for_team",
        "model_ids": "use model_id of each model",
        "mse_loss": "use torch.nn.MSELoss() or paddle.nn.MSELoss()",
        "num_random": "use samples",
        "policy_optimizer": "IQL calls it actor_optimizer",
        "predict_next": "use sample(obs, use_target_model=True)",
        "q_optimizer": "use critic_optimizer",
        "q_target": "use target_model",
        "target_action_gap": "use lagrange_thresh",
        "v_optimizer": "use value_optimizer",
    }
)
"""Attributes of agents and algorithms in PARL 1.x and 2.x, with their replacements."""

_MINIMIZE = "write minimize(loss) for zero_grad() or clear_grad(), loss.backward() and step()"
REMOVED_OPTIMIZER_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "clear_grad": _MINIMIZE,
        "load_state_dict": "use set_state(state)",
        "set_state_dict": "use set_state(state)",
        "state_dict": "use get_state()",
        "step": _MINIMIZE,
        "zero_grad": _MINIMIZE,
    }
)
"""Attributes of the optimizers of algorithms in PARL 2.x, which were the frameworks' own, with their replacements."""

REMOVED_CLIENT_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "client_is_alive": "use is_gone, its opposite",
        "connected_to_master": "use is_gone, its opposite",
        "destroy": "use parl.disconnect()",
        "executable_path": "use pathlib.Path(__file__).parent in the program",
        "log_monitor_url": "use `xparl logs ACTOR`",
        "master_address": "use address",
        "master_is_alive": "use is_gone, its opposite",
    }
)
"""Attributes of `parl.get_global_client()` in PARL 2.x, with their replacements."""


def found_or_successor(owner: object, name: str, removed: Mapping[str, str]) -> Any:
    """Return the value for `__getattr__` of a class with removed attributes, or raise an error with the successor.

    Raises:
        AttributeError: It is missing; if it was removed, the message names its successor.
    """
    if name in removed:
        kind = type(owner).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}, which the original PARL had: {removed[name]}")
    return object.__getattribute__(owner, name)  # the usual error, or the error of a property


def class_of_old_name(module: str, name: str, successors: Mapping[str, type]) -> type:
    """Return the class for the deprecated name of a module and warn; the module's `__getattr__` calls this.

    Args:
        module: The module's name.
        name: The missing name.
        successors: Classes by their deprecated names.

    Raises:
        AttributeError: The name is not deprecated.
    """
    found = successors.get(name)
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"`{name}` is deprecated since version 0.1; use `{found.__name__}` instead", DeprecationWarning, 3)
    return found


P = ParamSpec("P")
R = TypeVar("R")


def deprecated(
    deprecated_in: str, removed_in: str, replace_function: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function or method as deprecated: calls warn, with the caller's line, and its docstring gets a note.

        @deprecated(deprecated_in="1.2", removed_in="1.3", replace_function="get_weights")
        def get_params(self): ...

    Args:
        deprecated_in: The first version in which it is deprecated.
        removed_in: The first version without it.
        replace_function: The successor of the function, if there is one.

    Raises:
        TypeError: The decorated object is not a function or method: a class or a property, for instance.
    """
    advice = f"; use `{replace_function}` instead" if replace_function else ""
    fate = f"deprecated since version {deprecated_in} and will be removed in {removed_in}{advice}"

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if isinstance(function, (type, staticmethod)) or not callable(function):
            kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
            raise TypeError(
                f"@deprecated is for functions and methods, got {kind}; put it on __init__ of a class, and below "
                "@property, @classmethod or @staticmethod"
            )

        @functools.wraps(function)
        def warning(*args: P.args, **kwargs: P.kwargs) -> R:
            warnings.warn(f"`{function.__qualname__}` is {fate}", DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        warning.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{fate[0].upper()}{fate[1:]}."
        return warning

    return decorate
