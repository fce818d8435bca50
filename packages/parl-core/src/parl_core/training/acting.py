"""The loops' interface to agents and environments: protocols, conversions of actions, checks for finite numbers.

Each protocol is as small as the loop that uses it; `parl.Agent` around the algorithms of either backend implements
them. All values are batched numpy arrays. An infinite or NaN reward or observation ends a loop before anything is
learned from it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Unpack

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import logger
from parl_core._nested import Observations, holds_tensors, leaves
from parl_core.checks import first_not_finite
from parl_core.contracts._base import RolloutSettings
from parl_core.contracts.actions import mask_of, unit_line
from parl_core.contracts.batches import Rollout
from parl_core.errors import DivergedError, EnvironmentContractError, HyperparameterError
from parl_core.seeding import spawn_seeds
from parl_core.spaces import dimensions_of, kind_of, one_each, split_action

__all__ = [
    "Acting",
    "ExploringAgent",
    "OffPolicyAgent",
    "OnPolicyAgent",
    "PredictingAgent",
    "acts_in_unit_box",
    "begun",
    "check_masks",
    "check_observations",
    "check_rewards",
    "first_reset",
    "into_space",
    "last_observations",
    "paired",
    "reset_with",
    "tell_dimensions",
    "tensors_into_space",
    "warn_of_unseen_masks",
]

_REMEDY = (
    "in the environment, and continue from the present agent or from the last checkpoint; nothing was learned from it"
)


class PredictingAgent(Protocol):
    """An agent that can be evaluated."""

    @property
    def training(self) -> bool:
        """Return whether dropout and batch statistics are active."""

    def train(self) -> None:
        """Activate dropout and batch statistics."""

    def eval(self) -> None:
        """Deactivate dropout and batch statistics."""

    def predict(self, obs: Any, /) -> Any:
        """Return deterministic actions `[n, *act]` for observations `[n, *obs]`."""


class ExploringAgent(Protocol):
    """An agent that can collect experience of its own policy."""

    def explore(self, obs: Any, /) -> tuple[Any, Any, Any]:
        """Return value `[n]`, action `[n, *act]` and its log-probability `[n]` for `[n, *obs]`."""

    def value(self, obs: Any, /) -> Any:
        """Return values `[n]` for observations `[n, *obs]`."""


class OnPolicyAgent(ExploringAgent, Protocol):
    """An agent for the on-policy loop: it collects experience and learns from a whole rollout at once."""

    def learn_rollout(
        self, batch: Rollout, /, *, rng: np.random.Generator, **settings: Unpack[RolloutSettings]
    ) -> dict[str, float]:
        """Update the weights from one rollout and return mean losses by name."""


class OffPolicyAgent(Protocol):
    """An agent for the off-policy loop."""

    @property
    def alg(self) -> Any:
        """The algorithm: its `gamma`, and `FIGURES`, the names of the results of `learn`."""

    def sample(self, obs: Any, **exploration: Any) -> Any:
        """Return actions `[n, *act]` to explore with for `[n, *obs]`."""

    def learn(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminal: Any,
        *,
        weights: Any,
        discount: Any,
        **rates: Any,
    ) -> Any:
        """Update the weights from a batch of transitions; returns losses, and with `weights` TD errors last."""


def begun(state: Mapping[str, NDArray[Any]], rows: Any) -> dict[str, NDArray[Any]]:
    """Return a state `[n, ...]` by name with some rows reset for new episodes; an empty state stays empty."""
    changed = {name: array.copy() for name, array in state.items()}
    for array in changed.values():
        array[rows] = 0.0
    return changed


def paired(obs: Any, state: Mapping[str, Any] | None) -> Any:
    """Return observations in the form of `Acting.value`: alone, or with the state before them."""
    return {"obs": obs, "state": dict(state)} if state else obs


class Acting:
    """An agent that acts in several parallel environments, with the state of its memory in each.

    Loops call the methods here. For a model without a memory they are the agent's own. For one with a memory
    (`parl_core.recurrent`) they pass the state, keep the state after the step, and return the other results.

    Args:
        agent: The agent that acts.
        rows: Number of environments; None for a single one, without a dimension of rows.

    Attributes:
        state: The state before the next observations, `[rows, ...]` by name; empty without a memory.
    """

    predict: Callable[..., Any]
    sample: Callable[..., Any]
    explore: Callable[..., Any]
    logits: Callable[..., Any]

    def __init__(self, agent: Any, rows: int | None = None) -> None:
        self._agent = agent
        beginning = getattr(agent, "initial_state", lambda _: None)(rows)
        self.state: dict[str, NDArray[Any]] = beginning or {}
        for name in ("predict", "sample", "explore", "logits"):
            method = getattr(agent, name, None)
            if method is not None:
                setattr(self, name, partial(self._carry, method) if self.state else method)

    def steady(self, name: str, obs: Any) -> Callable[[Any], Any]:
        """Return `explore` or `logits` for observations like these, faster where the agent has no memory.

        The function may be used until the agent learns, or gets other layers; weights may change in place.
        """
        find: Callable[[str, Any], Any] = getattr(self._agent, "_steady", lambda *_: None)
        found: Callable[[Any], Any] | None = None if self.state else find(name, obs)
        return getattr(self, name) if found is None else found

    @property
    def has_memory(self) -> bool:
        """Return whether there is a state to carry."""
        return bool(self.state)

    def _carry(self, method: Callable[..., Any], obs: Any, *args: Any, **options: Any) -> Any:
        found, self.state = method(obs, *args, state=self.state, **options)
        return found

    def begin(self, rows: Any = slice(None)) -> None:
        """Reset the state of these rows to that before the first step of an episode."""
        self.state = begun(self.state, rows)

    def seen(self, obs: Any, row: int | None = None) -> Any:
        """Return observations in the form of `value`, with any state before them.

        Args:
            obs: Observations of all environments `[rows, ...]`, or of one.
            row: Index of the environment; None: all.
        """
        return paired(obs, self.state if row is None else {name: array[row] for name, array in self.state.items()})

    def value(self, seen: Any) -> Any:
        """Return the values `[n]` for a result of `seen`, or for several results, stacked."""
        return self._agent.value(**seen) if self.state else self._agent.value(seen)

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, which is empty without a memory."""
        return {"memory": self.state} if self.state else {}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        if self.state:
            self.state = {name: np.array(array) for name, array in saved["memory"].items()}


