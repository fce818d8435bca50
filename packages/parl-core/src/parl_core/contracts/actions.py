"""Kinds of actions (discrete, multi-discrete, continuous), and masks of possible discrete actions.

Further below are the distributions of actions with several parts, which the backends build from their distributions of
single parts.

A mask is True (or 1) where an action is possible, `[batch, act_dim]`, of several agents `[batch, agents, act_dim]`. It
is given as `action_mask=`, or comes with observations that are a dictionary under the key `action_mask`, as in
PettingZoo.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.contracts.batches import actions_column
from parl_core.errors import HyperparameterError

__all__ = [
    "ActionKind",
    "ChoicesAndNumbersDistribution",
    "MultiCategoricalDistribution",
    "PolicyDistribution",
    "SoftMultiCategoricalDistribution",
    "check_mask",
    "check_possible",
    "mask_of",
    "policy_distribution",
    "unit_line",
]


_KEY = "action_mask"


def mask_of(obs: Any, given: Any = None) -> Any:
    """Return the given mask, else the mask among the observations, else None, for arrays or tensors."""
    if given is None and isinstance(obs, Mapping):
        return obs.get(_KEY)
    return given


def unit_line(low: Any, high: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scale and shift of the linear map from [-1, 1] to bounds, in the shape of the bounds.

    Args:
        low: The lower bounds of a box.
        high: The upper bounds. Numbers with an infinite bound do not change: scale 1 and shift 0.
    """
    bounded = np.isfinite(low) & np.isfinite(high)
    # avoid infinite intermediate results
    bottom, top = (np.where(bounded, bound, 0.0).astype(np.float64) for bound in (low, high))
    # As arrays, because arithmetic on 0-dimensional arrays returns scalars.
    return np.where(bounded, 0.5 * (top - bottom), 1.0), np.asarray(0.5 * (top + bottom))


