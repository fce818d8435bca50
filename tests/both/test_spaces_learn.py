"""Networks made of spaces learn: small tasks whose best return is known, one for each kind of space."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import parl
from parl_core.env.vector import make_vector_env
from parl_core.schedules import linear
from parl_core.seeding import seed_everything
from parl_core.training.evaluation import evaluate
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Shown(gymnasium.Env[Any, Any]):
    """One step an episode: the observation shows the right action, which alone gives a reward of 1."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.show(self.np_random), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.worth(action)
        return self.show(self.np_random), reward, True, False, {}

    def show(self, rng: np.random.Generator) -> Any:
        raise NotImplementedError

    def worth(self, action: Any) -> float:
        return float(np.mean(action == self._right))

    _right: Any


class SmallImage(Shown):
    """A bright square of 2 x 2 pixels among 8 x 8; right is the number of its quarter."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Discrete(4)

    def show(self, rng: np.random.Generator) -> Any:
        image = np.zeros((8, 8), np.uint8)
        row, column = 2 * rng.integers(4, size=2)
        image[row : row + 2, column : column + 2] = 255
        self._right = 2 * (row >= 4) + (column >= 4)
        return image


class ColourImage(Shown):
    """A square of 64 x 64 x 3 in one of three colours; right is its colour."""

    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def show(self, rng: np.random.Generator) -> Any:
        image = np.zeros((64, 64, 3), np.uint8)
        row, column = rng.integers(48, size=2)
        self._right = int(rng.integers(3))
        image[row : row + 16, column : column + 16, self._right] = 255
        return image


class ImageAndKey(Shown):
    """An image whose bright half and a key, 0 or 1, together say which of four actions is right."""

    observation_space = spaces.Dict(
        picture=spaces.Box(0, 255, (3, 12, 12), np.uint8), inner=spaces.Dict(key=spaces.Discrete(2, start=4))
    )
    action_space = spaces.Discrete(4)

    def show(self, rng: np.random.Generator) -> Any:
        half, key = (int(number) for number in rng.integers(2, size=2))
        picture = np.zeros((3, 12, 12), np.uint8)
        picture[:, :, 6 * half : 6 * half + 6] = 200
        self._right = 2 * half + key
        return {"picture": picture, "inner": {"key": key + 4}}


class Masked(Shown):
    """The best of what a mask allows: of five actions the largest, or where the sign is negative the smallest one."""

    observation_space = spaces.Dict(action_mask=spaces.MultiBinary(5), sign=spaces.Box(-1.0, 1.0, (1,), np.float32))
    action_space = spaces.Discrete(5)

    def show(self, rng: np.random.Generator) -> Any:
        self._mask = rng.permutation([1, 1, 1, 0, 0]).astype(np.int8)
        sign = rng.choice([-1.0, 1.0])
        possible = np.flatnonzero(self._mask)
        self._right = int(possible[-1] if sign > 0 else possible[0])
        self._sign = sign
        return {"action_mask": self._mask, "sign": np.array([sign], np.float32)}

    def worth(self, action: Any) -> float:
        assert self._mask[action], "a forbidden action"
        return 1.0 - 0.25 * abs(int(action) - self._right)


class SeveralChoices(Shown):
    """Three digits are shown and have to be named, each by its part; a part is worth a third."""

    observation_space = spaces.MultiDiscrete([3, 4, 2])
    action_space = spaces.MultiDiscrete([3, 4, 2])

    def show(self, rng: np.random.Generator) -> Any:
        self._right: NDArray[np.int64] = rng.integers(self.action_space.nvec)
        return self._right


def frozen_lake() -> Any:
    """The way over the ice, which is found or not: the best return is 1."""
    return gymnasium.make("FrozenLake-v1", is_slippery=False)


def agent_for(env: Any, algorithm: Any, kind: Any, **settings: Any) -> Any:
    seed_everything(1)
    model = parl.networks.for_spaces(env.observation_space, env.action_space, kind)
    return parl.Agent(algorithm(model, **settings), seed=1)


@pytest.mark.parametrize(
    ("task", "steps"),
    [(ColourImage, 4_000), (ImageAndKey, 8_000), (Masked, 8_000), (SeveralChoices, 8_000)],
)
def test_ppo_comes_to_the_best_return(task: type[Shown], steps: int) -> None:
    agent = agent_for(task(), parl.algorithms.PPO, "actor-critic")
    settings = OnPolicySettings(
        total_steps=steps, n_steps=32, epochs=4, minibatch_size=64, lr=1e-3, clip=0.2, entropy_coef=0.0
    )
    with make_vector_env(task, 8) as envs:
        train_on_policy(agent, envs, settings, seed=1)
    assert evaluate(agent, task, 100, seed=2).mean >= 0.95


@pytest.mark.parametrize(("task", "steps"), [(SmallImage, 3_000), (Masked, 8_000)])
def test_dqn_comes_to_the_best_return(task: type[Shown], steps: int) -> None:
    agent = agent_for(task(), parl.algorithms.DQN, "q", lr=1e-3, sync_every=100)
    settings = OffPolicySettings(
        total_steps=steps,
        learning_starts=200,
        train_every=4,
        batch_size=32,
        exploration={"epsilon": linear(1.0, 0.05, steps // 2)},
    )
    with make_vector_env(task, 8) as envs:
        train_off_policy(agent, envs, settings, seed=1)
    assert evaluate(agent, task, 100, seed=2).mean >= 0.95


def test_dqn_finds_the_way_over_the_frozen_lake() -> None:
    agent = agent_for(frozen_lake(), parl.algorithms.DQN, "q", lr=1e-3, gamma=0.95, sync_every=100)
    settings = OffPolicySettings(
        total_steps=12_000,
        learning_starts=2_000,
        train_every=2,
        batch_size=64,
        exploration={"epsilon": linear(1.0, 0.2, 8_000)},
    )
    with make_vector_env(frozen_lake, 8) as envs:
        train_off_policy(agent, envs, settings, seed=1)
    assert evaluate(agent, frozen_lake, 10, seed=2).mean == 1.0