def into_space(space: Any, *, unit_box: bool = False, one_by_one: bool = False) -> Callable[[Any], Any]:
    """Return a function that makes a policy's actions `[n, *act]`, or one action `[*act]`, valid in `space`.

    For a space in several parts (`Dict`, `Tuple`) the result has the same parts, each `[n, *part]`. A Gaussian policy
    draws outside of a box: its actions are clipped. A policy counts actions from 0: if a discrete space starts at
    another number, it is added. Agents learn from the actions as drawn; the results are arrays of their own, which
    environments may change.

    Args:
        space: The environment's action space.
        unit_box: The policy's actions lie in [-1, 1] (see `acts_in_unit_box`) and are mapped linearly to the bounds of
            a box; in a dimension without bounds they stay unchanged.
        one_by_one: Whether actions of a space in several parts are returned as a list with one action per environment.

    Raises:
        HyperparameterError: The space has several parts, and no policy supports one of them.

    The function raises HyperparameterError if whole numbers are given for a box of other numbers or the other way
    round, and if an action does not have the space's shape, or is not one of its choices. It raises
    DivergedError if a number of a valid action is NaN or infinite.
    """
    if isinstance(space, gymnasium.spaces.Box):
        return _into_box(space, unit_box)
    if isinstance(space, gymnasium.spaces.Discrete):
        return _counted_from(space, space.start)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return _counted_from(space, getattr(space, "start", 0))
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return _counted_from(space, 0)
    if isinstance(space, (gymnasium.spaces.Tuple, gymnasium.spaces.Dict)):
        kind_of(space)
        return _into_composite(space, unit_box, one_by_one)
    return lambda action: action


def _into_composite(space: Any, unit_box: bool, one_by_one: bool) -> Callable[[Any], Any]:
    of_parts = _into_parts(space, unit_box)

    def valid(action: Any) -> Any:
        if np.ndim(action) == 1:
            return one_each(space, of_parts(split_action(space, np.asarray(action)[None])))[0]
        parts = of_parts(split_action(space, action))
        return one_each(space, parts) if one_by_one else parts

    return valid


