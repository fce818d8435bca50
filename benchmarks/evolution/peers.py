"""One generation of OpenAI-ES by each peer, as a function that runs it.

Rewards are given beforehand, so nothing is evaluated; every candidate is materialised, as an evaluation would need it:

    in the cache   for an evaluation of one after the other: memory that fits the cache is used again and again
    in one array   for an evaluation of a batch: rows of an array of up to `MOST` numbers
"""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["evosax_generation", "evotorch_generation", "noise_table_generation", "our_generation", "our_settings"]

MOST = 10**6  # numbers of candidates held at a time in one array, by every peer that can work in parts
IN_CACHE = 2**17  # the same where each is evaluated before the next ones are made: half a second-level cache
TABLE = 25_000_000


def our_settings(cached: bool) -> dict[str, object]:
    return {
        "solver": {
            "optimizer": {"type": "ADAM", "base_lr": 0.01},
            "sampling": {"gaussian_sampling": {"std": 0.02, "cached": cached, "seed": 1024}},
        }
    }


def rows_of(n: int, population: int, most: int = MOST) -> int:
    """Return how many candidates `most` numbers are, in whole pairs."""
    return max(2, min(population, most // n // 2 * 2))


def our_generation(n: int, population: int, cached: bool, batch: bool = True) -> Callable[[], object]:
    """Ask, candidates, tell; with `batch` candidates go into one array, otherwise a few at a time."""
    from parl_evokit import ES

    es = ES(np.zeros(n, np.float32), our_settings(cached))
    rewards = np.random.default_rng(0).normal(size=population)
    out = np.empty((rows_of(n, population, MOST if batch else IN_CACHE), n), np.float32)

    def generation() -> None:
        infos = es.ask(population)
        for first in range(0, population, len(out)):
            part = infos[first : first + len(out)]
            es.candidates(part, out[: len(part)])
        es.tell(infos, rewards)

    return generation


def noise_table_generation(n: int, population: int, table: int = TABLE, batch: bool = False) -> Callable[[], object]:
    """Return a generation as OpenAI's and PARL's code makes it: a table of float32 normals, an index a pair.

    With `batch` candidates are written into the rows of an array, as a batch evaluation would want them; there they
    are new arrays, one after the other.
    """
    noise = np.random.RandomState(123).randn(max(table, 4 * n)).astype(np.float32)
    random, theta = np.random.RandomState(0), [np.zeros(n, np.float32)]
    m, v, step = [np.zeros(n, np.float32)], [np.zeros(n, np.float32)], [0]
    rewards = np.random.default_rng(0).normal(size=(population // 2, 2))
    out = np.empty((rows_of(n, population), n) if batch else (0, n), np.float32)

    def generation() -> None:
        places = []
        for pair in range(population // 2):
            place = random.randint(0, len(noise) - n + 1)
            delta = 0.02 * noise[place : place + n]
            if batch:
                row = 2 * pair % len(out)
                np.add(theta[0], delta, out=out[row])
                np.subtract(theta[0], delta, out=out[row + 1])
            else:
                theta[0] + delta  # the two candidates, as an evaluation would get them
                theta[0] - delta
            places.append(place)
        flat = rewards.ravel()
        ranks = np.empty(len(flat), dtype=int)
        ranks[flat.argsort()] = np.arange(len(flat))
        shaped = ranks.reshape(rewards.shape).astype(np.float32) / (len(flat) - 1) - 0.5
        weights, gradient = shaped[:, 0] - shaped[:, 1], 0.0
        for first in range(0, len(weights), 500):
            rows = [noise[place : place + n] for place in places[first : first + 500]]
            gradient += np.dot(np.asarray(weights[first : first + 500]), np.asarray(rows))
        gradient = -gradient / population
        step[0] += 1
        rate = 0.01 * np.sqrt(1 - 0.999 ** step[0]) / (1 - 0.9 ** step[0])
        m[0] = 0.9 * m[0] + 0.1 * gradient
        v[0] = 0.999 * v[0] + 0.001 * (gradient * gradient)
        theta[0] = theta[0] - rate * m[0] / (np.sqrt(v[0]) + 1e-8)

    return generation


def evosax_generation(n: int, population: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp
    from evosax.algorithms import Open_ES

    es = Open_ES(population_size=population, solution=jnp.zeros(n))
    parameters = es.default_params
    key = jax.random.key(0)
    box = [es.init(key, jnp.zeros(n), parameters), key]
    fitness = jnp.asarray(np.random.default_rng(0).normal(size=population), jnp.float32)
    ask, tell = jax.jit(es.ask), jax.jit(es.tell)

    def generation() -> None:
        state, key = box
        key, one, two = jax.random.split(key, 3)
        candidates, state = ask(one, state, parameters)
        state, _ = tell(two, candidates, fitness, state, parameters)
        jax.block_until_ready(state)
        box[:] = [state, key]

    return generation


def evotorch_generation(n: int, population: int) -> Callable[[], object]:
    import torch
    from evotorch import Problem
    from evotorch.algorithms import PGPE
    from evotorch.tools import set_default_logger_config

    set_default_logger_config(logger_level=40, override=True)
    fitness = torch.as_tensor(np.random.default_rng(0).normal(size=population), dtype=torch.float32)
    from evotorch.decorators import vectorized

    @vectorized
    def evaluate(_: Any) -> Any:
        return fitness

    problem = Problem("max", evaluate, solution_length=n, initial_bounds=(-0.01, 0.01), dtype=torch.float32)
    searcher = PGPE(
        problem,
        popsize=population,
        center_learning_rate=0.01,
        stdev_learning_rate=0.0,
        stdev_init=0.02,
        optimizer="adam",
        ranking_method="centered",
        distributed=False,
    )
    return searcher.step
