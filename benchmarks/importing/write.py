"""Train agents of Stable-Baselines3 briefly, and store their actions for `compare.py`.

python benchmarks/importing/write.py FOLDER       # in an environment with stable-baselines3 2.9
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

ROWS = 1000


class Shown(gymnasium.Env):
    """An environment with random observations of a space and random rewards, so that training changes the weights."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space, self._steps = observation_space, action_space, 0

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):  # noqa: ARG002
        self._steps += 1
        return self.observation_space.sample(), float(self.np_random.normal()), False, self._steps == 50, {}


def box(shape, low=-1.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


UNEVEN = spaces.Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([1.0, 10.0, 1.0], np.float32))
WIDE = {"policy_kwargs": {"net_arch": [48, 32]}}
CASES = {
    "dqn-cartpole": (DQN, "CartPole-v1", {}),
    "dqn-elu": (DQN, "Acrobot-v1", {"policy_kwargs": {"net_arch": [48, 32, 16], "activation_fn": torch.nn.ELU}}),
    "dqn-one-hot": (DQN, (spaces.Discrete(6), spaces.Discrete(4)), {}),
    "dqn-image": (DQN, (spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(5)), {}),
    "ppo-cartpole": (PPO, "CartPole-v1", {}),
    "ppo-pendulum": (PPO, "Pendulum-v1", WIDE),
    "ppo-uneven": (PPO, (box((5,)), UNEVEN), {}),
    "ppo-several": (PPO, (spaces.MultiDiscrete([3, 5]), spaces.MultiDiscrete([2, 4, 3])), {}),
    "ppo-bits": (PPO, (spaces.MultiBinary(6), spaces.MultiBinary(4)), {}),
    "ppo-image": (PPO, (spaces.Box(0, 255, (40, 44, 3), np.uint8), spaces.Discrete(3)), {}),
    "ppo-normalized": (PPO, "Pendulum-v1", {}),
    "a2c-cartpole": (A2C, "CartPole-v1", {"policy_kwargs": {"activation_fn": torch.nn.ReLU}}),
    "a2c-uneven": (A2C, (box((2, 3)), UNEVEN), {}),
    "sac-pendulum": (SAC, "Pendulum-v1", {}),
    "sac-uneven": (SAC, (box((5,)), UNEVEN), WIDE),
    "td3-pendulum": (TD3, "Pendulum-v1", {}),
    "td3-uneven": (TD3, (box((5,)), UNEVEN), WIDE),
    "ddpg-pendulum": (DDPG, "Pendulum-v1", {}),
}


def main(folder: Path) -> None:
    """Write a zip file and the actions of every case."""
    folder.mkdir(parents=True, exist_ok=True)
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = CASES
    for name, (algorithm, env, options) in cases.items():
        torch.manual_seed(1)
        made = (
            make_vec_env(env, 1, seed=1) if isinstance(env, str) else make_vec_env(lambda e=env: Shown(*e), 1, seed=1)
        )
        if name == "ppo-normalized":
            made = VecNormalize(made)
        image = len(made.observation_space.shape) == 3
        off_policy = algorithm in (DQN, SAC, TD3, DDPG)
        more = {"learning_starts": 64, "buffer_size": 512} if off_policy else {"n_steps": 64}
        model = algorithm("CnnPolicy" if image else "MlpPolicy", made, seed=1, **more, **copy.deepcopy(options))
        model.learn(256)
        model.save(folder / f"{name}.zip")
        raw = gymnasium.make(env) if isinstance(env, str) else Shown(*env)
        raw.observation_space.seed(2)
        seen = seen_by(raw) if isinstance(env, str) else [raw.observation_space.sample() for _ in range(ROWS)]
        observations = np.stack(seen[: 64 if image else ROWS])
        if name == "ppo-normalized":
            made.save(folder / f"{name}.pkl")
            made.training = False
            actions, _ = model.predict(made.normalize_obs(observations), deterministic=True)
        else:
            actions, _ = model.predict(observations, deterministic=True)
        np.savez(folder / f"{name}.npz", observations=observations, actions=actions)
        told = {"env": env if isinstance(env, str) else None, "algorithm": algorithm.__name__}
        (folder / f"{name}.json").write_text(json.dumps(told))
        print(name, observations.shape, actions.shape, flush=True)


def seen_by(env: gymnasium.Env) -> list[np.ndarray]:
    """Return observations of episodes played at random."""
    env.action_space.seed(3)
    ended = True
    found: list[np.ndarray] = []
    while len(found) < ROWS:
        if ended:
            observation, _ = env.reset(seed=len(found))
        found.append(observation)
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        ended = terminated or truncated
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
