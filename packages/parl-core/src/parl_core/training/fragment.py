"""Fragments: a few steps of one group of environments, as an actor sends them and a learner takes them.

An array `x[i, t]` belongs to step t of the group's environment i, so that the rows of one environment follow each other
when fragments are joined (`fragment_batch`). Every fragment carries the version of the weights that chose its actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from parl_core.nested import Observations
from parl_core.training.events import Episode

__all__ = ["ActorSeconds", "Fragment", "Task"]


class Task(NamedTuple):
    """Which fragment: the `round`-th one of a group of environments, both counted from 0."""

    group: int
    round: int


class ActorSeconds(NamedTuple):
    """Where an actor's time went.

    Attributes:
        env: in the environments' own code.
        policy: in choosing actions and writing down what happened.
        idle: between fragments: sending one, taking weights, waiting for the next call.
    """

    env: float = 0.0
    policy: float = 0.0
    idle: float = 0.0


@dataclass
class Fragment:
    """`T` steps of the `n` environments of a group.

    Attributes:
        task: which fragment it is.
        version: updates that the weights had seen which chose the actions; where several did, the oldest.
        obs: `[n, T, *obs]`, or a dictionary of such: what the action was chosen from.
        action: `[n, T, *act]`, as the policy drew it, before it was made valid in the action space.
        reward: `[n, T]`.
        terminated: `[n, T]`.
        truncated: `[n, T]`.
        policy: what else the policy said of each step, by name, `[n, T, ...]`.
        last_obs: `[n, *obs]`, what the last step led to; None where learning does not need it.
        final_rows: int64 `[k]`, `i * T + t` of the steps whose episodes were truncated and did not terminate.
        final_obs: `[k, *obs]`, the last observations of these episodes; None where there are none.
        episodes: those that ended.
        seconds: where the actor's time went.
    """

    task: Task
    version: int
    obs: Observations
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy: dict[str, NDArray[Any]]
    last_obs: Observations
    final_rows: NDArray[np.int64]
    final_obs: Observations
    episodes: tuple[Episode, ...] = ()
    seconds: ActorSeconds = field(default_factory=ActorSeconds)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        episodes = [[episode.episode_return, episode.length] for episode in self.episodes]
        return {part.name: getattr(self, part.name) for part in fields(self)} | {"episodes": episodes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The fragment that `get_state` described."""
        named = {
            "task": Task(*state["task"]),
            "episodes": tuple(Episode(*episode) for episode in state["episodes"]),
            "seconds": ActorSeconds(*state["seconds"]),
        }
        return cls(**{**state, **named})
