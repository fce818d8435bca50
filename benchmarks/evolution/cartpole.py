"""Number of episodes until CartPole-v1 reaches 475 with a population of 20, for each algorithm and the peers.

    python benchmarks/evolution/cartpole.py --jobs 2 --output cartpole.jsonl      twenty seeds, forty where they tell
    python benchmarks/evolution/cartpole.py --only CMA_ES pycma --seeds 30 --output cartpole.jsonl

A run ends when the mean model reaches 475 on average over ten further episodes, which are not counted. All algorithms
have the same episodes and the same policy, whose parameters are a flat vector. Every finished run is a line of the
output, so an interrupted measurement continues; the table is made from the lines.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import gymnasium
import numpy as np
from runs import fill
from timing import Table

from parl_evokit import ARS, CEM, CMAES, CRFMNES, ES, GA, LMMAES, PGPE, SNES, SepCMAES

POPULATION, MOST = 20, 4000
Run = Callable[[int, int, Callable[[np.ndarray, int], float]], int]
SHAPES = {"linear": [(4, 2), (2,)], "4-20-2": [(4, 20), (20,), (20, 2), (2,)]}
SEEDS, MORE_SEEDS = 20, 40
# algorithms that are compared, with different seeds
OF_MORE = ("BASIC_ES", "CMA_ES", "SEP_CMA_ES", "pycma", "noise-table ES")
OF_CMA = ("CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES")  # compared with pycma


class Outcome(NamedTuple):
    """The result of one run: the number of episodes, and the seconds outside of episodes and in total.

    The cost of reading the clock, which for short episodes equals that of a small update, is subtracted from both.
    """

    policy: str
    algorithm: str
    seed: int
    episodes: int
    algorithm_s: float
    whole_s: float


def policy(kind: str) -> tuple[int, Callable[[np.ndarray, int], float]]:
    """Return the number of parameters, and a function that returns the return of an episode with them."""
    env, shapes = gymnasium.make("CartPole-v1", disable_env_checker=True), SHAPES[kind]
    stops = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def episode(theta: np.ndarray, seed: int) -> float:
        parts = [part.reshape(shape) for part, shape in zip(np.split(theta, stops[:-1]), shapes, strict=True)]
        obs, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            out = obs @ parts[0] + parts[1]
            if len(parts) == 4:
                out = np.tanh(out) @ parts[2] + parts[3]
            obs, reward, terminated, truncated, _ = env.step(int(out.argmax()))
            total += float(reward)
            done = terminated or truncated
        return total

    return int(stops[-1]), episode


def solved(mean: np.ndarray, episode: Callable[[np.ndarray, int], float], seed: int) -> bool:
    total = 0.0
    for i in range(10):
        total += episode(mean, 10**6 + 100 * seed + i)
        if total + 500.0 * (9 - i) < 4750.0:
            return False
    return True


def ours(kind: type, solver: dict[str, object], std: float) -> Run:
    def run(seed: int, n: int, episode: Callable[[np.ndarray, int], float]) -> int:
        sampling = {"gaussian_sampling": {"std": std, "seed": seed}}
        if kind in (CMAES, SepCMAES, LMMAES, CRFMNES):
            sampling["cma_sampling"] = {"population": POPULATION}  # type: ignore[assignment]
        es = kind(np.zeros(n), {"keys": "COUNTER", "solver": {**solver, "sampling": sampling}})
        for used in range(POPULATION, MOST + 1, POPULATION):
            infos = es.ask(POPULATION)
            rewards = [episode(x, 1000 * seed + used + i // 2) for i, x in enumerate(es.candidates(infos))]
            es.tell(infos, rewards)
            if solved(es.mean, episode, seed):
                return used
        return MOST

    return run


def pycma(seed: int, n: int, episode: Callable[[np.ndarray, int], float]) -> int:
    import cma

    es = cma.CMAEvolutionStrategy(np.zeros(n), 0.5, {"popsize": POPULATION, "verbose": -9, "seed": seed + 1})
    for used in range(POPULATION, MOST + 1, POPULATION):
        candidates = es.ask()
        es.tell(candidates, [-episode(x, 1000 * seed + used + i // 2) for i, x in enumerate(candidates)])
        if solved(es.mean, episode, seed):
            return used
    return MOST


def noise_table_es(seed: int, n: int, episode: Callable[[np.ndarray, int], float]) -> int:
    """Run OpenAI's update rule with Adam, as in its code (deviation 0.5, rate 0.05, centred ranks)."""
    random, theta = np.random.RandomState(seed), np.zeros(n)
    m, v = np.zeros(n), np.zeros(n)
    for step, used in enumerate(range(POPULATION, MOST + 1, POPULATION), 1):
        noise = random.randn(POPULATION // 2, n)
        pairs = enumerate(0.5 * noise)
        both = np.array([[episode(theta + s * e, 1000 * seed + used + i) for s in (1, -1)] for i, e in pairs])
        ranks = both.ravel().argsort().argsort().reshape(both.shape) / (both.size - 1) - 0.5
        gradient = -(ranks[:, 0] - ranks[:, 1]) @ noise / POPULATION
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        theta = theta - 0.05 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        if solved(theta, episode, seed):
            return used
    return MOST


ADAM: dict[str, object] = {"optimizer": {"type": "ADAM", "base_lr": 0.05}}
RUNS: dict[str, tuple[Run, str]] = {
    "BASIC_ES": (ours(ES, ADAM, 0.5), "<= 1.1x the ES peer"),
    "CMA_ES": (ours(CMAES, {}, 0.5), "<= 190 (linear), 250"),
    "SEP_CMA_ES": (ours(SepCMAES, {}, 0.5), ""),
    "GA": (ours(GA, {}, 0.5), ""),
    "PGPE": (ours(PGPE, ADAM, 0.5), ""),
    "SNES": (ours(SNES, {"optimizer": {"type": "SGD", "base_lr": 1.0}}, 0.5), ""),
    "ARS": (ours(ARS, {"optimizer": {"type": "SGD", "base_lr": 0.5}}, 0.5), ""),
    "CEM": (ours(CEM, {}, 0.5), ""),
    "LM_MA_ES": (ours(LMMAES, {}, 0.5), ""),
    "CR_FM_NES": (ours(CRFMNES, {}, 0.5), ""),
}
PEERS: dict[str, Run] = {"pycma": pycma, "noise-table ES": noise_table_es}


class Timed:
    """An episode function that counts its calls and their processor time."""

    def __init__(self, episode: Callable[[np.ndarray, int], float]) -> None:
        self._episode = episode
        self.calls, self.inside = 0, 0.0

    def __call__(self, theta: np.ndarray, seed: int) -> float:
        began = time.process_time()
        total = self._episode(theta, seed)
        self.inside += time.process_time() - began
        self.calls += 1
        return total


def cost_of_timing(calls: int = 2000) -> float:
    """Return the seconds that `Timed` adds to an episode."""
    empty, theta = Timed(lambda _theta, _seed: 0.0), np.zeros(1)
    began = time.process_time()
    for _ in range(calls):
        empty(theta, 0)
    return (time.process_time() - began - empty.inside) / calls


def one(kind: str, name: str, seed: int) -> Outcome:
    """Make one run of an algorithm or a peer."""
    n, episode = policy(kind)
    run = RUNS[name][0] if name in RUNS else PEERS[name]
    run(seed + 1000, n, lambda _theta, _seed: 500.0)  # imports and tables do not count
    timed, cost = Timed(episode), cost_of_timing()
    began = time.process_time()
    used = run(seed, n, timed)
    whole = time.process_time() - began - cost * timed.calls
    return Outcome(kind, name, seed, used, round(max(0.0, whole - timed.inside), 4), round(whole, 4))


def tabulate(table: Table, outcomes: list[Outcome]) -> None:
    """Add a row for each algorithm and policy."""
    for kind in SHAPES:
        runs: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.policy == kind:
                runs.setdefault(outcome.algorithm, []).append(outcome)
        for name, (_, target) in RUNS.items():
            if name not in runs:
                continue
            used = [outcome.episodes for outcome in runs[name]]
            share = sum(outcome.algorithm_s for outcome in runs[name]) / sum(outcome.whole_s for outcome in runs[name])
            solved_runs = sum(episodes < MOST for episodes in used)
            what = f"CartPole-v1, {name}, {kind}: episodes, median of {len(used)} seeds / least / most"
            what += f" ({solved_runs} solved; {share:.1%} of the time is the library's)"
            peers = {
                peer: float(median(outcome.episodes for outcome in runs[peer]))
                for peer in PEERS
                if peer in runs and (peer == "pycma") == (name in OF_CMA)
            }
            table.row(what, "", (median(used), min(used), max(used)), peers, target)


def cartpole(table: Table, quick: bool) -> None:
    """Make all measurements of this module, for `run.py`."""
    names, outcomes = [*RUNS, *PEERS], []
    for kind in SHAPES:
        for name in names:
            for seed in range(3 if quick else MORE_SEEDS if name in OF_MORE else SEEDS):
                try:
                    outcomes.append(one(kind, name, seed))
                except ImportError:  # the peer is not installed
                    break
    tabulate(table, outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the runs that the output lacks, then prints the table.")
    names = [*PEERS, *RUNS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help=", ".join(names))
    parser.add_argument("--seeds", type=int, help="default: 20; 40 for BASIC_ES, the CMA family and the peers")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("cartpole.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by child processes
    wanted = [
        (kind, name, seed)
        for name in arguments.only
        for kind in SHAPES
        for seed in range(arguments.seeds or (MORE_SEEDS if name in OF_MORE else SEEDS))
    ]
    outcomes = fill(arguments.output, Outcome, one, wanted, arguments.jobs)
    table = Table()
    table.head()
    tabulate(table, outcomes)


if __name__ == "__main__":
    main()
