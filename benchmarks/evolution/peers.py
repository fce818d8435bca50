"""One generation of OpenAI-ES by each peer, as a function that runs it.

Rewards are given, so nothing is evaluated; every candidate is materialised as for an evaluation:

    one at a time  for evaluations one by one: memory that fits the cache is reused
    in one array   for batch evaluations: rows of an array of up to `MOST` numbers
"""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["evosax_generation", "evotorch_generation", "noise_table_generation", "our_generation", "our_settings"]

MOST = 10**6  # maximum size of the array of candidates, for every peer that can work in parts
IN_CACHE = 2**17  # numbers that fit half of the second-level cache
TABLE = 25_000_000


def our_settings(cached: bool) -> dict[str, object]:
    return {
        "solver": {
            "optimizer": {"type": "ADAM", "base_lr": 0.01},
            "sampling": {"gaussian_sampling": {"std": 0.02, "cached": cached, "seed": 1024}},
        }
    }


def rows_of(n: int, population: int) -> int:
    """Return the number of candidates of `n` parameters that fit `MOST` numbers, in whole pairs."""
    return max(2, min(population, MOST // n // 2 * 2))


def our_generation(n: int, population: int, cached: bool, batch: bool = True) -> Callable[[], object]:
    """Return a generation of ask, candidates and tell; with `batch`, candidates are made in one array."""
    from parl_evokit import ES

    es = ES(np.zeros(n, np.float32), our_settings(cached))
    rewards = np.random.default_rng(0).normal(size=population)
    out = np.empty((rows_of(n, population) if batch else 0, n), np.float32)

    def generation() -> None:
        infos = es.ask(population)
        if batch:
            for first in range(0, population, len(out)):
                part = infos[first : first + len(out)]
                es.candidates(part, out[: len(part)])
        else:
            for info in infos:
                es.candidate(info)
        es.tell(infos, rewards)

    return generation


def noise_table_generation(n: int, population: int, table: int = TABLE, batch: bool = False) -> Callable[[], object]:
    """Return a generation in the scheme of OpenAI's and PARL's code: a table of float32 normals, an index a pair.

    It is written for speed: all indices in one draw, arrays allocated once, float32 throughout. With `batch`,
    candidates are the rows of an array, as for a batch evaluation; otherwise the pairs are made one by one. The
    gradient multiplies as many rows at once as fit the second-level cache, at least eight.
    """
    noise = np.random.default_rng(123).standard_normal(max(table, 4 * n), np.float32)
    random, theta = np.random.default_rng(0), np.zeros(n, np.float32)
    m, v, scratch, gradient = (np.zeros(n, np.float32) for _ in range(4))
    step = [0]
    rewards = np.random.default_rng(0).normal(size=(population // 2, 2))
    out = np.empty((rows_of(n, population) if batch else 2, n), np.float32)
    rows = np.empty((min(population // 2, 500, max(8, IN_CACHE // n)), n), np.float32)
    std = np.float32(0.02)

    def generation() -> None:
        places = random.integers(0, len(noise) - n + 1, population // 2).tolist()
        row = 0
        for place in places:
            np.multiply(noise[place : place + n], std, out=scratch)
            np.add(theta, scratch, out=out[row])
            np.subtract(theta, scratch, out=out[row + 1])
            row = (row + 2) % len(out)
        flat = rewards.ravel()
        ranks = np.empty(len(flat), np.float32)
        ranks[flat.argsort()] = np.arange(len(flat), dtype=np.float32)
        shaped = (ranks / np.float32(len(flat) - 1)).reshape(rewards.shape)
        weights = shaped[:, 0] - shaped[:, 1]
        gradient.fill(0.0)
        for first in range(0, len(weights), len(rows)):
            here = places[first : first + len(rows)]
            for copy, place in zip(rows, here, strict=False):
                copy[...] = noise[place : place + n]
            np.dot(weights[first : first + len(rows)], rows[: len(here)], out=scratch)
            np.add(gradient, scratch, out=gradient)
        np.multiply(gradient, np.float32(-1.0 / population), out=gradient)
        step[0] += 1
        rate = 0.01 * np.sqrt(1 - 0.999 ** step[0]) / (1 - 0.9 ** step[0])
        for moment, decay in ((m, 0.9), (v, 0.999)):
            np.multiply(gradient, np.float32(1.0 - decay), out=scratch)
            if moment is v:
                np.multiply(scratch, gradient, out=scratch)
            np.multiply(moment, np.float32(decay), out=moment)
            np.add(moment, scratch, out=moment)
        np.sqrt(v, out=scratch)
        np.add(scratch, np.float32(1e-8), out=scratch)
        np.divide(m, scratch, out=scratch)
        np.multiply(scratch, np.float32(rate), out=scratch)
        np.subtract(theta, scratch, out=theta)

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
    """Return a generation of PGPE with a fixed standard deviation, by the functional interface, the fastest one."""
    import torch
    from evotorch.algorithms.functional import pgpe, pgpe_ask, pgpe_tell

    fitness = torch.as_tensor(np.random.default_rng(0).normal(size=population), dtype=torch.float32)
    box: list[Any] = [
        pgpe(
            center_init=torch.zeros(n),
            center_learning_rate=0.01,
            stdev_learning_rate=0.0,
            objective_sense="max",
            stdev_init=0.02,
            optimizer="adam",
            ranking_method="centered",
        )
    ]

    def generation() -> None:
        candidates = pgpe_ask(box[0], popsize=population)
        box[0] = pgpe_tell(box[0], candidates, fitness)

    return generation
