"""The metrics of a run with actors and a learner: policy lag, where time goes, and who was lost.

    lag/mean, lag/max         updates between the weights that acted and those that learned, of the report's samples
    lag/limit                 the setting max_lag
    lag/dropped               fragments so far that were older than that and not learned from
    actors/lost               actors so far that ended, or were ended because they hung, and were replaced
    actors/failed             calls so far in which an environment raised, and was made anew
    actors/env                share of the actors' time that their environments took, from 0 to 1
    actors/policy             ... that choosing actions and writing down what happened took
    actors/idle               ... between fragments: sending one, taking weights, waiting for the next call
    learner/wait              share of the learner's time that it waited for samples; in GA3C, acting is part of it
    learner/receive           ... in which samples were joined to batches
    learner/learn             ... that updates took
    learner/send              ... in which weights were stored and calls were sent
    learner/other             ... of callbacks, evaluations and checkpoints

Shares are of the time since the report before. A learner that waits wants more or faster actors; idle actors want a
faster learner, or a larger max_lag.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from parl_core.training.fragment import ActorSeconds, Fragment

__all__ = ["LearnerMetrics"]

_PHASES = ("wait", "receive", "learn", "send")


class LearnerMetrics:
    """Adds up between two reports.

    Args:
        max_lag: the setting.
        clock: seconds from an arbitrary zero.
    """

    def __init__(self, max_lag: int, clock: Callable[[], float]) -> None:
        self._max_lag, self._clock = max_lag, clock
        self._began = clock()
        self._lags: list[int]
        self._clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time as `learner/<name>`."""
        began = self._clock()
        try:
            yield
        finally:
            self._phases[name] += self._clock() - began

    def learned(self, version: int, fragments: Sequence[Fragment]) -> None:
        """Note that fragments were learned from, by weights that had seen `version` updates."""
        for fragment in fragments:
            self._lags.append(version - fragment.version)
            self._seconds += np.array(fragment.seconds)

    def take(self, *, dropped: int, lost: int, failed: int) -> dict[str, float]:
        """The metrics since the last time, by name."""
        named = {
            "lag/limit": float(self._max_lag),
            "lag/dropped": float(dropped),
            "actors/lost": float(lost),
            "actors/failed": float(failed),
        }
        if self._lags:
            named |= {"lag/mean": float(np.mean(self._lags)), "lag/max": float(max(self._lags))}
        if actors := float(self._seconds.sum()):
            shares = self._seconds / actors
            named |= {f"actors/{name}": float(s) for name, s in zip(ActorSeconds._fields, shares, strict=True)}
        now = self._clock()
        if total := now - self._began:
            parts = {name: seconds / total for name, seconds in self._phases.items()}
            parts["other"] = max(0.0, 1.0 - sum(parts.values()))
            named |= {f"learner/{name}": share for name, share in parts.items()}
        self._began = now
        self._clear()
        return named

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds: no times."""
        return {"lags": list(self._lags)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._lags = list(state["lags"])

    def _clear(self) -> None:
        self._lags = []
        self._seconds = np.zeros(len(ActorSeconds._fields))
        self._phases = dict.fromkeys(_PHASES, 0.0)