def check_mask(
    mask: Any, sizes: tuple[int, ...] | None = None, *, unless: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Return a mask as booleans `[batch, act_dim]`, of several agents `[batch, agents, act_dim]`.

    Args:
        mask: The mask: bool, or numbers 0 and 1.
        sizes: The number of choices of each part of multi-discrete actions, whose masks are concatenated.
        unless: bool `[batch]`, rows that may have no action.

    Raises:
        ValueError: The shape is wrong, there are other numbers, or a row allows no action.
    """
    array = np.asarray(mask)
    if array.ndim == 3 and sizes is None:
        rows = None if unless is None else np.repeat(unless, array.shape[1])
        return check_mask(array.reshape(-1, array.shape[2]), unless=rows).reshape(array.shape)
    if array.ndim != 2:
        raise ValueError(f"action_mask must have shape [batch, act_dim], got {array.shape}")
    if array.dtype != np.bool_:
        if not ((array == 0) | (array == 1)).all():  # np.isin would take six times as long
            raise ValueError(f"action_mask must hold booleans or 0 and 1, got dtype {array.dtype} with other numbers")
        array = array.astype(np.bool_)
    sizes = (array.shape[1],) if sizes is None else sizes
    if sum(sizes) != array.shape[1]:
        raise ValueError(f"action_mask must have {sum(sizes)} columns for actions of sizes {sizes}, got {array.shape}")
    if unless is not None and len(unless) != len(array):
        raise ValueError(f"action_mask must have {len(unless)} rows, one for each of the batch, got {array.shape}")
    for part in np.split(array, np.cumsum(sizes)[:-1], axis=1):
        none = ~part.any(axis=1)
        impossible = np.flatnonzero(none if unless is None else none & ~unless)
        if impossible.size:
            raise ValueError(
                f"action_mask leaves no action in row {impossible[0]} ({impossible.size} such rows of {len(array)}); "
                "at least one action must be possible in every state that is acted in"
            )
    return array


def check_possible(action: NDArray[np.int64], mask: NDArray[np.bool_], sizes: tuple[int, ...] | None = None) -> None:
    """Reject impossible actions: their probability is 0, and its logarithm would make all weights NaN.

    Args:
        action: `[batch]`, or of multi-discrete actions `[batch, len(sizes)]`.
        mask: The result of `check_mask`, with as many rows.
        sizes: As for `check_mask`.

    Raises:
        ValueError: The mask has other rows or too few columns, or does not allow an action.
    """
    if len(mask) != len(action):
        raise ValueError(f"action_mask must have {len(action)} rows, one for each action, got {mask.shape}")
    columns = action.reshape(len(action), -1) + np.cumsum((0, *(sizes or ())[:-1]))
    if columns.size and columns.max() >= mask.shape[1]:
        raise ValueError(f"actions up to {action.max()} do not fit an action_mask of {mask.shape[1]} columns")
    forbidden = np.flatnonzero(~np.take_along_axis(mask, columns, axis=1).all(axis=1))
    if forbidden.size:
        row = forbidden[0]
        raise ValueError(
            f"action {action[row]} in row {row} is one that action_mask does not allow ({forbidden.size} such rows of "
            f"{len(action)}): the mask has to be that of the state in which the action was chosen"
        )


@dataclass(frozen=True)
class ActionKind:
    """The kind of an algorithm's actions; discrete by default.

        kind             the model's policy(obs)                   actions
        discrete         logits `[batch, act_dim]`                 int64 `[batch]`
        multi-discrete   logits `[batch, sum(nvec)]`               int64 `[batch, len(nvec)]`
        continuous       (mean, std), each `[batch, act_dim]`      float `[batch, act_dim]`
        both             (logits `[batch, sum(nvec)]`, mean, std)  float `[batch, len(nvec) + act_dim]`, choices first

    Attributes:
        continuous: True if actions are real numbers, drawn from a Gaussian.
        nvec: Number of choices of each part of a multi-discrete action (`gymnasium.spaces.MultiDiscrete.nvec`).
        used: The actions of a team's agents, `[agents, act_dim]`: False where a number or a choice is padding, because
            another agent has more; None if all are used.
    """

    continuous: bool = False
    nvec: tuple[int, ...] | None = None
    used: tuple[tuple[bool, ...], ...] | None = None

    @classmethod
    def of(cls, continuous_action: bool | None, nvec: Sequence[int] | None, model: Any = None) -> "ActionKind":
        """Return the kind of actions from the arguments of an algorithm's constructor, else from its model.

        Args:
            continuous_action: As in the algorithm.
            nvec: As in the algorithm.
            model: The model, whose attribute `action_kind` is the default; models of `parl.networks.for_spaces` have
                it.

        Raises:
            HyperparameterError: Both are given, or a number of choices is below 1.
        """
        own = getattr(model, "action_kind", None)
        if nvec is None and isinstance(own, cls) and (own.continuous or not continuous_action):
            return own
        if nvec is None:
            return cls(continuous=bool(continuous_action))
        if continuous_action:
            raise HyperparameterError("actions are continuous or multi-discrete: give continuous_action or nvec")
        sizes = tuple(check_int(f"nvec[{i}]", size) for i, size in enumerate(nvec))
        if not sizes:
            raise HyperparameterError("nvec must have at least one number of choices, got none")
        return cls(nvec=sizes)

    def used_array(self) -> NDArray[np.float32] | None:
        """Return `used` as numbers `[1, agents, act_dim]`, 1 for True; None: all are used."""
        return None if self.used is None else np.asarray([self.used], np.float32)

    def column(self, name: str, values: Any, act_dim: int | None = None) -> NDArray[Any]:
        """Return the actions of a batch in the shape and dtype that the policy's distribution takes.

        Args:
            name: The argument's name, for messages.
            values: The actions.
            act_dim: Number of actions if they are discrete; if given, larger indices are rejected.

        Raises:
            ValueError: They have another shape or dtype, or are not actions.
        """
        if self.continuous and self.nvec is not None:
            return self._both(name, np.asarray(values))
        if self.continuous:
            action = np.asarray(values)
            if action.ndim < 2:
                raise ValueError(f"{name} must have shape [n, act_dim] with continuous_action, got {action.shape}")
            if action.dtype.kind not in "fiu":
                raise ValueError(f"{name} must hold numbers, got dtype {action.dtype}")
            return action if action.dtype.kind == "f" else action.astype(np.float32)
        if self.nvec is None:
            return actions_column(name, values, act_dim)
        action = np.asarray(values)
        if action.ndim != 2 or action.shape[1] != len(self.nvec):
            raise ValueError(f"{name} must have shape [n, {len(self.nvec)}] with nvec={self.nvec}, got {action.shape}")
        parts = [actions_column(f"{name}[:, {i}]", action[:, i], size) for i, size in enumerate(self.nvec)]
        return np.stack(parts, axis=1)

    def _both(self, name: str, action: NDArray[Any]) -> NDArray[Any]:
        parts = len(self.nvec or ())
        if action.ndim != 2 or action.shape[1] <= parts or action.dtype.kind != "f":
            raise ValueError(
                f"{name} must be floats of shape [n, {parts} + act_dim], choices first, got {action.dtype} "
                f"{action.shape}"
            )
        choices = action[:, :parts]
        if not ((choices == np.floor(choices)) & (choices >= 0) & (choices < np.asarray(self.nvec))).all():
            raise ValueError(f"{name}[:, :{parts}] must hold choices counted from 0, below {self.nvec}")
        return action

    def mask(self, values: Any, obs: Any = None, action: Any = None) -> NDArray[np.bool_] | None:
        """Return a mask of possible actions as booleans, None if there is none.

        Args:
            values: The mask that was given.
            obs: Observations that may contain one.
            action: The result of `column`, if the actions taken are known.

        Raises:
            ValueError: The mask does not fit the actions, allows none of them, or does not allow the actions taken.
        """
        if self.continuous and self.nvec is None:
            if values is not None:
                raise ValueError("action_mask is for discrete actions; a Gaussian's cannot be masked")
            return None
        values = mask_of(obs, values)
        if values is None:
            return None
        mask = check_mask(values, self.nvec)
        if action is not None and self.continuous and self.nvec is not None:
            action = action[:, : len(self.nvec)].astype(np.int64)
        if action is not None:
            check_possible(action, mask, self.nvec)
        return mask


class PolicyDistribution(Protocol):
    """A distribution of actions; entropies and log-probabilities are `[batch]`."""

    def sample(self) -> Any: ...
    def mode(self) -> Any: ...
    def entropy(self) -> Any: ...
    def logp(self, actions: Any) -> Any: ...


def policy_distribution(
    output: Any, kind: ActionKind, mask: Any = None, *, distributions: ModuleType
) -> PolicyDistribution:
    """Return the distribution of actions of a kind, from the output of the model's `policy(obs)`.

    Args:
        output: As described in `ActionKind`; for numbers without choices, `used` of the distribution may follow.
        kind: The kind of the actions.
        mask: The mask of the distribution; None without one.
        distributions: The backend's module of distributions; its own function of this name needs none.
    """
    if kind.continuous and kind.nvec is not None:
        logits, mean, std = output
        choices = distributions.MultiCategoricalDistribution(logits, kind.nvec, mask)
        numbers = distributions.DiagGaussianDistribution.from_std(mean, std)
        return distributions.ChoicesAndNumbersDistribution(choices, numbers)  # type: ignore[no-any-return]
    if kind.continuous:
        return distributions.DiagGaussianDistribution.from_std(*output)  # type: ignore[no-any-return]
    if kind.nvec is not None:
        return distributions.MultiCategoricalDistribution(output, kind.nvec, mask)  # type: ignore[no-any-return]
    return distributions.CategoricalDistribution(output, mask)  # type: ignore[no-any-return]


class _SideBySide:
    """Independent distributions of choices, one for each part of an action, whose log-probabilities add up."""

    _part: ClassVar[type[Any]]
    """The backend's distribution of one part."""
    _stacked: Callable[[Sequence[Any]], Any]
    """Backend hook: stack columns `[batch]` to `[batch, number of parts]`."""

    def __init__(self, logits: Any, sizes: Sequence[int], *masks: Any) -> None:
        if min(sizes, default=0) < 1 or sum(sizes) != logits.shape[-1]:
            raise ValueError(f"actions of sizes {list(sizes)} need {sum(sizes)} logits, got {logits.shape[-1]}")
        self.sizes = list(sizes)
        self.parts = [self._part(*pieces) for pieces in zip(*map(self._split, (logits, *masks)), strict=True)]

    def mode(self) -> Any:
        """Return the most probable choices, int64 `[batch, number of parts]`, counted from 0."""
        return self._stacked([part.mode() for part in self.parts])

    def entropy(self) -> Any:
        """Return the sum of the parts' entropies in nats, `[batch]`."""
        return reduce(add, [part.entropy() for part in self.parts])

    def kl(self, other: Any) -> Any:
        """Return KL(self || other) in nats, summed over the parts, `[batch]`."""
        return reduce(add, [mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)])

    def _split(self, columns: Any) -> Any:
        return columns.split(self.sizes, -1)


