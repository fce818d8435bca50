"""What the loops need of an agent: protocols, each as small as the loop that uses it; and actions made valid.

`parl.Agent` around the algorithms of either backend fulfils them. Everything is batched numpy.
"""

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np

from parl_core.contracts.ppo import PPOBatch
from parl_core.errors import HyperparameterError

__all__ = ["ActorCriticAgent", "OnPolicyAgent", "PredictingAgent", "into_space", "tell_dimensions"]


class PredictingAgent(Protocol):
    """What an evaluation needs."""

    @property
    def training(self) -> bool:
        """Whether dropout and batch statistics are active."""

    def train(self) -> None:
        """Activate them."""

    def eval(self) -> None:
        """Deactivate them."""

    def predict(self, obs: Any, /) -> Any:
        """Return deterministic actions `[n, *act]` for observations `[n, *obs]`."""


class ActorCriticAgent(Protocol):
    """What collecting experience needs."""

    def sample(self, obs: Any, /) -> tuple[Any, Any, Any, Any]:
        """Return value `[n]`, action `[n, *act]`, log-probability `[n]` and entropy `[n]` for `[n, *obs]`."""

    def value(self, obs: Any, /) -> Any:
        """Return values `[n]` for observations `[n, *obs]`."""


class OnPolicyAgent(ActorCriticAgent, Protocol):
    """What the on-policy loop needs: experience, and learning from a whole rollout at once."""

    def learn_rollout(
        self,
        batch: PPOBatch,
        /,
        *,
        epochs: int,
        minibatch_size: int,
        rng: np.random.Generator,
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
        target_kl: float | None = None,
    ) -> dict[str, float]:
        """Update the weights from one rollout and return mean losses by name."""


def into_space(space: Any) -> Callable[[Any], Any]:
    """Return what makes a policy's actions `[n, *act]` valid in `space`, whatever does not change what they mean.

    A Gaussian policy draws outside of a box: its actions are clipped. A policy counts actions from 0: where a discrete
    space starts at another number, that is added. What is learned from is the action as it was drawn.

    The function raises HyperparameterError where whole numbers meet a box, or other numbers a discrete space.
    """
    if isinstance(space, gymnasium.spaces.Box):
        low, high = space.low, space.high
        continuous = np.issubdtype(space.dtype, np.floating)

        def clipped(action: Any) -> Any:
            if continuous and np.asarray(action).dtype.kind in "iu":
                raise HyperparameterError(
                    f"the environment has the actions {space}, the policy chooses whole numbers: "
                    "give it a Gaussian (PPO: continuous_action=True)"
                )
            return np.clip(action, low, high)

        return clipped
    if isinstance(space, gymnasium.spaces.Discrete):
        start = space.start

        def counted(action: Any) -> Any:
            if np.asarray(action).dtype.kind == "f":
                raise HyperparameterError(
                    f"the environment has the actions {space}, the policy chooses other numbers "
                    f"{list(np.shape(action))}: give it a categorical one (PPO: continuous_action=False)"
                )
            return action + start if start else action

        return counted
    return lambda action: action


def tell_dimensions(agent: object, space: Any) -> None:
    """Let an agent that was not told know how many dimensions one observation has.

    `parl.Agent` guesses where `obs_ndim` is None, and would take a batch of whole numbers (`Discrete`) or of matrices
    for one observation.
    """
    if getattr(agent, "obs_ndim", 0) is None and space.shape is not None:
        agent.obs_ndim = len(space.shape)  # type: ignore[attr-defined]  # it has one, as the line before has seen
