"""Steps per second of 8 parallel environments with random actions: ours, Gymnasium's, EnvPool's, ALE's.

All contenders of a task are opened first and then alternate, so that the machine's load affects them equally. The table
shows the median of the rounds, or the best one (`--best`, for a busy machine); README.md has the command.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from parl_core.actors import open_actors
from parl_core.env.atari import wrap_deepmind
from parl_core.env.native import make_native_vector_env
from parl_core.env.vector import make_vector_env

NUM_ENVS = 8
ACTORS = 2
TASKS = {"CartPole": 4000, "HalfCheetah": 600, "Pong": 150}  # vector steps per turn
ELSEWHERE = ("gymnasium async", "ours, 2 subprocesses x 4", "ours, 2 remote actors x 4")
Step = Callable[[Any], Any]


def make(task: str) -> Any:
    """Return one environment of a task with the usual wrappers of training."""
    if task == "Pong":
        import ale_py

        gymnasium.register_envs(ale_py)
        game = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
        return wrap_deepmind(game, obs_format="NCHW")
    return gymnasium.make({"CartPole": "CartPole-v1", "HalfCheetah": "HalfCheetah-v5"}[task], disable_env_checker=True)


class BareLoop:
    """A loop in one process without a vector environment, as the upper bound."""

    def __init__(self, task: str) -> None:
        self.envs = [make(task) for _ in range(NUM_ENVS)]

    def reset(self, seed: int) -> None:
        for index, env in enumerate(self.envs):
            env.reset(seed=seed + index)

    def step(self, actions: Any) -> None:
        for env, action in zip(self.envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    def close(self) -> None:
        for env in self.envs:
            env.close()


def contenders(task: str, stack: contextlib.ExitStack, threads: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return functions that open the contenders, by name; `stack` closes their other resources."""

    def in_actors(system: str, **options: Any) -> Callable[[], Any]:
        def opened() -> Any:
            actors = stack.enter_context(open_actors(system, **options))
            return make_vector_env(lambda: make(task), NUM_ENVS, actors=actors, envs_per_actor=NUM_ENVS // ACTORS)

        return opened

    yield "bare loop", lambda: BareLoop(task)
    yield "gymnasium sync", lambda: SyncVectorEnv([lambda: make(task)] * NUM_ENVS)
    yield "gymnasium async", lambda: AsyncVectorEnv([lambda: make(task)] * NUM_ENVS)
    yield "ours, one process", lambda: make_vector_env(lambda: make(task), NUM_ENVS)
    yield "ours, 2 subprocesses x 4", in_actors("subprocess", processes=ACTORS)
    yield "ours, 2 remote actors x 4", in_actors("remote", cpu_num=ACTORS)
    names = {"CartPole": "CartPole-v1", "HalfCheetah": "HalfCheetah-v4", "Pong": "Pong-v5"}

    def envpool() -> Any:
        import envpool

        return envpool.make_gymnasium(names[task], num_envs=NUM_ENVS, num_threads=threads)

    yield "EnvPool", envpool
    ours = partial(make_native_vector_env, names[task], NUM_ENVS, "envpool", num_threads=threads)
    yield "EnvPool, ours", ours
    yield "EnvPool, ours, next-step", partial(ours, autoreset_mode="NEXT_STEP")
    if task == "Pong":

        def ale() -> Any:
            from ale_py.vector_env import AtariVectorEnv

            return AtariVectorEnv("pong", NUM_ENVS, episodic_life=True, num_threads=threads)

        yield "ALE", ale
        yield "ALE, ours", lambda: make_native_vector_env("pong", NUM_ENVS, "ale", num_threads=threads)


def actions_of(task: str, steps: int) -> list[Any]:
    """Return random actions, drawn before the measurement."""
    env = make(task)
    space = gymnasium.vector.utils.batch_space(env.action_space, NUM_ENVS)
    env.close()
    space.seed(1)
    return [space.sample() for _ in range(steps)]


def turn(step: Step, actions: list[Any], clock: Callable[[], float]) -> float:
    """Return the environment steps per second."""
    began = clock()
    for action in actions:
        step(action)
    return NUM_ENVS * len(actions) / (clock() - began)


def measure(task: str, rounds: int, scale: float, *, cpu: bool, best: bool) -> dict[str, float]:
    """Return the median or best rate of each contender that can be opened; with `cpu`, only of those in one process."""
    clock = time.process_time if cpu else time.perf_counter
    actions = actions_of(task, max(int(TASKS[task] * scale), 10))
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        opened: dict[str, Any] = {}
        for name, open_it in contenders(task, stack, threads=1 if cpu else os.cpu_count() or 1):
            if cpu and name in ELSEWHERE:
                continue
            try:
                envs = opened[name] = open_it()
            except (ImportError, gymnasium.error.Error) as missing:
                print(f"{task}: {name} is left out: {missing}")
                continue
            stack.callback(envs.close)
            if name == "EnvPool":
                envs.reset()
            else:
                envs.reset(seed=1)
            turn(envs.step, actions[:10], clock)  # warm-up
            rates[name] = []
        for _ in range(rounds):
            for name in rates:
                rates[name].append(turn(opened[name].step, actions, clock))
    return {name: max(found) if best else statistics.median(found) for name, found in rates.items()}


RATIOS = [
    ("ours, one process", "gymnasium sync", {"CartPole": 1.0, "HalfCheetah": 1.0, "Pong": 1.0}),
    ("ours, 2 remote actors x 4", "gymnasium async", {"CartPole": 4.0, "HalfCheetah": 3.0, "Pong": 1.5}),
    ("ours, 2 subprocesses x 4", "gymnasium async", {}),
    ("EnvPool, ours", "EnvPool", {"CartPole": 0.95, "HalfCheetah": 0.95, "Pong": 0.95}),
    ("EnvPool, ours, next-step", "EnvPool", {"CartPole": 0.95, "HalfCheetah": 0.95, "Pong": 0.95}),
    ("ALE, ours", "ALE", {"Pong": 0.95}),
]


def table(found: dict[str, dict[str, float]]) -> str:
    """Return both tables: rates, and ratios with their targets."""
    names = list(dict.fromkeys(name for rates in found.values() for name in rates))
    lines = ["| environment steps/s | " + " | ".join(found) + " |", "| --- |" + " --- |" * len(found)]
    for name in names:
        cells = [f"{rates[name]:,.0f}" if name in rates else "-" for rates in found.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| ratio | " + " | ".join(found) + " |", "| --- |" + " --- |" * len(found)]
    for ours, theirs, targets in RATIOS:
        cells = []
        for task, rates in found.items():
            if ours not in rates or theirs not in rates:
                cells.append("-")
                continue
            target = f" (target {targets[task]:g})" if task in targets else ""
            cells.append(f"{rates[ours] / rates[theirs]:.2f}{target}")
        lines.append(f"| {ours} / {theirs} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the steps per turn")
    parser.add_argument(
        "--cpu", action="store_true", help="steps per CPU second, of contenders with one process and thread"
    )
    parser.add_argument("--best", action="store_true", help="the best turn of each, not the median")
    parser.add_argument("--json", type=Path, help="file for the rates")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    # MuJoCo writes its log into the working directory
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        how = {"cpu": options.cpu, "best": options.best}
        found = {task: measure(task, options.rounds, options.scale, **how) for task in options.tasks}
    print(
        f"{os.cpu_count()} cores, numpy {np.__version__}, gymnasium {gymnasium.__version__}, load before: {load:.1f}\n"
    )
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps({"load": load, "rates": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
