"""Stable-Baselines3's `learn()`."""

import sys
from pathlib import Path
from typing import Any

from cases import EPISODES, Case
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env

sys.path.append(str(Path(__file__).resolve().parents[1] / "learning"))

from beside_sb3 import Watch, decaying

__all__ = ["sb3", "sb3_ppo"]


def sb3(name: str, case: Case, seed: int) -> list[tuple[int, float]]:
    """Train until the task is solved, and return steps and mean returns of the evaluations."""
    model = {"ppo": sb3_ppo, "dqn": _dqn, "sac": _sac}[name](case.env, seed)
    watch = _UntilSolved(case)
    model.learn(case.total_steps, callback=watch)
    return watch.curve


class _UntilSolved(Watch):
    """Callback that stops after two consecutive evaluations that reached the threshold."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.env, case.evaluate_every, EPISODES)
        self._threshold = case.threshold

    def _on_step(self) -> bool:
        last = self.curve[-2:]
        return len(last) < 2 or min(mean for _, mean in last) < self._threshold


def sb3_ppo(env: str, seed: int) -> Any:
    """Return PPO with the Zoo's hyper-parameters."""
    return PPO(
        "MlpPolicy",
        make_vec_env(env, 8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=decaying(1e-3),
        clip_range=decaying(0.2),
        seed=seed,
        device="cpu",
    )


def _dqn(env: str, seed: int) -> Any:
    return DQN(
        "MlpPolicy",
        env,
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


def _sac(env: str, seed: int) -> Any:
    return SAC("MlpPolicy", env, learning_rate=1e-3, seed=seed, device="cpu")
