"""The tasks: environments, networks and sizes, the same for every contender.

Each environment counts its steps in its own file, so that the number of sampled steps does not depend on the
contender's own figures.
"""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

N_ACTORS, ENVS, STEPS, BATCH = 2, 5, 50, 500
"""Number of actors, environments per actor, steps per fragment, and samples per update."""
GAMMA, LEARNING_RATE, ENTROPY, VALUE_LOSS, MAX_NORM = 0.99, 1e-3, 0.01, 0.5, 40.0


COUNTS = "IMPALA_STEP_COUNTS"
"""The environment variable with the folder of the counts; without it, nothing is counted."""


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that counts its steps in a file of the folder."""

    def __init__(self, env: Any, folder: str) -> None:
        super().__init__(env)
        self._count = np.memmap(Path(folder) / uuid.uuid4().hex, np.int64, "w+", shape=(1,))

    def step(self, action: Any) -> Any:
        self._count[0] += 1
        return self.env.step(action)


def counted(env: Any) -> Any:
    """Return the environment, which counts its steps if the variable is set."""
    folder = os.environ.get(COUNTS)
    return Counted(env, folder) if folder else env


def sampled_steps() -> int:
    """Return the number of steps of all environments so far."""
    folder = os.environ.get(COUNTS)
    counts = [np.fromfile(path, np.int64) for path in Path(folder).iterdir()] if folder else []
    return sum(int(count.sum()) for count in counts)


class Frames(gymnasium.Env[Any, Any]):
    """An environment with precomputed stacks of four frames of 84 x 84, whose steps cost almost nothing.

    Args:
        channels_first: True for `[4, 84, 84]`, as torch requires, False for `[84, 84, 4]`, as RLlib does.
    """

    def __init__(self, channels_first: bool = True) -> None:
        shape = (4, 84, 84) if channels_first else (84, 84, 4)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(6)
        self._frames = np.random.default_rng(0).integers(0, 256, (64, *shape), np.uint8)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        super().reset(seed=seed)
        self._count = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        return self._frames[self._count % 64], float(action == 0), self._count == 1000, False, {}


class Network(nn.Module):
    """Logits and value over one trunk."""

    def __init__(self, trunk: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.pi, self.v = nn.Linear(features, actions), nn.Linear(features, 1)

    def policy_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits `[n, actions]`, values `[n, 1]`)."""
        features = self.trunk(obs / 255.0 if obs.dtype == torch.uint8 else obs)
        return self.pi(features), self.v(features)


def nature_cnn() -> Network:
    """Return the trunk of Mnih et al. 2015."""
    layers = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
    convolutions = [part for layer in layers for part in (layer, nn.ReLU())]
    return Network(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()), 512, 6)


def mlp() -> Network:
    """Return a trunk of two layers of 128."""
    return Network(nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()), 128, 2)


@dataclass(frozen=True)
class Task:
    """A title, functions that make an environment and the network, and a flag for images."""

    title: str
    env: Callable[[], Any]
    network: Callable[[], Network]
    images: bool = True


def _cartpole() -> Any:
    return counted(gymnasium.make("CartPole-v1", disable_env_checker=True))


def _frames() -> Any:
    return counted(Frames())


def _pong() -> Any:
    """Return Pong as in Mnih et al. 2015: every fourth frame, grey, 84 x 84, stacks of four (Gymnasium's wrappers)."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("PongNoFrameskip-v4", disable_env_checker=True)
    return counted(gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env), 4))


TASKS = {
    "frames": Task("Nature CNN on synthetic 84x84x4 frames", _frames, nature_cnn),
    "pong": Task("Nature CNN on Pong", _pong, nature_cnn),
    "cartpole": Task("CartPole, 2x128 MLP", _cartpole, mlp, images=False),
}


def vtrace_loss(
    forward: Callable[[Tensor], tuple[Tensor, Tensor]],
    obs: Tensor,
    action: Tensor,
    behaviour: Tensor,
    reward: Tensor,
    done: Tensor,
    last_obs: Tensor,
) -> Tensor:
    """Return IMPALA's loss, written by hand (Espeholt et al. 2018, equation 1); rows are ordered by environment.

    Args:
        forward: Function that returns logits `[n, actions]` and values `[n, 1]` of observations.
        obs: Observations `[n, ...]`; the other columns have `n` rows, too.
        action: Actions.
        behaviour: Logits of the policy that acted.
        reward: Reward of each step.
        done: 1.0 where an episode ended.
        last_obs: Observation of each environment after its last step.
    """
    return vtrace_loss_of(*forward(torch.cat([obs, last_obs])), action, behaviour, reward, done)


def vtrace_loss_of(
    logits: Tensor, value: Tensor, action: Tensor, behaviour: Tensor, reward: Tensor, done: Tensor
) -> Tensor:
    """Return the loss from logits and values of all observations, with those after the last steps at the end."""
    value, steps = value[:, 0], len(action)
    logits, value, bootstrap = logits[:steps], value[:steps], value[steps:].detach()
    log_policy = F.log_softmax(logits, -1)
    log_prob = log_policy.gather(1, action[:, None])[:, 0]
    ratio = (log_prob.detach() - F.log_softmax(behaviour, -1).gather(1, action[:, None])[:, 0]).exp().clamp(max=1.0)
    ratio, v, r = (x.reshape(-1, STEPS).T for x in (ratio, value.detach(), reward))
    discount = GAMMA * (1.0 - done.reshape(-1, STEPS).T)
    following = torch.cat([v[1:], bootstrap[None]])
    # Each step depends on the next one: fifty small operations are faster in numpy than in torch.
    corrections = (ratio * (r + discount * following - v)).numpy()
    decay = (discount * ratio).numpy()
    for t in reversed(range(STEPS - 1)):
        corrections[t] += decay[t] * corrections[t + 1]
    vs = v + torch.from_numpy(corrections)
    advantage = ratio * (r + discount * torch.cat([vs[1:], bootstrap[None]]) - v)
    entropy = -(log_policy.exp() * log_policy).sum()
    value_loss = 0.5 * (value - vs.T.reshape(-1)).square().sum()
    return -(log_prob * advantage.T.reshape(-1)).sum() + VALUE_LOSS * value_loss - ENTROPY * entropy
