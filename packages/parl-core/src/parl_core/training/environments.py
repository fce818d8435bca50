"""The environments of a run in a checkpoint: exactly where they were, or begun anew at every checkpoint.

exact    every environment's episode is recorded and taken up again (`parl_core.env.recorded`); a checkpoint changes
         nothing about the run. For what `make_vector_env` gives, also inside of `NormalizeVector`.
reset    at every checkpoint all environments are reset, with seeds that follow from the run's seed and the step,
         and the episodes that were running are cut: a run that was stopped and one that was not do the same. For
         vectors of others, which cannot be asked for their state, and for environments that are not repeatable.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorWrapper

from parl_core import logger
from parl_core.env.same_step import SameStep
from parl_core.errors import HyperparameterError
from parl_core.seeding import spawn_seeds

__all__ = ["EnvironmentKeeper", "EnvironmentRule"]

EnvironmentRule = Literal["auto", "exact", "reset"]


class EnvironmentKeeper:
    """Saves and restores one vector of environments. Make it before the first reset, from which on it records.

    Args:
        envs: a vector environment, with any wrappers.
        rule: `"exact"`, `"reset"`, or `"auto"`: exact where that can be.
        seed: of the run; the seeds of resets follow from it.

    Raises:
        HyperparameterError: the rule is unknown, or `"exact"` and the environments cannot be asked for their state.
    """

    def __init__(self, envs: Any, rule: EnvironmentRule, seed: int | None) -> None:
        if rule not in ("auto", "exact", "reset"):
            raise HyperparameterError(f'environments must be "auto", "exact" or "reset", got {rule!r}')
        self._envs = envs
        self._layers: list[Any] = []
        while isinstance(envs, VectorWrapper):
            self._layers.append(envs)
            envs = envs.env
        self._base = envs
        blocks = [layer for layer in (*self._layers, envs) if not self._can_save(layer)]
        if blocks and rule == "exact":
            raise HyperparameterError(
                f"{type(blocks[0]).__name__} cannot be asked for its state, so a run with it resumes exactly only with "
                'environments="reset"; or make the environments with make_vector_env'
            )
        self.exact = not blocks and rule != "reset"
        if blocks:
            logger.info(
                "%s cannot be asked for its state: every checkpoint begins new episodes", type(blocks[0]).__name__
            )
        self._root = int(np.random.SeedSequence(seed).generate_state(1)[0])
        if self.exact:
            self._base.record_episodes()

    def reset_seeds(self, step: int) -> list[int]:
        """Seeds of the environments for the reset at a checkpoint, one each."""
        sequence = np.random.SeedSequence((self._root, step))
        return spawn_seeds(int(sequence.generate_state(1)[0]), self._base.num_envs)

    def get_state(self) -> dict[str, Any]:
        """What `set_state` needs."""
        state: dict[str, Any] = {
            "exact": self.exact,
            "root": self._root,
            "layers": [_state_of(layer) for layer in self._layers],
        }
        if self.exact:
            state["base"] = self._base.get_state()
        return state

    def set_state(self, state: Mapping[str, Any], *, fresh_episodes: bool = False) -> bool:
        """Bring new environments to where the saved ones were.

        Args:
            state: of `get_state`.
            fresh_episodes: leave the episodes; only what wrappers of the vector know is restored.

        Returns:
            Whether the environments are in the middle of the saved episodes; else they have to be reset.

        Raises:
            CheckpointError: an environment did not come to where it was.
        """
        self._root = int(state["root"])
        exact = bool(state["exact"]) and self.exact and not fresh_episodes
        if exact:
            self._base.set_state(state["base"])
        for layer, saved in zip(self._layers, state["layers"], strict=False):
            if saved is not None:
                _restore(layer, saved)
        return exact

    def _can_save(self, layer: Any) -> bool:
        if layer is self._base:
            return hasattr(layer, "record_episodes")
        return isinstance(layer, SameStep) or hasattr(layer, "checkpoint_state")


def _state_of(layer: Any) -> Any:
    return layer.checkpoint_state() if hasattr(layer, "checkpoint_state") else None


def _restore(layer: Any, saved: Any) -> None:
    if hasattr(layer, "restore_checkpoint"):
        layer.restore_checkpoint(saved)
