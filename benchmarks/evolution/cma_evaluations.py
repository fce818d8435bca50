"""Number of evaluations until CMA-ES reaches 1e-8, over seeds, compared with pycma.

    python benchmarks/evolution/cma_evaluations.py --jobs 2 --output cma_evaluations.jsonl        31 seeds of each case
    python benchmarks/evolution/cma_evaluations.py --only "CMA_ES, sphere 10" --seeds 5

Both begin at the same points with the same step size and count whole generations. pycma's stopping rules are disabled
without restarts; with restarts, each library restarts by its own rules, and both restart at another point. Every
finished run is a line of the output, so an interrupted measurement continues.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from runs import fill
from timing import Table

from parl_evokit import CMAES, SepCMAES

warnings.filterwarnings("ignore", category=UserWarning)  # warnings of the peers
GOAL = 1e-8
Objective = Callable[[np.ndarray], np.ndarray]


def sphere(x: np.ndarray) -> np.ndarray:
    return (x**2).sum(-1)


def rosenbrock(x: np.ndarray) -> np.ndarray:
    return (100.0 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1.0 - x[..., :-1]) ** 2).sum(-1)


def ellipsoid(x: np.ndarray) -> np.ndarray:
    """Return the value of an ellipsoid whose axes differ by a factor of a thousand."""
    return (x**2 * 10 ** (6 * np.arange(x.shape[-1]) / (x.shape[-1] - 1))).sum(-1)


@cache
def turn(n: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(4).normal(size=(n, n)))[0]


def rotated(x: np.ndarray) -> np.ndarray:
    """Return the function with its axes rotated at random."""
    return ellipsoid(x @ turn(x.shape[-1]))


def rastrigin(x: np.ndarray) -> np.ndarray:
    return (x**2 - 10.0 * np.cos(2 * np.pi * x) + 10.0).sum(-1)


@dataclass(frozen=True)
class Case:
    """An objective with `n` parameters, and the start of searches: uniform in a box around a centre."""

    objective: Objective
    n: int
    most: int
    separable: bool = False
    restarts: str = "NONE"
    centre: float = 0.0
    width: float = 1.0
    std: float = 0.5
    target: str = "<= 1.05"

    def start(self, seed: int) -> np.ndarray:
        return self.centre + np.random.default_rng(seed).uniform(-self.width, self.width, self.n)


CASES = {
    "CMA_ES, sphere 10": Case(sphere, 10, 10**5, centre=1.0, target="<= 1.3"),
    "CMA_ES, Rosenbrock 10": Case(rosenbrock, 10, 10**5, target="<= 1.3"),
    "CMA_ES, rotated ellipsoid 10": Case(rotated, 10, 10**5, centre=1.0, target="<= 1.3"),
    "CMA_ES with IPOP, Rastrigin 10": Case(
        rastrigin, 10, 3 * 10**5, restarts="IPOP", width=5.0, std=2.0, target="<= 1.3"
    ),
    "CMA_ES with BIPOP, Rastrigin 10": Case(
        rastrigin, 10, 3 * 10**5, restarts="BIPOP", width=5.0, std=2.0, target="<= 1.3"
    ),
    "CMA_ES, sphere 20": Case(sphere, 20, 10**5, centre=1.0),
    "CMA_ES, sphere 100": Case(sphere, 100, 10**5, centre=1.0),
    "CMA_ES, Rosenbrock 20": Case(rosenbrock, 20, 10**5),
    "CMA_ES, Rosenbrock 40": Case(rosenbrock, 40, 3 * 10**5),
    "SEP_CMA_ES, sphere 20": Case(sphere, 20, 10**5, True, centre=1.0),
    "SEP_CMA_ES, sphere 100": Case(sphere, 100, 10**5, True, centre=1.0),
    "SEP_CMA_ES, ellipsoid 20": Case(ellipsoid, 20, 10**5, True, centre=1.0),
    "SEP_CMA_ES, Rosenbrock 20": Case(rosenbrock, 20, 10**6, True, target="<= 0.9"),
}


class Outcome(NamedTuple):
    """The result of one run; evaluations are 0 if the goal was not reached."""

    case: str
    library: str
    seed: int
    evaluations: int


def ours(case: Case, seed: int) -> int:
    sampling = {
        "type": "CMA_SAMPLING",
        "gaussian_sampling": {"std": case.std, "seed": seed},
        "cma_sampling": {"restarts": case.restarts},
    }
    kind, name = (SepCMAES, "SEP_CMA_ES") if case.separable else (CMAES, "CMA_ES")
    es = kind(case.start(seed), {"keys": "COUNTER", "solver": {"type": name, "sampling": sampling}})
    used = 0
    while used < case.most:
        infos = es.ask(es.population)
        values = case.objective(es.candidates(infos).astype(np.float64))
        used += len(infos)
        if values.min() < GOAL:
            return used
        es.tell(infos, -values)
    return 0


def pycma(case: Case, seed: int) -> int:
    import cma

    options = {"verbose": -9, "seed": seed + 1, "CMA_diagonal": case.separable, "ftarget": GOAL, "maxfevals": case.most}
    if case.restarts == "NONE":
        options |= {"tolfun": 0, "tolx": 0, "tolfunhist": 0, "tolstagnation": 10**9, "tolflatfitness": 10**9}
        es, used = cma.CMAEvolutionStrategy(case.start(seed), case.std, options), 0
        while used < case.most:
            candidates = es.ask()
            values = case.objective(np.array(candidates))
            used += len(candidates)
            if values.min() < GOAL:
                return used
            es.tell(candidates, values.tolist())
        return 0
    random, first = np.random.default_rng(seed), [case.start(seed)]

    def start() -> np.ndarray:
        return first.pop() if first else case.start(seed) + case.std * random.normal(size=case.n)

    used = 0

    def batch(candidates: list[np.ndarray]) -> list[float]:
        nonlocal used
        used += len(candidates)
        values: list[float] = case.objective(np.array(candidates)).tolist()
        return values

    bipop = case.restarts == "BIPOP"
    best = cma.fmin2(None, start, case.std, options, restarts=9, bipop=bipop, parallel_objective=batch)[1].best
    return used if best.f is not None and best.f < GOAL else 0


LIBRARIES = {"parl-evokit": ours, "pycma": pycma}


def one(case: str, library: str, seed: int) -> Outcome:
    return Outcome(case, library, seed, LIBRARIES[library](CASES[case], seed))


def tabulate(table: Table, outcomes: list[Outcome]) -> None:
    """Add a row of medians for each case; a failed run counts as longer than any other."""
    for name, case in CASES.items():
        runs = {
            library: [one.evaluations or float("inf") for one in outcomes if one[:2] == (name, library)]
            for library in LIBRARIES
        }
        mine, others = runs["parl-evokit"], runs["pycma"]
        if not mine:
            continue
        solved = f"solved {np.isfinite(mine).sum()} of {len(mine)}"
        if others:
            solved += f", pycma {np.isfinite(others).sum()} of {len(others)}"
        what = f"{name}: evaluations to 1e-8, median ({solved})"
        table.row(what, "", median(mine), {"pycma": median(others)} if others else {}, case.target)


def evaluations(table: Table, quick: bool) -> None:
    """Make all measurements of this module, for `run.py`."""
    outcomes = []
    for name, case in CASES.items():
        if quick and (case.most > 10**5 or case.n > 40):
            continue
        for library in LIBRARIES:
            try:
                outcomes += [one(name, library, seed) for seed in range(5 if quick else 31)]
            except ImportError:  # the peer is not installed
                continue
    tabulate(table, outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the runs that the output lacks, then prints the table.")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--seeds", type=int, default=31)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("cma_evaluations.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by child processes
    wanted = [
        (c, library, s) for c in arguments.only for library in arguments.libraries for s in range(arguments.seeds)
    ]
    outcomes = fill(arguments.output, Outcome, one, wanted, arguments.jobs)
    table = Table()
    table.head()
    tabulate(table, outcomes)


if __name__ == "__main__":
    main()
