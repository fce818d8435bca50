"""Searches in a box, by the width of their first samples, compared with pycma and cmaes.

    python benchmarks/evolution/boxes.py                        all rows, 8 seeds: some minutes
    python benchmarks/evolution/boxes.py --seeds 3 --only "sphere in [0, 1]^30" --searches CMA_ES pycma

All searches use their defaults, begin at the same point with the same standard deviation, and may use `--evaluations`
times d + 10 evaluations; they may stop earlier. A cell shows the number of seeds whose best candidate is nearer to the
optimum than `NEAR` (squared distance), and the largest squared distance of all seeds.
"""

import argparse
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
NEAR = 1e-9
CONDITION = 1e4


@dataclass(frozen=True)
class Task:
    """A quadratic function to minimise in a box, and the start of its search.

    Attributes:
        name: Its name in the table.
        lower: Lower bound of all parameters; may be infinite.
        upper: Upper bound of all parameters; may be infinite.
        start: Initial value of all parameters.
        optimum: The best point in the box, `[d]`.
        slope: Gradient of the function at the optimum, `[d]`: 0 except where a bound of the box is active.
        matrix: Matrix of the quadratic form; None for the sphere.
    """

    name: str
    lower: float
    upper: float
    start: float
    optimum: Vector
    slope: Vector
    matrix: Vector | None = None

    @property
    def d(self) -> int:
        """The number of parameters."""
        return len(self.optimum)

    def value(self, x: Vector) -> float:
        """Return the value at a point of the box; it is 0 at the optimum."""
        step = x - self.optimum
        y = step if self.matrix is None else self.matrix @ step
        return float(y @ y + self.slope @ step)

    def distance(self, x: Vector) -> float:
        """Return the squared distance to the optimum."""
        return float(np.square(x - self.optimum).sum())


def tasks() -> list[tuple[Task, tuple[float, ...]]]:
    def inside(d: int, lower: float, upper: float, start: float, low: float, high: float) -> Task:
        name = f"sphere in [{lower:g}, {upper:g}]^{d}".replace("inf]", "inf)")
        return Task(name, lower, upper, start, np.linspace(low, high, d), np.zeros(d))

    at_sides, slope = np.array([0.0, 1.0, 0.5] * 10), np.array([1.0, -1.0, 0.0] * 10)
    at_lower, upwards = np.array([0.0, 0.0, 0.5] * 10), np.array([1.0, 1.0, 0.0] * 10)
    dice = np.random.default_rng(0)
    turned = np.linalg.qr(dice.normal(size=(10, 10)))[0]
    stretched = np.sqrt(CONDITION ** np.linspace(0, 1, 10))[:, np.newaxis] * turned
    return [
        (inside(5, 0.0, 1.0, 0.5, 0.1, 0.9), (0.3, 1.0)),
        (inside(30, 0.0, 1.0, 0.5, 0.1, 0.9), (0.1, 0.3, 0.5, 1.0, 5.0)),
        (inside(20, -5.0, 5.0, 0.0, -4.0, 4.0), (2.0, 3.0, 4.0)),
        (inside(30, 0.0, np.inf, 0.5, 0.1, 0.9), (1.0, 3.0)),
        (Task("sphere and slopes to sides of [0, 1]^30", 0.0, 1.0, 0.5, at_sides, slope), (0.1, 0.3, 1.0)),
        (Task("sphere and slopes to sides of [0, inf)^30", 0.0, np.inf, 0.5, at_lower, upwards), (0.3, 3.0)),
        (Task("sphere about sides of [0, 1]^30", 0.0, 1.0, 0.5, at_sides, np.zeros(30)), (0.3,)),
        (
            Task("rotated ellipsoid in [0, 1]^10", 0.0, 1.0, 0.5, np.linspace(0.1, 0.9, 10), np.zeros(10), stretched),
            (0.1, 0.3, 1.0),
        ),
    ]


def ours(kind: str) -> Callable[[Task, float, int, int], float]:
    def search(task: Task, std: float, budget: int, seed: int) -> float:
        box = {"lower": [task.lower]} | ({"upper": [task.upper]} if np.isfinite(task.upper) else {})
        sampling = {"gaussian_sampling": {"std": std, "seed": seed}, "cma_sampling": box}
        config = {"keys": "COUNTER", "solver": {"type": kind, "sampling": sampling}}
        es: Any = solver_class(SolverKind[kind])(np.full(task.d, task.start), config)
        nearest = np.inf
        for _ in range(budget // es.population):
            infos = es.ask(es.population)
            samples = es.candidates(infos).astype(np.float64)
            values = [task.value(x) for x in samples]
            nearest = min(nearest, min(task.distance(x) for x in samples))
            es.tell(infos, [-value for value in values])
            if es.should_stop():
                break
        return nearest

    return search


def pycma(task: Task, std: float, budget: int, seed: int) -> float:
    import cma

    upper = task.upper if np.isfinite(task.upper) else None
    options = {"maxfevals": budget, "verbose": -9, "seed": seed + 1, "bounds": [task.lower, upper]}
    es, nearest = cma.CMAEvolutionStrategy(np.full(task.d, task.start), std, options), np.inf
    while not es.stop():
        candidates = es.ask()
        nearest = min(nearest, min(task.distance(x) for x in candidates))
        es.tell(candidates, [task.value(x) for x in candidates])
    return nearest


def cmaes(task: Task, std: float, budget: int, seed: int) -> float:
    import cmaes as peer

    bounds = np.array([[task.lower, min(task.upper, 1e6)]] * task.d)
    es, nearest = peer.CMA(mean=np.full(task.d, task.start), sigma=std, bounds=bounds, seed=seed), np.inf
    for _ in range(budget // es.population_size):
        candidates = [es.ask() for _ in range(es.population_size)]
        nearest = min(nearest, min(task.distance(x) for x in candidates))
        es.tell([(x, task.value(x)) for x in candidates])
        if es.should_stop():
            break
    return nearest


SEARCHES = {kind: ours(kind) for kind in ("CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES")} | {
    "pycma": pycma,
    "cmaes": cmaes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=210, help="times d + 10")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--only", nargs="+", metavar="TASK", help="tasks whose names start with one of these")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    given = parser.parse_args()
    print(f"{given.seeds} seeds: number of them nearer than {NEAR:g}, and the largest squared distance\n")
    print(f"| task | std | {' | '.join(given.searches)} |\n|{' --- |' * (2 + len(given.searches))}", flush=True)
    for task, stds in tasks():
        if given.only and not task.name.startswith(tuple(given.only)):
            continue
        for std in stds:
            cells = []
            for name in given.searches:
                budget = given.evaluations * (task.d + 10)
                try:
                    found = [SEARCHES[name](task, std, budget, seed) for seed in range(given.seeds)]
                except ImportError:
                    print(f"({name} is not installed)", file=sys.stderr)
                    cells.append("")
                    continue
                cells.append(f"{sum(distance < NEAR for distance in found)}, {max(found):.0e}")
            print(f"| {task.name} | {std:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
