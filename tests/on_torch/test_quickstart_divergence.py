"""A run whose loss stops being finite ends with a message, and its last good checkpoint can be restored."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import parl
from parl_core import training
from parl_core.errors import DivergedError


class Spoiled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose rewards are not numbers any more once its first 600 steps are over."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return observation, float("nan") if self._steps > 600 else reward, terminated, truncated, info


def make_agent() -> Any:
    fc = parl.layers.fc

    class ActorCritic(parl.Model):
        def __init__(self) -> None:
            self.hidden, self.logits, self.out = fc(8, act="tanh"), fc(2), fc(1)

        def policy(self, obs: Any) -> Any:
            return self.logits(self.hidden(obs))

        def value(self, obs: Any) -> Any:
            return self.out(self.hidden(obs))

    return parl.Agent(parl.algorithms.PPO(ActorCritic()))


def test_a_loss_that_is_not_finite_stops_the_run_and_the_best_agent_is_intact(tmp_path: Path) -> None:
    agent = make_agent()

    def train() -> None:
        with training.Run("spoiled", tmp_path) as run, training.make_vector_env(Spoiled, 2) as envs:
            training.train_on_policy(
                agent,
                envs,
                training.OnPolicySettings(total_steps=4096, n_steps=64, epochs=1),
                evaluator=lambda: training.evaluate(agent, "CartPole-v1", 3),
                evaluate_every=512,
                callbacks=training.standard_callbacks(run, agent),
            )

    with pytest.raises(DivergedError, match=r"nan.*last checkpoint") as caught:
        train()
    (folder,) = tmp_path.iterdir()
    assert f"{folder / 'best.ckpt'}: agent after " in caught.value.__notes__[0]
    restored = make_agent()
    restored.restore(folder / "best.ckpt")
    assert all(np.isfinite(array).all() for array in restored.get_weights().values())
    assert training.evaluate(restored, "CartPole-v1", 3).mean > 0.0
