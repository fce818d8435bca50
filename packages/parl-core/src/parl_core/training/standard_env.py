"""An environment with the preprocessing that agents of its kind are usually trained with.

    kind         observations              actions        from an id
    DISCRETE     a vector of numbers       choices        CartPole-v1
    CONTINUOUS   a vector of numbers       numbers        HalfCheetah-v5
    ATARI        four frames [4, 84, 84]   choices        ALE/Pong-v5, PongNoFrameskip-v4

Networks and hyper-parameters differ between kinds: a program keeps a table by kind and asks for its row with `pick`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

import gymnasium
import numpy as np

from parl_core.env.atari import make_atari
from parl_core.errors import HyperparameterError
from parl_core.training.trained import make_flat_env

__all__ = ["EnvKind", "StandardEnv"]

T = TypeVar("T")


class EnvKind(StrEnum):
    """Which networks and hyper-parameters suit an environment."""

    DISCRETE = "discrete"
    CONTINUOUS = "continuous"
    ATARI = "atari"


@dataclass(frozen=True)
class StandardEnv:
    """A registered environment, made for training or for evaluation; it can be sent to actors.

    Attributes:
        env_id: `CartPole-v1`, `HalfCheetah-v5`, `ALE/Pong-v5`, …
    """

    env_id: str

    @property
    def kind(self) -> EnvKind:
        """What it is.

        Raises:
            HyperparameterError: observations or actions are none of the kinds above.
        """
        if self._is_atari:
            return EnvKind.ATARI
        observation, action = self._spaces
        if len(observation.shape) != 1:
            raise HyperparameterError(
                f"{self.env_id} has observations of shape {list(observation.shape)}; there is no standard network for "
                "them: write a model, and wrap the environment as it needs it"
            )
        if isinstance(action, gymnasium.spaces.Discrete):
            return EnvKind.DISCRETE
        if isinstance(action, gymnasium.spaces.Box) and len(action.shape) == 1:
            return EnvKind.CONTINUOUS
        raise HyperparameterError(f"{self.env_id} has the actions {action}; needed are Discrete ones, or a vector")

    @property
    def act_dim(self) -> int:
        """Number of choices, or of numbers in an action."""
        action = self._spaces[1]
        return int(action.n) if isinstance(action, gymnasium.spaces.Discrete) else int(np.prod(action.shape))

    @property
    def goal(self) -> float | None:
        """Mean return of an evaluation that Gymnasium counts as solved; None where nobody agreed on one."""
        self._spaces  # noqa: B018 - an environment of a package that is not imported yet is registered now
        threshold = gymnasium.spec(self.env_id).reward_threshold
        return None if threshold is None else float(threshold)

    def pick(self, table: Mapping[EnvKind, T]) -> T:
        """What a table has for this kind.

        Raises:
            HyperparameterError: it has nothing.
        """
        if self.kind not in table:
            known = ", ".join(sorted(table))
            raise HyperparameterError(f"{self.env_id} is of the kind {self.kind}; this program is for {known}")
        return table[self.kind]

    def make(self) -> Any:
        """Make one for training; of an Atari game a life is an episode, and rewards are -1, 0 or 1."""
        return make_atari(self.env_id) if self._is_atari else make_flat_env(self.env_id)

    def make_to_evaluate(self) -> Any:
        """Make one for evaluation, with whole episodes and rewards as the environment gives them."""
        return make_atari(self.env_id, whole_games=True) if self._is_atari else make_flat_env(self.env_id)

    @property
    def _is_atari(self) -> bool:
        return self.env_id.startswith("ALE/") or "NoFrameskip" in self.env_id

    @cached_property
    def _spaces(self) -> tuple[Any, Any]:
        env = self.make()
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()
