"""Logged data for the offline algorithms: scripted policies with noise, always the same.

Pendulum-v1: energy is pumped in until the pendulum is near the top, where a linear controller holds it; Gaussian noise
on top, and every fifth episode is random. CartPole-v1: pushes towards where the pole falls; 40 % of pushes are random.
"""

from typing import Any

import gymnasium
import numpy as np

from parl_core.offline import OfflineDataset

__all__ = ["recorded"]


def recorded(env_id: str, episodes: int = 200) -> OfflineDataset:
    """Record episodes; actions of Pendulum are stored in [-1, 1], as the agents choose them."""
    rng = np.random.default_rng(1)
    env = gymnasium.make(env_id, disable_env_checker=True)
    act = {"Pendulum-v1": _swing_up, "CartPole-v1": _balance}[env_id]
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        over = False
        while not over:
            action = act(obs, rng, at_random=episode % 5 == 0)
            scaled = 2.0 * np.asarray(action, np.float32) if env_id == "Pendulum-v1" else action
            after, reward, terminated, truncated, _ = env.step(scaled)
            rows.append((obs, action, reward, after, terminated, truncated))
            obs, over = after, terminated or truncated
    env.close()
    names = ("obs", "action", "reward", "next_obs", "terminal", "truncated")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return OfflineDataset.from_arrays(columns, f"scripted {env_id}, {episodes} episodes")


def _swing_up(obs: Any, rng: np.random.Generator, *, at_random: bool) -> Any:
    if at_random:
        return rng.uniform(-1.0, 1.0, 1).astype(np.float32)
    cos, sin, speed = obs
    angle = np.arctan2(sin, cos)
    if cos > 0.9:
        torque = -(8.0 * angle + 1.5 * speed) / 2.0
    else:
        energy = 0.5 * speed**2 / 3.0 + 5.0 * (cos - 1.0)  # about the top, where it should be 0
        torque = np.sign(speed) * (1.0 if energy < 0.0 else -1.0)
    return np.clip(torque + rng.normal(0.0, 0.4, 1), -1.0, 1.0).astype(np.float32)


def _balance(obs: Any, rng: np.random.Generator, *, at_random: bool) -> int:
    if at_random or rng.random() < 0.4:
        return int(rng.integers(2))
    return int(obs[2] + 0.3 * obs[3] > 0.0)
