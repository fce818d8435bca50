"""Two workers compared with one: rounds of short episodes over threads, processes and remote actors."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from peers import our_settings
from timing import Table

from parl_evokit import ESAgent, NumpyModel
from parl_evokit.parallel import open_pool, sample


class Busy:
    """An episode that computes for some seconds, like an environment in Python."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, _: Any) -> float:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return 0.0


def nothing(_: Any, x: Any) -> Any:
    return x


def pools(table: Table, quick: bool) -> None:
    """Measure the speed-up of a round with two processes or actors over one thread of the caller."""
    cases = [(142, 0.15e-3, 512, ">= 1.7"), (10**6, 0.38e-3, 256, ">= 1.65"), (142, 5e-3, 64, ">= 1.9")]
    for n, seconds, population, target in cases[:1] if quick else cases:
        ratios = against_one(n, seconds, population, 2 if quick else 6)
        what = f"2 workers ({', '.join(ratios)}), episodes of {1e3 * seconds:.3g} ms, d={n}"
        table.row(what, "times one", tuple(ratios.values()), None, target)


def against_one(n: int, seconds: float, population: int, rounds: int) -> dict[str, float]:
    agent = ESAgent(our_settings(True), NumpyModel({"w": np.zeros(n, np.float32)}, nothing))
    clone, episode = agent.clone(), Busy(seconds)
    rewards = np.random.default_rng(0).normal(size=population)

    def alone() -> None:
        for _ in range(population):
            clone.add_noise()
            episode(clone)

    with ExitStack() as stack:
        calls: dict[str, Callable[[], object]] = {"alone": alone}
        for kind, options in (("processes", {}), ("remote", {"cpu_num": 2})):
            try:
                pool = stack.enter_context(open_pool(kind, 2, **options))
            except ImportError:
                continue
            calls[kind] = partial(sample, agent, episode, population, pool, share=1.0)
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(rounds):
            agent.update([clone.add_noise() for _ in range(population)], rewards)  # so that the parameters are sent
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - began)
    one = best.pop("alone")
    return {name: one / value for name, value in best.items()}
