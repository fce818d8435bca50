"""Resets of vector environments: seeds, Gymnasium's autoreset modes, and the adapter that the training loops need.

The loops reset an environment in the step that ends its episode; `in_same_step` adapts the other modes:

    mode of the given one    what the adapter does
    SAME_STEP                nothing; the environment is returned as it is
    NEXT_STEP, DISABLED      step, keep the last observations of the episodes that ended, reset those environments

A loop that treats a NEXT_STEP environment as a SAME_STEP one learns from transitions that never happened: from the
last observation of one episode to the first of the next, with an action that was not executed and a reward of 0.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import iterate

from parl_core.checks import check_int
from parl_core.env._steps import ArraySpaces
from parl_core.errors import HyperparameterError, ParlError

__all__ = ["SameStep", "Seeds", "chosen_by", "in_same_step", "mode_of", "require_vector", "seeds_of"]

Seeds = int | Sequence[int | None] | None
"""Environment i gets `seed + i`; or one seed per environment; None continues an environment's own generator."""

AnyVector = GymnasiumVectorEnv[Any, Any, Any]

_REMEDY = (
    "Use make_vector_env(id, n), with parl.env.NormalizeVector around it to normalise, or gymnasium.make_vec(id, n, "
    "vectorization_mode='sync', vector_kwargs={'autoreset_mode': gymnasium.vector.AutoresetMode.SAME_STEP})"
)


def mode_of(given: str | AutoresetMode) -> AutoresetMode:
    """Return the autoreset mode for its name, its value, or the mode itself.

    Raises:
        HyperparameterError: There is no such mode.
    """
    for mode in AutoresetMode:
        if given in (mode, mode.value, mode.name):
            return mode
    known = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
    raise HyperparameterError(f"autoreset_mode must be one of {known}, got {given!r}")


def chosen_by(mask: Any, count: int) -> npt.NDArray[np.bool_] | None:
    """Return the environments that the option `reset_mask` selects; None without this option.

    Raises:
        HyperparameterError: It is not a bool array `[count]`.
    """
    if mask is None:
        return None
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (count,):
        raise HyperparameterError(
            f"reset_mask must be a bool array of shape [{count}], got {array.dtype} of shape {list(array.shape)}"
        )
    return array


def seeds_of(seed: Seeds, count: int) -> list[int | None]:
    """Return one seed for each of `count` environments, as plain ints.

    Raises:
        HyperparameterError: The number of seeds is wrong, or one is not a whole number of at least 0.
    """
    given: Any = seed
    if given is None:
        return [None] * count
    if np.ndim(given) == 0:
        first = check_int("seed", given, at_least=0)
        return [first + index for index in range(count)]
    seeds = [None if one is None else check_int("seed", one, at_least=0) for one in given]
    if len(seeds) != count:
        raise HyperparameterError(f"{len(seeds)} seeds were given for {count} environments")
    return seeds


def in_same_step(envs: AnyVector) -> AnyVector:
    """Return a vector environment with `AutoresetMode.SAME_STEP` that steps the given one.

    Args:
        envs: Any of Gymnasium's vector environments. Those of another mode must support the option `reset_mask`, as
            Gymnasium's own, ALE's and PARL's do.

    Raises:
        HyperparameterError: It is not a vector environment, or the environments do not state their mode.
    """
    require_vector(envs)
    mode = envs.metadata.get("autoreset_mode")
    if mode is AutoresetMode.SAME_STEP:
        return envs
    if mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        return SameStep(envs)
    raise HyperparameterError(
        f"{type(envs).__name__} does not say when it resets: metadata['autoreset_mode'] is {mode!r}; set it to what "
        "the environment does, an AutoresetMode of gymnasium.vector"
    )


def require_vector(envs: object) -> None:
    """Reject an object that is not a vector of environments, such as a single environment.

    Raises:
        HyperparameterError: It is not a vector; the message has the call that makes one.
    """
    if not hasattr(envs, "num_envs") or not hasattr(envs, "single_observation_space"):
        given = repr(envs) if isinstance(envs, str) else f"a {type(envs).__name__}"
        what = "an id or a function" if callable(envs) or isinstance(envs, str) else "a single environment"
        raise HyperparameterError(
            f"the loops step a vector of environments, got {given}, which is not one: for {what} use "
            "training.make_vector_env(id_or_function, num_envs=1)"
        )


class SameStep(VectorWrapper):
    """Resets the environments whose episodes ended, in the step that ended them; made by `in_same_step`.

    `infos` of such a step has the last observations in `final_obs` (an object array, None where no episode ended), the
    infos of the last steps in `final_info`, and their masks `_final_obs` and `_final_info`.
    """

    def __init__(self, envs: AnyVector) -> None:
        super().__init__(envs)
        self._envs: Any = envs  # the types of Gymnasium's wrappers are less exact than those of the wrapped objects
        self._metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment once, and reset those whose episodes end.

        Raises:
            ParlError: Other environments than the selected ones were reset.
        """
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        ended = terminated | truncated
        if not ended.any():
            return observations, rewards, terminated, truncated, infos
        # Copies, because a vector environment may reuse the arrays of the step in the reset.
        rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        before = _rows(self.single_observation_space, self.observation_space, observations)
        final_obs = np.full(len(ended), None, object)
        for index in np.flatnonzero(ended):
            final_obs[index] = before[index]
        try:
            observations, reset_infos = self._envs.reset(options={"reset_mask": ended.copy()})
        except (AssertionError, TypeError, ValueError) as error:  # NormalizeObservation resets all or none
            error.add_note(
                f"{type(self._envs).__name__} was asked to reset environments {np.flatnonzero(ended).tolist()} alone, "
                f"because it does not reset them in the step that ends an episode. {_REMEDY}"
            )
            raise
        after = _rows(self.single_observation_space, self.observation_space, observations)
        for index in np.flatnonzero(~ended):
            if not data_equivalence(before[index], after[index]):
                raise ParlError(
                    f"{type(self._envs).__name__} was asked to reset environments {np.flatnonzero(ended).tolist()} and "
                    f"changed environment {index}: it does not know options={{'reset_mask': ...}}. {_REMEDY}"
                )
        named = {"final_obs": final_obs, "final_info": infos}
        statistics = {name: infos[name] for name in ("episode", "_episode") if name in infos}
        merged = {**reset_infos, **statistics, **named, **{f"_{name}": ended for name in named}}
        return observations, rewards, terminated, truncated, merged


def _rows(single: Any, batched: Any, observations: Any) -> list[Any]:
    """Return the observations of each environment, copied."""
    if isinstance(single, ArraySpaces):
        return list(np.array(observations))
    return list(iterate(batched, deepcopy(observations)))