class MultiCategoricalDistribution(_SideBySide):
    """Independent categorical distributions, one for each part of a multi-discrete action.

    Args:
        logits: Unnormalised log-probabilities of all parts, concatenated, `[batch, sum(sizes)]`.
        sizes: Number of choices of each part.
        mask: `[batch, sum(sizes)]`, as in `CategoricalDistribution`.

    Raises:
        ValueError: The number of logits is wrong.
    """

    def __init__(self, logits: Any, sizes: Sequence[int], mask: Any = None) -> None:
        super().__init__(logits, sizes, *([] if mask is None else [mask]))

    def sample(self) -> Any:
        """Return actions, int64 `[batch, number of parts]`, each counted from 0."""
        return self._stacked([part.sample() for part in self.parts])

    def logp(self, actions: Any) -> Any:
        """Return the log-probability `[batch]` of actions, int64 `[batch, number of parts]`."""
        return reduce(add, [part.logp(actions[..., i]) for i, part in enumerate(self.parts)])


class SoftMultiCategoricalDistribution(_SideBySide):
    """Several independent soft categorical distributions, as MADDPG uses for multi-discrete actions.

    Args:
        logits: Unnormalised log-probabilities of all actions, concatenated, `[batch, sum(high - low + 1)]`.
        low: Smallest value of each action.
        high: Largest value of each action.

    Raises:
        ValueError: The number of logits is wrong.
    """

    _joined: Callable[[Sequence[Any]], Any]
    """Backend hook: concatenate rows."""

    def __init__(self, logits: Any, low: Sequence[int], high: Sequence[int]) -> None:
        super().__init__(logits, [int(top) - int(bottom) + 1 for bottom, top in zip(low, high, strict=True)])

    def sample(self) -> Any:
        """Return concatenated relaxed one-hot actions, as wide as the logits; gradients flow into the logits."""
        return self._joined([part.sample() for part in self.parts])

    def logp(self, actions: Any) -> Any:
        """Return the sum over the actions of `SoftCategoricalDistribution.logp`, `[batch]`; actions as drawn."""
        return reduce(add, [part.logp(piece) for part, piece in zip(self.parts, self._split(actions), strict=True)])


