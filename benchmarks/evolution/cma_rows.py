"""Time of a generation of CMA-ES, compared with cmaes, pycma and evosax.

The optimum moves in every generation, so that no search converges during the measurement: with equal rewards or
vanishing steps, an update is cheaper than in practice.
"""

import sys
import warnings
from collections.abc import Callable

import numpy as np
from timing import Table, in_turns

from parl_evokit import CMAES, SepCMAES

warnings.filterwarnings("ignore", category=UserWarning)  # warnings of the peers


def moving_sphere(d: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that returns squared distances of `[k, d]` from an optimum that moves at every call."""
    optima, calls = np.random.default_rng(0).normal(size=(64, d)).astype(np.float32), [0]

    def values(x: np.ndarray) -> np.ndarray:
        calls[0] += 1
        return ((x - optima[calls[0] % 64]) ** 2).sum(-1)

    return values


def settings(kind: str, population: int = 0, seed: int = 18) -> dict[str, object]:
    sampling = {
        "type": "CMA_SAMPLING",
        "gaussian_sampling": {"std": 0.5, "seed": seed},
        "cma_sampling": {"population": population},
    }
    return {"keys": "COUNTER", "solver": {"type": kind, "sampling": sampling}}


def our_generation(kind: type[CMAES] | type[SepCMAES], d: int, population: int) -> Callable[[], object]:
    name = "CMA_ES" if kind is CMAES else "SEP_CMA_ES"
    es, values = kind(np.ones(d), settings(name, population)), moving_sphere(d)

    def generation() -> None:
        infos = es.ask(population)
        es.tell(infos, -values(np.array([es.candidate(info) for info in infos])))

    return generation


def cmaes_generation(d: int, population: int, separable: bool) -> Callable[[], object]:
    import cmaes

    kind = cmaes.SepCMA if separable else cmaes.CMA
    es, values = kind(mean=np.ones(d), sigma=0.5, population_size=population, seed=1), moving_sphere(d)

    def generation() -> None:
        candidates = [es.ask() for _ in range(population)]
        found = values(np.array(candidates))
        es.tell([(x, float(value)) for x, value in zip(candidates, found, strict=True)])

    return generation


def pycma_generation(d: int, population: int, separable: bool) -> Callable[[], object]:
    import cma

    options = {"popsize": population, "verbose": -9, "seed": 1, "CMA_diagonal": separable}
    es, values = cma.CMAEvolutionStrategy(np.ones(d), 0.5, options), moving_sphere(d)

    def generation() -> None:
        candidates = es.ask()
        es.tell(candidates, values(np.array(candidates)).tolist())

    return generation


def evosax_sep_generation(d: int, population: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp
    from evosax.algorithms import Sep_CMA_ES

    es = Sep_CMA_ES(population_size=population, solution=jnp.zeros(d))
    parameters, key = es.default_params, jax.random.key(0)
    box = [es.init(key, jnp.ones(d), parameters), key]
    ask, tell = jax.jit(es.ask), jax.jit(es.tell)
    optima, calls = jax.random.normal(jax.random.key(1), (64, d)), [0]
    values = jax.jit(lambda x, call: ((x - optima[call % 64]) ** 2).sum(-1))

    def generation() -> None:
        state, key = box
        calls[0] += 1
        key, one, two = jax.random.split(key, 3)
        candidates, state = ask(one, state, parameters)
        state, _ = tell(two, candidates, values(candidates, calls[0]), state, parameters)
        jax.block_until_ready(state)
        box[:] = [state, key]

    return generation


def generations(table: Table, quick: bool) -> None:
    for d, target in ((20, "0.5"), (100, "0.3"), (400, "0.3")):
        calls = {
            "ours": our_generation(CMAES, d, 32),
            "cmaes": cmaes_generation(d, 32, False),
            "pycma": pycma_generation(d, 32, False),
        }
        found = {name: 1e3 * s for name, s in in_turns(calls, seconds=0.5 if quick else 1.5).items()}
        table.row(f"CMA_ES generation, d={d}, population 32", "ms", found.pop("ours"), found, f"<= {target}")
    calls = {"ours": our_generation(SepCMAES, 10**4, 64), "cmaes": cmaes_generation(10**4, 64, True)}
    try:
        calls["evosax"] = evosax_sep_generation(10**4, 64)
    except ImportError:
        print("(evosax is not installed)", file=sys.stderr)
    found = {name: 1e3 * s for name, s in in_turns(calls, seconds=0.5 if quick else 2.0).items()}
    table.row("SEP_CMA_ES generation, d=10^4, population 64", "ms", found.pop("ours"), found, "<= 0.75")