def _into_parts(space: Any, unit_box: bool) -> Callable[[Any], Any]:
    """Return a function that makes the parts of actions valid, each in its own part of a space."""
    if isinstance(space, gymnasium.spaces.Dict):
        named = {key: _into_parts(part, unit_box) for key, part in space.spaces.items()}
        return lambda parts: {key: valid(parts[key]) for key, valid in named.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        each = [_into_parts(part, unit_box) for part in space.spaces]
        return lambda parts: tuple(valid(part) for valid, part in zip(each, parts, strict=True))
    return into_space(space, unit_box=unit_box)


def acts_in_unit_box(agent: object) -> bool:
    """Return whether the continuous actions of the agent's algorithm lie in [-1, 1]."""
    return bool(getattr(getattr(agent, "alg", None), "ACTS_IN_UNIT_BOX", False))


def tensors_into_space(space: Any, algorithm: Any, *, unit_box: bool = False) -> Callable[[Any], Any]:
    """Return the counterpart of `into_space` for environments that take and return tensors of a framework.

    Args:
        space: The environment's action space.
        algorithm: The algorithm that the tensors come from.
        unit_box: See `into_space`.

    Raises:
        HyperparameterError: The space is neither a box nor of choices counted from 0.
    """
    if isinstance(space, gymnasium.spaces.Box):
        scale, shift, is_mapped = _line_into(space, unit_box)
        low, high, scale, shift = map(algorithm._tensor, (space.low, space.high, scale, shift))
        if is_mapped:
            return lambda action: algorithm._within(action * scale + shift, low, high)
        return lambda action: algorithm._within(action, low, high)
    if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)) or np.any(getattr(space, "start", 0)):
        raise HyperparameterError(
            f"environments with tensors take actions of a Box or counted from 0, but these have {space}: wrap them so "
            "that their action space is one of these"
        )
    return lambda action: action.clone()  # environments may change theirs


def _line_into(space: Any, unit_box: bool) -> tuple[NDArray[Any], NDArray[Any], bool]:
    """Return scale and shift of actions that go in a straight line to a box, and whether they change any."""
    low, high = space.low, space.high
    scale, shift = np.ones_like(low, np.float64), np.zeros_like(low, np.float64)
    if unit_box and np.issubdtype(space.dtype, np.floating):
        scale, shift = unit_line(low, high)
    return scale, shift, bool((scale != 1.0).any() or (shift != 0.0).any())


def _into_box(space: Any, unit_box: bool) -> Callable[[Any], Any]:
    low, high = space.low, space.high
    continuous = np.issubdtype(space.dtype, np.floating)
    scale, shift, mapped = _line_into(space, unit_box)

    def boxed(action: Any) -> Any:
        if continuous and np.asarray(action).dtype.kind in "iu":
            raise HyperparameterError(
                f"the environment has the actions {space}, the policy chooses whole numbers: "
                "give it a Gaussian (PPO: continuous_action=True; off-policy: SAC, TD3 or DDPG in place of DQN)"
            )
        if not continuous and np.asarray(action).dtype.kind == "f":
            raise HyperparameterError(
                f"the environment has the actions {space}, whole numbers, the policy chooses others: wrap the "
                "environment so that its space is MultiDiscrete (PPO: nvec=...), or a Box of float32 that is rounded"
            )
        if low.ndim != 1 and np.shape(action)[1:] == (low.size,):
            action = np.reshape(action, (-1, *low.shape))
        if np.shape(action)[1:] != low.shape:
            if np.shape(action) in (low.shape, (low.size,)):
                return boxed(np.reshape(action, (1, *low.shape)))[0]
            found = list(np.shape(action)[1:] or np.shape(action))
            raise HyperparameterError(
                f"the environment has actions of shape {list(low.shape)}, the policy chooses {found}: give the model "
                "as many outputs as the space has dimensions"
            )
        valid = np.clip(action * scale + shift if mapped else action, low, high).astype(space.dtype, copy=False)
        if (at := first_not_finite(valid)) is not None:
            raise DivergedError(
                f"the policy chose {valid[at]} as number {list(at[1:])} of the action in environment {at[0]}, which no "
                "environment was given. The agent's weights are spoiled: go back to the last checkpoint, lower the "
                "learning rate or clip gradients"
            )
        return valid

    return boxed


