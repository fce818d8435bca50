"""Measure one case of one library in a separate process, and print one number.

    python worker.py <library> <case>

Rates are per second of the process's CPU time (all cases have one thread), the best of several short runs, so that the
machine's other load matters little.
"""

import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np

OBS, ACT, CAPACITY = 17, 6, 200_000
FRAMES, FRAME_CAPACITY, EPISODE = (4, 84, 84), 20_000, 500
RUNS = 7


def best_rate(action: Callable[[], None], times: int, per_time: int = 1) -> float:
    """Return the units per second of the fastest of `RUNS` runs of `times` calls."""
    seconds = []
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(times):
            action()
        seconds.append(time.process_time() - began)
    return times * per_time / min(seconds)


class Parl:
    """This project's `sample_batch`, which returns new arrays like every other library.

    Args:
        reused: True for `sample`, which writes into buffers that its next call overwrites.
    """

    def __init__(self, reused: bool = False) -> None:
        self._reused = reused

    def vector(self, prioritized: bool = False) -> Any:
        from parl_core.replay import Prioritized, ReplayMemory

        memory = ReplayMemory(CAPACITY, OBS, ACT, seed=0, sampling=Prioritized() if prioritized else None)
        return self._adapted(memory)

    def frames(self, prioritized: bool = False) -> Any:
        from parl_core.replay import FrameReplayMemory, Prioritized

        memory = FrameReplayMemory(FRAME_CAPACITY, FRAMES, seed=0, sampling=Prioritized() if prioritized else None)
        return self._adapted(memory)

    def _adapted(self, memory: Any) -> Any:
        def learn(n: int, td_error: Any) -> None:
            batch = memory.sample(n) if self._reused else memory.sample(n).copy()
            memory.update_priorities(batch.index, td_error)

        # only on request: after vars(), Python 3.11 looks up the attributes of an object more slowly
        def size() -> float:
            arrays = [value for value in vars(memory).values() if isinstance(value, np.ndarray)]
            return sum(array.nbytes for array in arrays) / memory.max_size

        return SimpleNamespace(
            add=memory.append,
            add_batch=memory.append_batch,
            sample=memory.sample if self._reused else memory.sample_batch,
            learn=learn,
            bytes=size,
        )


class StableBaselines3:
    """Stable-Baselines3's replay buffer. Sampling includes `torch.as_tensor`, which on a CPU copies nothing."""

    def vector(self) -> Any:
        from gymnasium.spaces import Box

        return self._buffer(CAPACITY, Box(-1, 1, (OBS,)), Box(-1, 1, (ACT,)))

    def frames(self) -> Any:
        from gymnasium.spaces import Box, Discrete

        return self._buffer(FRAME_CAPACITY, Box(0, 255, FRAMES, np.uint8), Discrete(4))

    def _buffer(self, capacity: int, obs_space: Any, act_space: Any) -> Any:
        import torch
        from stable_baselines3.common.buffers import ReplayBuffer

        torch.set_num_threads(1)
        buffer = ReplayBuffer(capacity, obs_space, act_space, "cpu", handle_timeout_termination=True)

        def add(obs: Any, act: Any, reward: float, next_obs: Any, terminal: bool) -> None:
            buffer.add(obs, next_obs, np.array(act), np.array(reward), np.array(terminal), [{}])

        size = sum(getattr(buffer, name).nbytes for name in ("observations", "next_observations", "actions"))
        return SimpleNamespace(add=add, sample=buffer.sample, bytes=lambda: size / capacity)


class Cpprb:
    def vector(self, prioritized: bool = False) -> Any:
        fields = {
            "obs": {"shape": OBS},
            "act": {"shape": ACT},
            "rew": {},
            "next_obs": {"shape": OBS},
            "done": {},
        }
        return self._buffer(CAPACITY, fields, prioritized)

    def frames(self, prioritized: bool = False) -> Any:
        fields = {
            "obs": {"shape": FRAMES, "dtype": np.uint8},
            "act": {"dtype": np.int32},
            "rew": {},
            "next_obs": {"shape": FRAMES, "dtype": np.uint8},
            "done": {},
        }
        return self._buffer(FRAME_CAPACITY, fields, prioritized)

    def _buffer(self, capacity: int, fields: Any, prioritized: bool) -> Any:
        from cpprb import PrioritizedReplayBuffer, ReplayBuffer

        buffer = (PrioritizedReplayBuffer if prioritized else ReplayBuffer)(capacity, fields)

        def add(obs: Any, act: Any, reward: float, next_obs: Any, terminal: bool) -> None:
            buffer.add(obs=obs, act=act, rew=reward, next_obs=next_obs, done=terminal)

        def learn(n: int, td_error: Any) -> None:
            buffer.update_priorities(buffer.sample(n)["indexes"], td_error)

        def add_batch(obs: Any, act: Any, reward: Any, next_obs: Any, terminal: Any) -> None:
            buffer.add(obs=obs, act=act, rew=reward, next_obs=next_obs, done=terminal)

        return SimpleNamespace(add=add, add_batch=add_batch, sample=buffer.sample, learn=learn)


