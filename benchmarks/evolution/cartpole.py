"""CartPole-v1 to 475 with a population of 20: how many episodes, over seeds, for each algorithm and for the peers.

A run ends when the mean model reaches 475 on average over ten episodes of its own, which are not counted; all
algorithms see the same episodes and the same policy, whose parameters are a flat vector.
"""

from collections.abc import Callable
from statistics import median

import gymnasium
import numpy as np
from timing import Table

from parl_evokit import ARS, CMAES, ES, GA, PGPE, SNES, SepCMAES

POPULATION, MOST = 20, 4000
Run = Callable[[int, int, Callable[[np.ndarray, int], float]], int]
SHAPES = {"linear": [(4, 2), (2,)], "4-20-2": [(4, 20), (20,), (20, 2), (2,)]}


def policy(kind: str) -> tuple[int, Callable[[np.ndarray, int], float]]:
    """The number of parameters, and the return of an episode with them."""
    env, shapes = gymnasium.make("CartPole-v1"), SHAPES[kind]
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
        if kind in (CMAES, SepCMAES):
            sampling["cma_sampling"] = {"population": POPULATION}  # type: ignore[assignment]
        es = kind(np.zeros(n), {"keys": "COUNTER", "solver": {**solver, "sampling": sampling}})
        for used in range(POPULATION, MOST + 1, POPULATION):
            infos = es.ask(POPULATION)
            rewards = [episode(es.candidate(info), 1000 * seed + used + i // 2) for i, info in enumerate(infos)]
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
    """OpenAI's rule with Adam, as its code has it (deviation 0.5, rate 0.05, centred ranks)."""
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


ADAM = {"optimizer": {"type": "ADAM", "base_lr": 0.05}}
RUNS: dict[str, tuple[Run, str]] = {
    "BASIC_ES": (ours(ES, ADAM, 0.5), "<= 1.1x the ES peer"),
    "CMA_ES": (ours(CMAES, {}, 0.5), "<= 190 (linear), 250"),
    "SEP_CMA_ES": (ours(SepCMAES, {}, 0.5), ""),
    "GA": (ours(GA, {}, 0.5), ""),
    "PGPE": (ours(PGPE, ADAM, 0.5), ""),
    "SNES": (ours(SNES, {"optimizer": {"type": "SGD", "base_lr": 1.0}}, 0.5), ""),
    "ARS": (ours(ARS, {"optimizer": {"type": "SGD", "base_lr": 0.5}}, 0.5), ""),
}
PEERS: dict[str, Run] = {"pycma": pycma, "noise-table ES": noise_table_es}


def cartpole(table: Table, quick: bool) -> None:
    seeds = range(3 if quick else 10)
    for kind in SHAPES:
        n, episode = policy(kind)
        peers: dict[str, float] = {}
        for name, run in PEERS.items():
            try:
                peers[name] = median([run(seed, n, episode) for seed in seeds])
            except ImportError:
                continue
        for name, (run, target) in RUNS.items():
            used = [run(seed, n, episode) for seed in seeds]
            what = f"CartPole-v1 to 475, {name}, {kind}: episodes, median of {len(seeds)} seeds (least, most)"
            against = {k: v for k, v in peers.items() if (k == "pycma") == ("CMA" in name)}
            table.row(what, "", (median(used), min(used), max(used)), against, target)