def _counted_from(space: Any, start: Any) -> Callable[[Any], Any]:
    match space:
        case gymnasium.spaces.Discrete():
            sizes = np.asarray(space.n)
        case gymnasium.spaces.MultiBinary():
            sizes = np.full(space.shape, 2)
        case _:
            sizes = np.asarray(space.nvec)
    is_shifted = bool(np.any(start))
    is_usual = isinstance(space, gymnasium.spaces.Discrete) and space.dtype == np.int64

    def counted(action: Any) -> Any:
        chosen = np.asarray(action)
        is_row = is_usual and chosen.ndim == 1 and chosen.dtype == np.int64
        # as unsigned numbers, negative ones are large
        if is_row and not np.count_nonzero(chosen.view(np.uint64) >= sizes):
            return chosen + start if is_shifted else chosen.copy()
        if chosen.dtype.kind == "f":
            kinds = "continuous_action=False" if isinstance(space, gymnasium.spaces.Discrete) else f"nvec={sizes}"
            raise HyperparameterError(
                f"the environment has the actions {space}, the policy chooses other numbers "
                f"{list(chosen.shape)}: give it a categorical one (PPO: {kinds}; off-policy: DQN)"
            )
        if sizes.ndim > 1 and chosen.shape[1:] == (sizes.size,):
            chosen = chosen.reshape(-1, *sizes.shape)
        if sizes.ndim and chosen.shape in (sizes.shape, (sizes.size,)):
            return counted(chosen.reshape(1, *sizes.shape))[0]
        if chosen.shape[1:] != sizes.shape or np.count_nonzero((chosen < 0) | (chosen >= sizes)):
            raise HyperparameterError(
                f"the environment has the actions {space}, the policy chose {chosen.tolist()} (counted "
                "from 0, one row per environment): give the model as many outputs as there are choices"
            )
        return (chosen + start if is_shifted else chosen).astype(space.dtype)

    return counted


def first_reset(envs: Any, seed: int | None) -> Any:
    """Return the first observations of a vector environment, each of its environments with a separate seed.

    Warn if the environments mark the possible actions in a way that the loops ignore.

    Raises:
        DivergedError: An observation is infinite or NaN; the message names its environment.
        EnvironmentContractError: A mask allows no action; the message names its environment.
    """
    obs, infos = _reset_with(envs, spawn_seeds(seed, envs.num_envs))
    warn_of_unseen_masks(envs.single_observation_space, getattr(envs, "metadata", None) or {}, infos)
    return obs


