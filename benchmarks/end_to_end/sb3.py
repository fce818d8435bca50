"""Stable-Baselines3's `learn()` with the same settings."""

from collections.abc import Callable
from typing import Any

import tasks

Run = Callable[[int], None]


class StableBaselines3:
    """Each method returns a function that continues training for a number of environment steps."""

    def dqn_cartpole(self) -> Run:
        from stable_baselines3 import DQN

        return _run(
            DQN(
                "MlpPolicy",
                "CartPole-v1",
                learning_rate=1e-3,
                buffer_size=50_000,
                learning_starts=0,
                batch_size=tasks.DQN_BATCH,
                train_freq=1,
                gradient_steps=1,
                target_update_interval=tasks.DQN_SYNC,
                policy_kwargs={"net_arch": list(tasks.DQN_HIDDEN)},
                device="cpu",
            )
        )

    def sac_halfcheetah(self) -> Run:
        from stable_baselines3 import SAC

        hidden = {"net_arch": list(tasks.SAC_HIDDEN)}
        options: dict[str, Any] = {"buffer_size": 50_000, "learning_starts": 0, "batch_size": tasks.SAC_BATCH}
        return _run(SAC("MlpPolicy", "HalfCheetah-v5", policy_kwargs=hidden, device="cpu", **options))

    def ppo_cartpole(self) -> Run:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

        return _run(
            PPO(
                "MlpPolicy",
                make_vec_env("CartPole-v1", tasks.PPO_ENVS),
                learning_rate=1e-3,
                n_steps=tasks.PPO_STEPS,
                batch_size=tasks.PPO_MINIBATCH,
                n_epochs=tasks.PPO_EPOCHS,
                gamma=0.98,
                gae_lambda=0.8,
                device="cpu",
            )
        )


def _run(model: Any) -> Run:
    def run(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    return run
