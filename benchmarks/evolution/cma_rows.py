"""CMA-ES beside cmaes, pycma and evosax: the time of a generation, and evaluations to a target."""

import sys
import warnings
from collections.abc import Callable
from statistics import median

import numpy as np
from timing import Table, in_turns

from parl_evokit import CMAES, SepCMAES

warnings.filterwarnings("ignore", category=UserWarning)  # of the peers

Objective = Callable[[np.ndarray], np.ndarray]


def sphere(x: np.ndarray) -> np.ndarray:
    return (x**2).sum(-1)


def rosenbrock(x: np.ndarray) -> np.ndarray:
    return (100.0 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1.0 - x[..., :-1]) ** 2).sum(-1)


def settings(kind: str, population: int = 0, seed: int = 18) -> dict[str, object]:
    sampling = {
        "type": "CMA_SAMPLING",
        "gaussian_sampling": {"std": 0.5, "seed": seed},
        "cma_sampling": {"population": population},
    }
    return {"keys": "COUNTER", "solver": {"type": kind, "sampling": sampling}}


def our_generation(kind: type[CMAES] | type[SepCMAES], d: int, population: int) -> Callable[[], object]:
    name = "CMA_ES" if kind is CMAES else "SEP_CMA_ES"
    es, out = kind(np.ones(d), settings(name, population)), np.empty((population, d), np.float32)

    def generation() -> None:
        infos = es.ask(population)
        es.tell(infos, -sphere(es.candidates(infos, out)))

    return generation


def cmaes_generation(d: int, population: int, separable: bool) -> Callable[[], object]:
    import cmaes

    kind = cmaes.SepCMA if separable else cmaes.CMA
    es = kind(mean=np.ones(d), sigma=0.5, population_size=population, seed=1)

    def generation() -> None:
        candidates = [es.ask() for _ in range(population)]
        values = sphere(np.array(candidates))
        es.tell([(x, float(value)) for x, value in zip(candidates, values, strict=True)])

    return generation


def pycma_generation(d: int, population: int, separable: bool) -> Callable[[], object]:
    import cma

    options = {"popsize": population, "verbose": -9, "seed": 1, "CMA_diagonal": separable}
    es = cma.CMAEvolutionStrategy(np.ones(d), 0.5, options)

    def generation() -> None:
        candidates = es.ask()
        es.tell(candidates, sphere(np.array(candidates)).tolist())

    return generation


def evosax_sep_generation(d: int, population: int) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp
    from evosax.algorithms import Sep_CMA_ES

    es = Sep_CMA_ES(population_size=population, solution=jnp.zeros(d))
    parameters, key = es.default_params, jax.random.key(0)
    box = [es.init(key, jnp.ones(d), parameters), key]
    ask, tell = jax.jit(es.ask), jax.jit(es.tell)
    values = jax.jit(lambda x: (x**2).sum(-1))

    def generation() -> None:
        state, key = box
        key, one, two = jax.random.split(key, 3)
        candidates, state = ask(one, state, parameters)
        state, _ = tell(two, candidates, values(candidates), state, parameters)
        jax.block_until_ready(state)
        box[:] = [state, key]

    return generation


def generations(table: Table, quick: bool) -> None:
    for d, target in ((20, "0.3"), (100, "0.6"), (400, "1.0")):
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


def our_evaluations(kind: type[CMAES] | type[SepCMAES], objective: Objective, d: int, seed: int, most: int) -> float:
    """Evaluations until one is below 1e-8; infinite when they do not suffice."""
    name = "CMA_ES" if kind is CMAES else "SEP_CMA_ES"
    start = np.random.default_rng(seed).uniform(-1.0, 1.0, d) + (1.0 if objective is sphere else 0.0)
    es, used = kind(start, settings(name, seed=seed)), 0
    n = 4 + int(3 * np.log(d))
    while used < most:
        infos = es.ask(n)
        values = objective(es.candidates(infos).astype(np.float64))
        used += n
        if values.min() < 1e-8:
            return used
        es.tell(infos, -values)
    return float("inf")


def pycma_evaluations(objective: Objective, d: int, seed: int, most: int, separable: bool) -> float:
    import cma

    start = np.random.default_rng(seed).uniform(-1.0, 1.0, d) + (1.0 if objective is sphere else 0.0)
    options = {"verbose": -9, "seed": seed + 1, "CMA_diagonal": separable, "ftarget": 1e-8, "maxfevals": most}
    options |= {"tolfun": 0, "tolx": 0, "tolfunhist": 0, "tolstagnation": 10**9, "tolflatfitness": 10**9}
    es, used = cma.CMAEvolutionStrategy(start, 0.5, options), 0
    while used < most:
        candidates = es.ask()
        values = objective(np.array(candidates))
        used += len(candidates)
        if values.min() < 1e-8:
            return used
        es.tell(candidates, values.tolist())
    return float("inf")


def evaluations(table: Table, quick: bool) -> None:
    seeds = range(5 if quick else 31)
    cases = [
        ("CMA_ES", CMAES, sphere, "sphere", 20, 10**5, "<= 1.05"),
        ("CMA_ES", CMAES, sphere, "sphere", 100, 10**5, "<= 1.05"),
        ("CMA_ES", CMAES, rosenbrock, "Rosenbrock", 20, 10**5, "<= 1.05"),
        ("CMA_ES", CMAES, rosenbrock, "Rosenbrock", 40, 3 * 10**5, "<= 1.05"),
        ("SEP_CMA_ES", SepCMAES, sphere, "sphere", 20, 10**5, "<= 1.05"),
        ("SEP_CMA_ES", SepCMAES, sphere, "sphere", 100, 10**5, "<= 1.05"),
        ("SEP_CMA_ES", SepCMAES, rosenbrock, "Rosenbrock", 20, 10**6, "<= 0.9"),
    ]
    for name, kind, objective, title, d, most, target in cases:
        if quick and (most > 10**5 or d > 40):
            continue
        ours = [our_evaluations(kind, objective, d, seed, most) for seed in seeds]
        theirs = [pycma_evaluations(objective, d, seed, most, kind is SepCMAES) for seed in seeds]
        solved = [sum(np.isfinite(runs)) for runs in (ours, theirs)]
        what = f"{name}, evaluations to 1e-8, {title} {d}, median of {len(seeds)} (solved {solved[0]}, {solved[1]})"
        table.row(what, "", median(ours), {"pycma": median(theirs)}, target)