def warn_of_unseen_masks(space: Any, metadata: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
    """Warn if environments mark the possible actions in a way that the loops ignore.

    Args:
        space: The space of one observation; a mask in it is used.
        metadata: The environments' metadata, with `action_masks` if they have a method of that name.
        infos: The infos of a reset.
    """
    has_method = "action_masks" in metadata
    has_mask = isinstance(space, gymnasium.spaces.Dict) and "action_mask" in space.spaces
    if not has_mask and (has_method or "action_mask" in infos):
        logger.warning(
            "the environments tell the possible actions in %s, which is not looked at, so others are chosen, too: wrap "
            "them so that they observe a dictionary of the space Dict({'observation': ..., 'action_mask': "
            "MultiBinary(choices)}), whose action_mask is 1 where an action is possible",
            "action_masks()" if has_method else "info['action_mask']",
        )


def reset_with(envs: Any, seeds: Sequence[int]) -> Any:
    """Return the observations of a vector environment after a reset with these seeds, one each.

    Environments that are one program, such as Gymnasium's `CartPoleVectorEnv`, take one seed for all: the first.

    Raises:
        DivergedError: An observation is infinite or NaN; the message names its environment.
        EnvironmentContractError: A mask allows no action; the message names its environment.
    """
    return _reset_with(envs, seeds)[0]


def _reset_with(envs: Any, seeds: Sequence[int]) -> tuple[Any, Mapping[str, Any]]:
    try:
        obs, infos = envs.reset(seed=list(seeds))
    except EnvironmentContractError:  # a TypeError about the result, not about the seeds
        raise
    except (gymnasium.error.Error, TypeError):
        obs, infos = envs.reset(seed=seeds[0])
    if not holds_tensors(obs):
        check_observations(obs, "after a reset")
        if isinstance(envs.single_action_space, gymnasium.spaces.Discrete):
            check_masks(obs, True, "after a reset")
    return obs, infos


def last_observations(infos: Mapping[str, Any]) -> Any:
    """Return the last observations of the episodes that a step ended, one entry for each environment.

    Raises:
        EnvironmentContractError: The infos of the step do not have them.
    """
    found = infos.get("final_obs")
    if found is None:
        raise EnvironmentContractError(
            "a step ended an episode, and its infos lack final_obs, the last observation, from which time limits are "
            "bootstrapped: let the vector of environments give it, an array of objects with one entry for each "
            "environment, as those of Gymnasium do with AutoresetMode.SAME_STEP"
        )
    return found


def tell_dimensions(agent: object, space: Any) -> None:
    """Set the number of dimensions of one observation of an agent without one.

    If `obs_ndim` is None, `parl.Agent` guesses, and would treat a batch of whole numbers (`Discrete`) or of matrices as
    one observation.
    """
    if getattr(agent, "obs_ndim", 0) is None:
        agent.obs_ndim = dimensions_of(space)  # type: ignore[attr-defined]  # the line before has found one


def check_rewards(reward: NDArray[Any], when: str) -> None:
    """Reject rewards `[..., N]` of N environments that are not finite, or too large for float32.

    Args:
        reward: `[N]`, or `[T, N]` over T steps.
        when: The words that end the first part of the message.

    Raises:
        DivergedError: The message names the environment, the reward and the step.
    """
    with np.errstate(over="ignore"):
        as_stored = np.asarray(reward, np.float32)
    if (at := first_not_finite(as_stored)) is not None:
        raise DivergedError(
            f"environment {at[-1]} gave the reward {reward[at]}{_step(at[:-1])} {when}: "
            f"clip or repair rewards {_REMEDY}"
        )


def check_observations(
    obs: Observations, when: str, leading: int = 1, *, environments: Sequence[int] | None = None
) -> None:
    """Reject observations of N environments that are not finite; networks may hide them while their weights degrade.

    Args:
        obs: Arrays `[N, ...]`, or `[T, N, ...]` over T steps with `leading=2`, or a dictionary of arrays.
        when: The words that end the first part of the message.
        leading: Number of dimensions before those of an observation.
        environments: The environments that observed the rows; None: all, in order.

    Raises:
        DivergedError: The message names the environment, the number and the step.
    """
    for name, array in leaves("obs", obs).items():
        if array.dtype.kind == "f" and (at := first_not_finite(array)) is not None:
            index = at[leading - 1] if environments is None else environments[at[leading - 1]]
            raise DivergedError(
                f"environment {index} observed {array[at]} in {name}{list(at[leading:])}"
                f"{_step(at[: leading - 1])} {when}: repair observations {_REMEDY}"
            )


def check_masks(obs: Observations, goes_on: NDArray[np.bool_] | bool, when: str, first: int = 0) -> None:
    """Reject observations of N environments whose `action_mask` allows no action, except after a termination.

    Args:
        obs: The observations after a step or a reset, dictionaries that may have a mask `[N, act_dim]`.
        goes_on: bool `[N]`: whether the next action is chosen from the observation, or its value is used; True: of all.
        when: The words that end the first part of the message.
        first: The number of the environment of the first row.

    Raises:
        EnvironmentContractError: The message names the environment.
    """
    mask = mask_of(obs)
    if mask is None:
        return
    stuck = np.flatnonzero(goes_on & ~np.asarray(mask, np.bool_).any(axis=1))
    if stuck.size:
        raise EnvironmentContractError(
            f"environment {first + stuck[0]} observed an action_mask that leaves no action {when}, and its episode has "
            "not terminated: let at least one action be possible, also in the last observation of a truncated episode"
        )


def _step(at: tuple[int, ...]) -> str:
    return f" at step {at[0]}" if at else ""