class ChoicesAndNumbersDistribution:
    """A distribution of independent choices and numbers, concatenated in one row.

    Args:
        choices: The distribution of the choices, a `MultiCategoricalDistribution`.
        numbers: The distribution of the numbers, a `DiagGaussianDistribution`.
    """

    def __init__(self, choices: Any, numbers: Any) -> None:
        self.choices, self.numbers = choices, numbers

    def sample(self) -> Any:
        """Return actions, floats `[batch, parts + act_dim]`, choices first."""
        return self._joined(self.choices.sample(), self.numbers.sample())

    def mode(self) -> Any:
        """Return the most probable choices and the means, floats `[batch, parts + act_dim]`."""
        return self._joined(self.choices.mode(), self.numbers.mode())

    def entropy(self) -> Any:
        """Return the sum of both entropies in nats, `[batch]`."""
        return self.choices.entropy() + self.numbers.entropy()

    def logp(self, actions: Any) -> Any:
        """Return the log-density `[batch]` of actions `[batch, parts + act_dim]`."""
        count = len(self.choices.parts)
        return self.choices.logp(actions[..., :count]) + self.numbers.logp(actions[..., count:])

    def kl(self, other: Any) -> Any:
        """Return KL(self || other) in nats, summed over both parts, `[batch]`."""
        return self.choices.kl(other.choices) + self.numbers.kl(other.numbers)

    def _joined(self, choices: Any, numbers: Any) -> Any:
        """Backend hook: concatenate both in the dtype of the numbers."""
        raise NotImplementedError
