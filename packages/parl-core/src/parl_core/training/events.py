"""What a training loop tells its callbacks, and the callback itself.

A callback hears of three things:

    loop ── Update ────────> callbacks      after every update of the agent
         ── Evaluation ────> callbacks      after every evaluation
         ── Ended ─────────> callbacks      once, however the loop ends
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from parl_core import logger

__all__ = ["Callback", "Ended", "Episode", "Evaluation", "Stop", "Update", "tell_end"]


@dataclass(frozen=True)
class Episode:
    """One finished episode: the undiscounted sum of its rewards, and its steps."""

    episode_return: float
    length: int


@dataclass(frozen=True)
class Update:
    """What happened since the update before.

    Attributes:
        step: environment steps so far, over all environments.
        total_steps: the loop's budget of environment steps.
        seconds: since the loop began, evaluations included.
        episodes: those that ended since the update before.
        losses: what the agent's update returned, by name.
        schedules: scheduled values that were used, by name, such as `lr`.
        metrics: further numbers by their whole names (`group/name`), such as `lag/mean`.
    """

    step: int
    total_steps: int
    seconds: float
    episodes: Sequence[Episode] = ()
    losses: Mapping[str, float] = field(default_factory=dict)
    schedules: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Episodes played without exploration and without learning.

    Attributes:
        episodes: one for each evaluated episode, in the order of their seeds.
        step: environment steps that training had taken by then.
        seconds: since the loop began.
    """

    episodes: Sequence[Episode]
    step: int = 0
    seconds: float = 0.0

    @property
    def returns(self) -> list[float]:
        """The episodes' returns."""
        return [episode.episode_return for episode in self.episodes]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes (population)."""
        return float(np.std(self.returns))

    def get_state(self) -> dict[str, Any]:
        """The same as a checkpoint holds it."""
        lengths = [episode.length for episode in self.episodes]
        return {"returns": self.returns, "lengths": lengths, "step": self.step, "seconds": self.seconds}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Evaluation":
        """The evaluation that `get_state` described."""
        pairs = zip(state["returns"], state["lengths"], strict=True)
        return cls([Episode(*pair) for pair in pairs], int(state["step"]), float(state["seconds"]))


class Stop(Enum):
    """Why a loop ended."""

    BUDGET = "the step budget is used up"
    CALLBACK = "a callback asked for it"
    INTERRUPTED = "it was interrupted"
    FAILED = "an error ended it"


@dataclass(frozen=True)
class Ended:
    """How a loop ended.

    Attributes:
        stop: the kind of end.
        reason: the same in words, with the values.
        step: environment steps that were taken.
        seconds: since the loop began.
        evaluations: all of them, in order.
    """

    stop: Stop
    reason: str
    step: int
    seconds: float
    evaluations: Sequence[Evaluation] = ()


class Callback:
    """Something that watches a loop; a subclass overrides what it needs.

    `on_update`, `on_evaluation` and `on_resume` may return a reason to stop, in words; the loop then ends after all
    callbacks were told. One that remembers something across events gives it to checkpoints with `get_state` and takes
    it back with `set_state`.
    """

    def on_update(self, update: Update) -> str | None:
        """Called after every update of the agent."""

    def on_evaluation(self, evaluation: Evaluation) -> str | None:
        """Called after every evaluation."""

    def on_end(self, ended: Ended) -> None:
        """Called once, however the loop ended."""

    def on_resume(self) -> str | None:
        """Called after `set_state`, before a resumed run takes a step; a reason means that the run was over already."""

    def get_state(self) -> Any:
        """What a checkpoint holds of it (see `parl_core.checkpoint`); asked for before each one is written."""
        return None

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state` returned; called once, before a resumed loop goes on."""


def tell_end(callbacks: Sequence[Callback], ended: Ended) -> list[Exception]:
    """Tell all of them, whatever one of them does, and return what they raised.

    It is for the loop to raise, where no error or Ctrl-C began the end, which would be hidden by it.
    """
    failures = []
    for callback in callbacks:
        try:
            callback.on_end(ended)
        except Exception as error:
            logger.error("%s failed at the end of training: %s", type(callback).__name__, error)
            failures.append(error)
    return failures
