"""Functions with a known optimum at equal budgets, compared with pycma, cmaes and Nevergrad.

    python benchmarks/evolution/black_box.py                         six tasks, d = 10, 3,000 evaluations, 9 seeds
    python benchmarks/evolution/black_box.py --seeds 5 --budget 1000 --d 20 --only Rosenbrock Rastrigin
    python benchmarks/evolution/black_box.py --only Pendulum --budget 1000

All searches begin at the same point with the same step size. The table compares the true values of the points that they
recommend at the end of the budget: the mean of ours and of cmaes, pycma's `xfavorite`, and Nevergrad's recommendation.
The noisy sphere has normal noise with standard deviation 1 on each evaluation. Pendulum-v1 has a policy with tanh
layers 3-8-1, whose 41 parameters do not depend on `--d`; an evaluation is minus the return of one episode with a random
start, and the true value is the mean over the same 50 starts for all searches.
"""

import argparse
import functools
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.agent import solver_class
from parl_evokit.config import SolverKind

warnings.filterwarnings("ignore", category=UserWarning)  # warnings of the peers
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """A function to minimise, and the start of its search.

    Attributes:
        name: Its name in the table.
        value: Function that returns the true value.
        start: Initial value of all parameters.
        std: Initial step size.
        noise: Standard deviation of the noise of an evaluation, or a function that returns an evaluation from a point
            and a generator.
        d: Number of parameters.
    """

    name: str
    value: Callable[[Vector], float]
    start: float
    std: float
    d: int
    noise: float | Callable[[Vector, np.random.Generator], float] = 0.0

    def evaluated(self, x: Vector, dice: np.random.Generator) -> float:
        """Return one evaluation with its noise."""
        return self.noise(x, dice) if callable(self.noise) else self.value(x) + self.noise * dice.normal()


def rotation(d: int) -> Vector:
    rotated: Vector = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    return rotated


class Pendulum:
    """Episodes of Pendulum-v1 with a policy of one hidden layer."""

    d = 41

    @functools.cached_property
    def _env(self) -> Any:
        import gymnasium

        return gymnasium.make("Pendulum-v1", disable_env_checker=True)

    def cost(self, x: Vector, seed: int) -> float:
        """Return minus the return of the episode with this seed."""
        w, b, v, c = x[:24].reshape(8, 3), x[24:32], x[32:40], x[40]
        obs, _ = self._env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            action = 2.0 * np.tanh(v @ np.tanh(w @ obs + b) + c)
            obs, reward, _, done, _ = self._env.step(np.array([action], np.float32))
            total -= float(reward)
        return total

    def once(self, x: Vector, dice: np.random.Generator) -> float:
        """Return minus the return of an episode with a random start."""
        return self.cost(x, int(dice.integers(2**31)))

    def value(self, x: Vector) -> float:
        """Return the mean over the fifty starts."""
        return statistics.fmean(self.cost(x, seed) for seed in range(50))


def tasks(d: int) -> list[Task]:
    scales, turned, pendulum = 10.0 ** np.linspace(0, 6, d), rotation(d), Pendulum()
    return [
        Task("sphere", lambda x: float(x @ x), 3.0, 1.0, d),
        Task("rotated ellipsoid, condition 10^6", lambda x: float(scales @ (turned @ x) ** 2), 3.0, 1.0, d),
        Task("Rosenbrock", lambda x: float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)), 0.0, 0.5, d),
        Task("Rastrigin", lambda x: float(10 * d + np.sum(x**2 - 10 * np.cos(2 * np.pi * x))), 3.0, 2.0, d),
        Task("noisy sphere", lambda x: float(x @ x), 3.0, 1.0, d, noise=1.0),
        Task("Pendulum", pendulum.value, 0.0, 0.5, pendulum.d, noise=pendulum.once),
    ]


def ours(kind: str) -> Callable[[Task, int, int], float]:
    def search(task: Task, budget: int, seed: int) -> float:
        gaussian = {"std": task.std, "seed": seed}
        solver = {"type": kind, "sampling": {"gaussian_sampling": gaussian}}
        es = solver_class(SolverKind[kind])(np.full(task.d, task.start), {"keys": "COUNTER", "solver": solver})
        dice, population = np.random.default_rng(seed), getattr(es, "population", 20)
        for _ in range(budget // population):
            infos = es.ask(population)
            values = [task.evaluated(x, dice) for x in es.candidates(infos).astype(np.float64)]
            es.tell(infos, [-value for value in values])
        return task.value(es.mean.astype(np.float64))

    return search


def pycma(task: Task, budget: int, seed: int) -> float:
    import cma

    options = {"maxfevals": budget, "verbose": -9, "seed": seed + 1, "tolfun": 0, "tolx": 0, "tolfunhist": 0}
    es, dice = cma.CMAEvolutionStrategy(np.full(task.d, task.start), task.std, options), np.random.default_rng(seed)
    while es.countevals + es.popsize <= budget:
        candidates = es.ask()
        es.tell(candidates, [task.evaluated(x, dice) for x in candidates])
    return task.value(es.result.xfavorite)


def cmaes(task: Task, budget: int, seed: int) -> float:
    import cmaes as peer

    es, dice = peer.CMA(mean=np.full(task.d, task.start), sigma=task.std, seed=seed), np.random.default_rng(seed)
    for _ in range(budget // es.population_size):
        candidates = [es.ask() for _ in range(es.population_size)]
        es.tell([(x, task.evaluated(x, dice)) for x in candidates])
    return task.value(es.mean)


def nevergrad(name: str) -> Callable[[Task, int, int], float]:
    def search(task: Task, budget: int, seed: int) -> float:
        import nevergrad as ng

        space = ng.p.Array(init=np.full(task.d, task.start)).set_mutation(sigma=task.std)
        space.random_state.seed(seed)
        search, dice = ng.optimizers.registry[name](space, budget=budget), np.random.default_rng(seed)
        found = search.minimize(lambda x: task.evaluated(x, dice))
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
    parser.add_argument("--only", nargs="+", metavar="TASK", help="tasks whose names start with one of these")
    given = parser.parse_args()
    print(f"d = {given.d}, {given.budget} evaluations, median of {given.seeds} seeds\n")
    print(f"| | {' | '.join(SEARCHES)} |\n|{' --- |' * (1 + len(SEARCHES))}", flush=True)
    for task in tasks(given.d):
        if given.only and not task.name.startswith(tuple(given.only)):
            continue
        cells = []
        for name, search in SEARCHES.items():
            try:
                found = [search(task, given.budget, seed) for seed in range(given.seeds)]
            except ImportError:
                print(f"({name} is not installed)", file=sys.stderr)
                cells.append("")
                continue
            cells.append(f"{statistics.median(found):.2g}")
        print(f"| {task.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
