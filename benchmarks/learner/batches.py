"""Random batches, equal for every library; nothing is learned from them, and no seed matters."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

UPDATES = {"cnn": 2, "continuous": 8, "small": 32}
"""Number of updates per run, by the size of the networks."""

OBS_DIM, ACT_DIM = 4, 2
DQN_BATCH, DQN_HIDDEN, SYNC_EVERY = 64, 128, 32
ROLLOUT, MINIBATCH, PPO_HIDDEN, EPOCHS = 2048, 64, 64, 1
CHEETAH_OBS, CHEETAH_ACT, CHEETAH_BATCH, CHEETAH_HIDDEN = 17, 6, 256, (256, 256)
FRAMES, ATARI_ACTIONS, ATARI_BATCH, A2C_STEPS, A2C_ENVS = (4, 84, 84), 6, 32, 50, 8
DONE = 0.02  # of the steps end an episode

Columns = tuple[NDArray[Any], ...]


def transitions() -> Columns:
    """Return obs, action, reward, next_obs and terminal of a batch for DQN."""
    return _transitions(_vectors(DQN_BATCH, OBS_DIM), _vectors(DQN_BATCH, OBS_DIM), ACT_DIM)


def cheetah_transitions() -> Columns:
    """Return a batch with continuous actions, in the sizes of HalfCheetah."""
    obs, next_obs = _vectors(CHEETAH_BATCH, CHEETAH_OBS), _vectors(CHEETAH_BATCH, CHEETAH_OBS)
    _, _, reward, _, terminal = _transitions(obs, next_obs, ACT_DIM)
    action = np.random.default_rng(1).uniform(-1.0, 1.0, (CHEETAH_BATCH, CHEETAH_ACT)).astype(np.float32)
    return obs, action, reward, next_obs, terminal


def frame_transitions() -> Columns:
    """Return a batch with stacked frames, for DQN."""
    return _transitions(frames(ATARI_BATCH), frames(ATARI_BATCH), ATARI_ACTIONS)


def frames(rows: int) -> NDArray[np.uint8]:
    """Return stacked frames `[rows, 4, 84, 84]`."""
    return np.random.default_rng(rows).integers(256, size=(rows, *FRAMES), dtype=np.uint8)


def rollout(rows: int = ROLLOUT, actions: int = ACT_DIM) -> dict[str, NDArray[Any]]:
    """Return the columns of a rollout without observations."""
    rng = np.random.default_rng(0)
    names = ("value", "return_", "log_prob", "advantage")
    columns: dict[str, Any] = {name: rng.normal(scale=0.1, size=rows).astype(np.float32) for name in names}
    return {"action": rng.integers(actions, size=rows), **columns}


def vector_rollout() -> dict[str, NDArray[Any]]:
    """Return a rollout of vectors for PPO."""
    return {"obs": _vectors(ROLLOUT, OBS_DIM), **rollout()}


def fragments() -> Columns:
    """Return obs, action, behaviour logits, reward and done of a batch for IMPALA, ordered by environment."""
    rng, rows = np.random.default_rng(0), A2C_STEPS * A2C_ENVS
    logits = rng.normal(scale=0.1, size=(rows, ATARI_ACTIONS)).astype(np.float32)
    reward = rng.normal(size=rows).astype(np.float32)
    return frames(rows), rng.integers(ATARI_ACTIONS, size=rows), logits, reward, rng.random(rows) < DONE


class Space(gymnasium.Env[Any, Any]):
    """An environment that has only spaces, for libraries that require one."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}


def cheetah() -> Space:
    """Return an environment with the spaces of HalfCheetah."""
    box = gymnasium.spaces.Box
    return Space(box(-np.inf, np.inf, (CHEETAH_OBS,), np.float32), box(-1.0, 1.0, (CHEETAH_ACT,), np.float32))


def atari() -> Space:
    """Return an environment with the spaces of an Atari game behind the usual wrappers."""
    return Space(gymnasium.spaces.Box(0, 255, FRAMES, np.uint8), gymnasium.spaces.Discrete(ATARI_ACTIONS))


def _vectors(rows: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(width).normal(size=(rows, width)).astype(np.float32)


def _transitions(obs: NDArray[Any], next_obs: NDArray[Any], actions: int) -> Columns:
    rng = np.random.default_rng(0)
    rows = len(obs)
    reward = rng.normal(size=rows).astype(np.float32)
    return obs, rng.integers(actions, size=rows), reward, next_obs, (rng.random(rows) < 0.1).astype(np.float32)
