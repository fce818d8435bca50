"""Stable-Baselines3's `train()`, with the same batch each time instead of draws from its buffer."""

from collections.abc import Callable
from typing import Any

import batches
import gymnasium
import torch

Run = Callable[[int], None]


class StableBaselines3:
    """Stable-Baselines3's algorithms with networks of the common sizes."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def dqn(self) -> Run:
        hidden = {"net_arch": [batches.DQN_HIDDEN, batches.DQN_HIDDEN]}
        cartpole = gymnasium.make("CartPole-v1")
        return self._dqn("MlpPolicy", cartpole, batches.transitions(), {"policy_kwargs": hidden})

    def dqn_cnn(self) -> Run:
        return self._dqn("CnnPolicy", batches.atari(), batches.frame_transitions(), {"buffer_size": 100})

    def _dqn(self, policy: str, env: Any, columns: batches.Columns, options: dict[str, Any]) -> Run:
        from stable_baselines3 import DQN
        from stable_baselines3.common.utils import polyak_update

        model = DQN(policy, env, device=self._device, **options)
        obs, action, *others = columns
        _feed(model, (obs, action[:, None], *others))

        def run(updates: int) -> None:
            for step in range(updates):
                model.train(gradient_steps=1, batch_size=len(columns[0]))
                if step % batches.SYNC_EVERY == 0:
                    polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)

        return run

    def sac(self) -> Run:
        from stable_baselines3 import SAC

        return self._continuous(SAC)

    def td3(self) -> Run:
        from stable_baselines3 import TD3

        return self._continuous(TD3)

    def ddpg(self) -> Run:
        from stable_baselines3 import DDPG

        return self._continuous(DDPG)

    def _continuous(self, algorithm: Any) -> Run:
        hidden = {"net_arch": list(batches.CHEETAH_HIDDEN)}
        model = algorithm("MlpPolicy", batches.cheetah(), policy_kwargs=hidden, buffer_size=100, device=self._device)
        columns = batches.cheetah_transitions()
        _feed(model, columns)
        return lambda updates: model.train(gradient_steps=updates, batch_size=len(columns[0]))

    def ppo(self) -> Run:
        from stable_baselines3 import PPO
        from stable_baselines3.common.logger import configure

        model = PPO(
            "MlpPolicy",
            gymnasium.make("CartPole-v1"),
            n_steps=batches.ROLLOUT,
            batch_size=batches.MINIBATCH,
            n_epochs=batches.EPOCHS,
            clip_range_vf=0.2,
            ent_coef=0.01,
            device=self._device,
        )
        model.set_logger(configure(None, []))
        _fill(model.rollout_buffer, batches.vector_rollout(), 1)
        return lambda _: model.train()

    def a2c_cnn(self) -> Run:
        from stable_baselines3 import A2C
        from stable_baselines3.common.logger import configure
        from stable_baselines3.common.vec_env import DummyVecEnv

        steps, envs = batches.A2C_STEPS, batches.A2C_ENVS
        games = DummyVecEnv([batches.atari] * envs)
        model = A2C("CnnPolicy", games, n_steps=steps, use_rms_prop=False, device=self._device)
        model.set_logger(configure(None, []))
        columns = {"obs": batches.frames(steps * envs), **batches.rollout(steps * envs, batches.ATARI_ACTIONS)}

        def run(updates: int) -> None:
            for _ in range(updates):
                _fill(model.rollout_buffer, columns, envs)
                model.train()

        return run


def _feed(model: Any, columns: Any) -> None:
    from stable_baselines3.common.buffers import ReplayBufferSamples
    from stable_baselines3.common.logger import configure

    obs, action, reward, next_obs, terminal = columns
    ordered = (obs, action, next_obs, terminal[:, None], reward[:, None])
    model.set_logger(configure(None, []))
    model.replay_buffer.sample = lambda *_, **__: ReplayBufferSamples(
        *(torch.from_numpy(part).to(model.device) for part in ordered)
    )


def _fill(buffer: Any, columns: dict[str, Any], envs: int) -> None:
    buffer.reset()
    steps = len(columns["obs"]) // envs
    buffer.observations[:] = columns["obs"].reshape(steps, envs, *columns["obs"].shape[1:])
    buffer.actions[:, :, 0] = columns["action"].reshape(steps, envs)
    buffer.values[:] = columns["value"].reshape(steps, envs)
    buffer.returns[:] = columns["return_"].reshape(steps, envs)
    buffer.log_probs[:] = columns["log_prob"].reshape(steps, envs)
    buffer.advantages[:] = columns["advantage"].reshape(steps, envs)
    buffer.full = True
