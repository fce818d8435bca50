"""The target network of an algorithm in a loop: what moves it, and a warning where nothing does."""

from typing import Any

import numpy as np

from parl_core import logger
from parl_core.algorithm import Algorithm

__all__ = ["TargetWatch"]

_PATIENCE = 1_000


class TargetWatch:
    """Moves the target after each update where that is the loop's business, and warns once where it stays behind.

    Args:
        agent: of the loop; only an algorithm with a `target_model` is looked at.
    """

    def __init__(self, agent: Any) -> None:
        algorithm = getattr(agent, "alg", None)
        self._algorithm: Any = algorithm if isinstance(algorithm, Algorithm) else None
        self._move: Any = getattr(algorithm, "move_target_in_loop", None)
        self._updates = 0
        self._before: Any = None
        if self._move is not None and getattr(algorithm, "sync_every", 1) is None:
            logger.warning(
                "%s was made with sync_every=None: its target stays as it is unless the program calls sync_target(); "
                "leave sync_every out, and the loop moves it after each update",
                type(algorithm).__name__,
            )
            self._algorithm = None
        elif self._move is not None or not hasattr(algorithm, "target_model"):
            self._algorithm = None

    def after_update(self) -> None:
        """Move the target, if that is the loop's business."""
        if self._move is not None:
            self._move()
        elif self._algorithm is not None:
            self._watch()

    def _watch(self) -> None:
        self._updates += 1
        if self._updates == 1:
            self._before = self._weights()
        elif self._updates == _PATIENCE:
            model, target = self._weights()
            was_model, was_target = self._before
            if _equal(target, was_target) and not _equal(model, was_model):
                logger.warning(
                    "%s has a target_model that did not change in %d updates: let its learn() move it, for instance by "
                    "self.model.sync_weights_to(self.target_model, decay=0.995), or call its sync_target()",
                    type(self._algorithm).__name__,
                    _PATIENCE,
                )
            self._algorithm = self._before = None

    def _weights(self) -> tuple[Any, Any]:
        return self._algorithm.model.get_weights(), self._algorithm.target_model.get_weights()


def _equal(left: Any, right: Any) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)
