"""Functions of known optimum at equal budgets, beside pycma, cmaes and Nevergrad.

    python benchmarks/evolution/black_box.py                         five functions, d = 10, 3,000 evaluations, 9 seeds
    python benchmarks/evolution/black_box.py --seeds 5 --budget 1000 --d 20

Everybody begins at the same point with the same step size. What is compared is the true value of what the search
recommends when the budget is spent: the mean of ours and of cmaes, pycma's `xfavorite`, Nevergrad's recommendation.
The noisy sphere has normal noise of deviation 1 on each evaluation.
"""

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parl_evokit.agent import solver_class
from parl_evokit.config import SolverKind

warnings.filterwarnings("ignore", category=UserWarning)  # of the peers
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """A function to be minimised, and how its search begins."""

    name: str
    value: Callable[[Vector], float]
    start: float
    std: float
    noise: float = 0.0


def rotation(d: int) -> Vector:
    rotated: Vector = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    return rotated


def tasks(d: int) -> list[Task]:
    scales, turned = 10.0 ** np.linspace(0, 6, d), rotation(d)
    return [
        Task("sphere", lambda x: float(x @ x), 3.0, 1.0),
        Task("rotated ellipsoid, condition 10^6", lambda x: float(scales @ (turned @ x) ** 2), 3.0, 1.0),
        Task("Rosenbrock", lambda x: float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)), 0.0, 0.5),
        Task("Rastrigin", lambda x: float(10 * d + np.sum(x**2 - 10 * np.cos(2 * np.pi * x))), 3.0, 2.0),
        Task("noisy sphere", lambda x: float(x @ x), 3.0, 1.0, noise=1.0),
    ]


def ours(kind: str) -> Callable[[Task, int, int, int], float]:
    def search(task: Task, d: int, budget: int, seed: int) -> float:
        gaussian = {"std": task.std, "seed": seed}
        solver = {"type": kind, "sampling": {"gaussian_sampling": gaussian}}
        es = solver_class(SolverKind[kind])(np.full(d, task.start), {"keys": "COUNTER", "solver": solver})
        dice, population = np.random.default_rng(seed), getattr(es, "population", 20)
        for _ in range(budget // population):
            infos = es.ask(population)
            values = [task.value(x) + task.noise * dice.normal() for x in es.candidates(infos).astype(np.float64)]
            es.tell(infos, [-value for value in values])
        return task.value(es.mean.astype(np.float64))

    return search


def pycma(task: Task, d: int, budget: int, seed: int) -> float:
    import cma

    options = {"maxfevals": budget, "verbose": -9, "seed": seed + 1, "tolfun": 0, "tolx": 0, "tolfunhist": 0}
    es, dice = cma.CMAEvolutionStrategy(np.full(d, task.start), task.std, options), np.random.default_rng(seed)
    while es.countevals + es.popsize <= budget:
        candidates = es.ask()
        es.tell(candidates, [task.value(x) + task.noise * dice.normal() for x in candidates])
    return task.value(es.result.xfavorite)


def cmaes(task: Task, d: int, budget: int, seed: int) -> float:
    import cmaes as peer

    es, dice = peer.CMA(mean=np.full(d, task.start), sigma=task.std, seed=seed), np.random.default_rng(seed)
    for _ in range(budget // es.population_size):
        candidates = [es.ask() for _ in range(es.population_size)]
        es.tell([(x, task.value(x) + task.noise * dice.normal()) for x in candidates])
    return task.value(es.mean)


def nevergrad(name: str) -> Callable[[Task, int, int, int], float]:
    def search(task: Task, d: int, budget: int, seed: int) -> float:
        import nevergrad as ng

        space = ng.p.Array(init=np.full(d, task.start)).set_mutation(sigma=task.std)
        space.random_state.seed(seed)
        search, dice = ng.optimizers.registry[name](space, budget=budget), np.random.default_rng(seed)
        found = search.minimize(lambda x: task.value(x) + task.noise * dice.normal())
        return task.value(found.value)

    return search


SEARCHES = {
    "CMA_ES": ours("CMA_ES"),
    "CR_FM_NES": ours("CR_FM_NES"),
    "SNES": ours("SNES"),
    "pycma": pycma,
    "cmaes": cmaes,
    "Nevergrad CMA": nevergrad("CMA"),
    "Nevergrad TBPSA": nevergrad("TBPSA"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--d", type=int, default=10)
    parser.add_argument("--budget", type=int, default=3000, help="evaluations")
    parser.add_argument("--seeds", type=int, default=9)
    given = parser.parse_args()
    print(f"d = {given.d}, {given.budget} evaluations, median of {given.seeds} seeds\n")
    print(f"| | {' | '.join(SEARCHES)} |\n|{' --- |' * (1 + len(SEARCHES))}", flush=True)
    for task in tasks(given.d):
        cells = []
        for name, search in SEARCHES.items():
            try:
                found = [search(task, given.d, given.budget, seed) for seed in range(given.seeds)]
            except ImportError:
                print(f"({name} is not installed)", file=sys.stderr)
                cells.append("")
                continue
            cells.append(f"{statistics.median(found):.2g}")
        print(f"| {task.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
