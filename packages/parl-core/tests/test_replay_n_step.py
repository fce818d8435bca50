"""n-step sampling, against sums over recorded steps."""

import numpy as np
import pytest

from parl_core.replay import FrameReplayMemory, ReplayMemory, SequenceReplayMemory

GAMMA = 0.9


class Recorder:
    """Plays random episodes of several environments into a memory, and knows what must come out."""

    def __init__(self, n_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n_envs = n_envs
        self.steps: list[list[tuple[float, float, float, bool, bool]]] = [[] for _ in range(n_envs)]
        self.obs = np.arange(n_envs, dtype=np.float64) * 10_000

    def play(self, memory: ReplayMemory, steps: int) -> None:
        for _ in range(steps):
            reward = self.rng.normal(size=self.n_envs).astype(np.float32)
            terminal = self.rng.random(self.n_envs) < 0.15
            truncated = ~terminal & (self.rng.random(self.n_envs) < 0.1)
            next_obs = self.obs + 1
            memory.append_batch(
                self.obs[:, None], np.zeros(self.n_envs), reward, next_obs[:, None], terminal, truncated
            )
            for env in range(self.n_envs):
                step = (self.obs[env], reward[env], next_obs[env], terminal[env], truncated[env])
                self.steps[env].append(step)
            self.obs = next_obs + 100 * (terminal | truncated)  # a new episode begins elsewhere

    def expected(self, obs: float, n: int) -> tuple[float, float, bool, bool, float]:
        env = int(obs // 10_000)
        start = next(i for i, step in enumerate(self.steps[env]) if step[0] == obs)
        total, discount = 0.0, 1.0
        for step in self.steps[env][start : start + n]:
            _, reward, next_obs, terminal, truncated = step
            total += discount * float(reward)
            discount *= GAMMA
            if terminal or truncated:
                break
        return total, next_obs, terminal, truncated, discount


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_step", [2, 5])
@pytest.mark.parametrize("steps", [4, 37, 90])
def test_windows_sum_rewards_up_to_the_end_of_the_episode_or_of_the_record(
    n_envs: int, n_step: int, steps: int
) -> None:
    memory = ReplayMemory(40 * n_envs, 1, 0, n_envs=n_envs, n_step=n_step, gamma=GAMMA, seed=0)
    recorder = Recorder(n_envs, seed=n_step)
    recorder.play(memory, steps)
    batch = memory.sample(500)
    assert batch.discount is not None
    for row in range(500):
        total, next_obs, terminal, truncated, discount = recorder.expected(float(batch.obs[row, 0]), n_step)
        assert batch.reward[row] == pytest.approx(total, abs=1e-5)
        assert batch.next_obs[row, 0] == next_obs
        assert (batch.terminal[row], batch.truncated[row]) == (terminal, truncated)
        assert batch.discount[row] == pytest.approx(discount)


def test_one_step_sampling_has_no_discount() -> None:
    memory = ReplayMemory(4, 1, 0)
    memory.append([0], 0, 1.0, [1], False)
    assert memory.sample(2).discount is None


def test_single_transitions_of_a_memory_of_sequences_are_one_step_each() -> None:
    memory = SequenceReplayMemory(50, 1, 0, state={}, length=4, burn_in=0, n_step=3, gamma=GAMMA, seed=0)
    for t in range(50):
        memory.append([t], 0, float(t), [t + 1], False)
    batch = memory.sample(20)
    assert batch.discount is None
    assert np.array_equal(batch.reward, batch.obs[:, 0])
    assert np.array_equal(batch.next_obs, batch.obs + 1)
    for obs, _, reward, next_obs, _ in (memory.sample_batch(20), memory.sample_batch_by_index(np.arange(20))):
        assert np.array_equal(reward, obs[:, 0])
        assert np.array_equal(next_obs, obs + 1)


def test_frames_of_n_step_windows_come_from_both_ends() -> None:
    memory = FrameReplayMemory(30, (2, 1, 1), n_step=3, gamma=GAMMA, seed=0)
    frames = np.arange(20, dtype=np.uint8)
    for t in range(1, 13):
        stack, after = frames[t - 1 : t + 1].reshape(2, 1, 1), frames[t : t + 2].reshape(2, 1, 1)
        memory.append(stack, 0, 1.0, after, t == 12)
    batch = memory.sample(200)
    newest = batch.obs[:, 1, 0, 0]
    assert np.array_equal(batch.obs[:, 0, 0, 0], newest - 1)
    assert np.array_equal(batch.next_obs[:, 1, 0, 0], np.minimum(newest + 3, 13))
    assert np.array_equal(batch.next_obs[:, 0, 0, 0], np.minimum(newest + 2, 12))
    assert np.array_equal(batch.terminal, newest >= 10)