class Parl2:
    """PARL 2.2.1's replay memory, which has no vector insert, images or priorities.

    Only its module is loaded from the unpacked wheel, because the package requires pyarrow and protobuf of 2020.
    """

    def vector(self) -> Any:
        module_spec = spec_from_file_location("parl2_replay", Path(os.environ["PARL2"], "parl/utils/replay_memory.py"))
        assert module_spec is not None
        assert module_spec.loader is not None
        sys.modules["parl.utils"] = cast(ModuleType, SimpleNamespace(logger=None))  # it only logs when it loads files
        module = module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        memory = module.ReplayMemory(CAPACITY, OBS, ACT)
        return SimpleNamespace(add=memory.append, sample=memory.sample_batch)


LIBRARIES: dict[str, Callable[[], Any]] = {
    "ours": Parl,
    "ours_reused": lambda: Parl(reused=True),
    "sb3": StableBaselines3,
    "cpprb": Cpprb,
    "parl2": Parl2,
}
rng = np.random.default_rng(0)
vector_step = (rng.random(OBS, np.float32), rng.random(ACT, np.float32), 1.0, rng.random(OBS, np.float32), False)


def fill(memory: Any, step: tuple[Any, ...], count: int) -> None:
    for _ in range(count):
        memory.add(*step)


def frame_writer(memory: Any) -> Callable[[], None]:
    """Return a function that appends the transitions of one episode with consecutive observations."""
    screens = rng.integers(0, 256, (EPISODE + 4, 84, 84), dtype=np.uint8)
    stacks = [np.ascontiguousarray(screens[t : t + 4]) for t in range(EPISODE + 1)]

    def episode() -> None:
        for t in range(EPISODE):
            memory.add(stacks[t], 1, 1.0, stacks[t + 1], t == EPISODE - 1)

    return episode


def vector_insert(library: Any) -> float:
    memory = library.vector()
    return best_rate(lambda: fill(memory, vector_step, 1000), 20, 1000)


def vector_insert_64(library: Any) -> float:
    memory = library.vector()
    obs, act = rng.random((64, OBS), np.float32), rng.random((64, ACT), np.float32)
    ones, ends = np.ones(64, np.float32), np.zeros(64, np.bool_)
    return best_rate(lambda: memory.add_batch(obs, act, ones, obs, ends), 300, 64)


def vector_sample(library: Any) -> float:
    memory = library.vector()
    fill(memory, vector_step, CAPACITY)
    return best_rate(lambda: memory.sample(256), 1000)


def prioritized_insert(library: Any) -> float:
    memory = library.vector(prioritized=True)
    return best_rate(lambda: fill(memory, vector_step, 1000), 20, 1000)


def prioritized_learn(library: Any) -> float:
    memory = library.vector(prioritized=True)
    fill(memory, vector_step, CAPACITY)
    errors = rng.random(256)
    return best_rate(lambda: memory.learn(256, errors), 500)


def frames_insert(library: Any) -> float:
    memory = library.frames()
    episode = frame_writer(memory)
    for _ in range(FRAME_CAPACITY // EPISODE):  # every page has been touched before
        episode()
    return best_rate(episode, 4, EPISODE)


def frames_sample(library: Any, prioritized: bool = False) -> float:
    memory = library.frames(prioritized=True) if prioritized else library.frames()
    episode = frame_writer(memory)
    for _ in range(FRAME_CAPACITY // EPISODE):
        episode()
    return best_rate(lambda: memory.sample(32), 300)


def frames_prioritized(library: Any) -> float:
    return frames_sample(library, prioritized=True)


def frames_faults(library: Any) -> float:
    """Return the page faults per batch, after ten batches in a fresh process."""
    memory = library.frames()
    episode = frame_writer(memory)
    for _ in range(10):
        episode()
    for _ in range(10):
        memory.sample(32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        memory.sample(32)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 200


def frames_bytes(library: Any) -> float:
    return float(library.frames().bytes())


CASES = {
    case.__name__: case
    for case in (
        vector_insert,
        vector_insert_64,
        vector_sample,
        prioritized_insert,
        prioritized_learn,
        frames_insert,
        frames_sample,
        frames_prioritized,
        frames_faults,
        frames_bytes,
    )
}

if __name__ == "__main__":
    print(CASES[sys.argv[2]](LIBRARIES[sys.argv[1]]()))
