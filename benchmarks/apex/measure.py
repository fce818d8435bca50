"""Ape-X beside its one-process form, and a replay memory in the learner beside one in an actor.

    python benchmarks/apex/measure.py memory                 milliseconds of a draw and of an update, by batch
    python benchmarks/apex/measure.py loops --actors 2       steps/s and returns of three loops on one task
    python benchmarks/apex/measure.py loops --wait-ms 2      the same with an environment that takes longer to step

The loops have the same algorithm, network, settings, updates a step and seed:

    one process      train_off_policy with as many environments as Ape-X has, prioritised, 3-step
    apex, here       train_apex with all actors in this process
    apex, actors     train_apex with actors in processes of their own
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import click
import gymnasium
import numpy as np
from numpy.typing import NDArray

import parl
from parl_core import training
from parl_core.actors import open_actors
from parl_core.replay import Prioritized, ReplayMemory
from parl_core.schedules import linear
from parl_core.training.apex import ApexSettings

GROUPS = 8


class Memory:
    """A replay memory in an actor, which draws a batch and updates the priorities of the previous one."""

    def __init__(self, size: int, numbers: int) -> None:
        self._memory = filled(size, numbers)

    def draw(self, batch_size: int, index: NDArray[Any] | None, errors: NDArray[Any] | None) -> Any:
        if index is not None and errors is not None:
            self._memory.update_priorities(index, errors)
        return self._memory.sample(batch_size).copy()


def filled(size: int, numbers: int) -> ReplayMemory:
    rng = np.random.default_rng(0)
    memory = ReplayMemory(size, numbers, 0, n_step=3, gamma=0.99, sampling=Prioritized(), seed=0)
    obs = rng.normal(size=(size, numbers)).astype(np.float32)
    ended = rng.random(size) < 0.01
    memory.append_batch(obs, rng.integers(4, size=size), rng.normal(size=size), obs, ended)
    return memory


@dataclass
class Waiting:
    """Makes CartPole with slower steps, as simulators have; the delay is computation, not sleep."""

    wait_ms: float

    def __call__(self) -> Any:
        env = gymnasium.make("CartPole-v1")
        return Slow(env, self.wait_ms / 1000.0) if self.wait_ms else env


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        return self.env.step(action)


def make_agent(steps: int) -> Any:
    training.seed_everything(0)
    model = parl.networks.QNetwork(2, (128, 128), dueling=True)
    rate = linear(5e-4, 0.0, steps // 4)
    return parl.Agent(parl.algorithms.ApeX(model, lr=rate, sync_every=100, device="cpu"), seed=0)


@click.group()
def main() -> None:
    """Measure."""


@main.command()
@click.option("--size", default=200_000)
@click.option("--batches", default=300)
def memory(size: int, batches: int) -> None:
    """Time a draw and an update of priorities: in this process, in an actor, and prefetched from an actor."""
    print("| numbers of an observation | batch | here, ms | in an actor, ms | in an actor, one batch ahead, ms |")
    print("| --- | --- | --- | --- | --- |")
    with open_actors("remote", cpu_num=1) as actors:
        for numbers, batch_size in ((4, 64), (4, 512), (1000, 64), (1000, 512)):
            here = filled(size if numbers == 4 else size // 10, numbers)
            errors = np.random.default_rng(1).random(batch_size)
            there = actors.create(Memory, size if numbers == 4 else size // 10, numbers)

            def draw_here(memory: ReplayMemory = here, n: int = batch_size, errors: Any = errors) -> None:
                batch = memory.sample(n)
                memory.update_priorities(batch.index, errors)

            def draw_there(there: Any = there, n: int = batch_size, errors: Any = errors) -> None:
                there.call("draw", n, np.arange(n), errors)

            ahead = [there.submit("draw", batch_size, None, None)]

            def draw_ahead(there: Any = there, n: int = batch_size, errors: Any = errors, ahead: Any = ahead) -> None:
                batch = ahead.pop().result()
                ahead.append(there.submit("draw", n, batch.index, errors))

            times = [milliseconds(draw, batches) for draw in (draw_here, draw_there, draw_ahead)]
            print(f"| {numbers} | {batch_size} | " + " | ".join(f"{one:.3f}" for one in times) + " |", flush=True)
            ahead.pop().result()
            there.close()


def milliseconds(call: Callable[[], None], times: int) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(1000.0 * (time.perf_counter() - began))
    return median(found)


@main.command()
@click.option("--steps", default=40_000)
@click.option("--actors", "n_actors", default=2)
@click.option("--wait-ms", default=0.0, help="Additional milliseconds of computation per environment step.")
@click.option("--seeds", default=1)
def loops(steps: int, n_actors: int, wait_ms: float, seeds: int) -> None:
    """Run the three loops one after the other."""
    env = Waiting(wait_ms)
    settings = ApexSettings(
        total_steps=steps,
        n_actors=n_actors,
        groups=GROUPS,
        n_steps=25,
        batch_size=64,
        memory_size=100_000,
        deterministic=True,
    )
    print("| loop | seed | steps/s | mean return of 20 episodes at the end |")
    print("| --- | --- | --- | --- |")
    for seed in range(seeds):
        for name in ("one process", "apex, here", f"apex, {n_actors} actors"):
            agent, began = make_agent(steps), time.perf_counter()
            if name == "one process":
                one = settings.learning
                explored = replace(one, exploration={"epsilon": linear(1.0, 0.05, steps // 5)})
                with training.make_vector_env(env, GROUPS) as envs:
                    training.train_off_policy(agent, envs, explored, seed=seed)
            elif name == "apex, here":
                training.train_apex(agent, partial(make_agent, steps), env, settings, seed=seed)
            else:
                with open_actors("remote", cpu_num=n_actors) as actors:
                    began = time.perf_counter()
                    training.train_apex(agent, partial(make_agent, steps), env, settings, actors=actors, seed=seed)
            seconds = time.perf_counter() - began
            score = training.evaluate(agent, "CartPole-v1", 20, seed=1_000).mean
            print(f"| {name} | {seed} | {steps / seconds:.0f} | {score:.0f} |", flush=True)


if __name__ == "__main__":
    main()
