"""Rules for late rewards: those of parl-evokit compared with others, on a quadratic function.

    python benchmarks/evolution/stale_rules.py [--seeds 5]

Each round draws 64 samples, whose rewards arrive after 0 to 8 updates, evenly distributed, so that eight in nine are
stale. The table compares the objective after 200 updates as a share of its initial value, as the median over seeds,
with 1000 parameters and Adam or SGD, and with 20. Lower is better; above 1, the objective has grown. Prints a table in
Markdown.

    no delay           every reward arrives at once
    GROUPED            ranked within its own model, weighted by stale_decay**age (the default, 0.8)
    GROUPED, no decay  the same with 1.0
    as fresh           all ranked together, as if they had been drawn around the present model
    shifted            noise + old - new parameters for the noise, all ranked together: EvoKit's public code
    fresh only         stale samples are left out
    IMPORTANCE         clipped, self-normalised ratios of densities (offered for up to 100 parameters)
"""

import argparse
import contextlib
from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit import ES, NothingToUpdate, SamplingInfo
from parl_evokit._sampler import Sampler
from parl_evokit._samples import Group, SortedSamples
from parl_evokit.openai_es import Centres

POPULATION, UPDATES, LONGEST_DELAY = 64, 200, 8
Vector = NDArray[np.float32]


class AsFresh(ES):
    """Ranks and uses the samples of all models as those of the present model."""

    shifted = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._past: dict[int, Vector] = {}

    def _gradient(self, intake: SortedSamples, sampler: Sampler) -> Vector:
        keys = np.concatenate([group.keys for group in intake.groups])
        utilities = self._utilities(Group(0, keys, np.concatenate([group.rewards for group in intake.groups]))).values
        std = float(np.float32(self.config.solver.sampling.gaussian_sampling.std))
        total, first = np.zeros(self.layout.size), 0
        for group in intake.groups:
            own = utilities[first : first + len(group.keys)]
            first += len(group.keys)
            total += own @ (std * sampler.normals(group.keys))
            if self.shifted and group.age:
                total += own.sum() * (self._past[sampler.model_iter_id - group.age].astype(float) - sampler.parameters)
        self._past[sampler.model_iter_id] = sampler.parameters
        return (-total / intake.used).astype(np.float32)


class Shifted(AsFresh):
    """Uses `noise + old - new` in place of the noise."""

    shifted = True


class Ratios(ES):
    """IMPORTANCE without its limit of 100 parameters."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._centres = Centres(self.layout.size, LONGEST_DELAY)


def remaining(
    kind: type[ES], update: dict[str, Any], size: int, optimizer: dict[str, Any], delays: int, seed: int
) -> float:
    """Return the final objective as a share of the initial one."""
    draw = np.random.default_rng(seed)
    target = draw.normal(size=size)
    weights = np.logspace(0.0, 1.0, size)

    def objective(x: NDArray[Any]) -> float:
        return float(weights @ np.square(x - target))

    gaussian = {"std": 0.1, "cached": False, "seed": seed}
    config = {
        "keys": "COUNTER",
        "worker": seed,
        "solver": {"optimizer": optimizer, "sampling": {"gaussian_sampling": gaussian}, "update": update},
    }
    es = kind(np.zeros(size), config)
    due: dict[int, list[tuple[SamplingInfo, float]]] = defaultdict(list)
    for now in range(UPDATES):
        for info in es.ask(POPULATION):
            due[now + int(draw.integers(0, delays + 1))].append((info, -objective(es.candidate(info))))
        infos, rewards = zip(*due.pop(now), strict=True)
        with contextlib.suppress(NothingToUpdate):  # sometimes there are no fresh samples
            es.tell(infos, rewards)
        if not np.isfinite(es.mean).all():
            return float("inf")
    return objective(es.mean) / objective(np.zeros(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    rules: dict[str, tuple[type[ES], dict[str, Any], int]] = {
        "no delay": (ES, {}, 0),
        "GROUPED (default, 0.8)": (ES, {}, LONGEST_DELAY),
        "GROUPED, no decay": (ES, {"stale_decay": 1.0}, LONGEST_DELAY),
        "as fresh": (AsFresh, {}, LONGEST_DELAY),
        "shifted": (Shifted, {}, LONGEST_DELAY),
        "fresh only": (ES, {"max_age": 0, "min_samples": 1}, LONGEST_DELAY),
        "IMPORTANCE": (Ratios, {}, LONGEST_DELAY),
    }
    columns: dict[str, tuple[int, dict[str, Any]]] = {
        "1000, Adam 0.02": (1000, {"type": "ADAM", "base_lr": 0.02}),
        "1000, SGD 5": (1000, {"type": "SGD", "base_lr": 5.0}),
        "20, Adam 0.02": (20, {"type": "ADAM", "base_lr": 0.02}),
        "20, SGD 4": (20, {"type": "SGD", "base_lr": 4.0}),
    }
    print(f"| rule | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for name, (kind, update, delays) in rules.items():
        cells = [
            median(remaining(kind, update, size, optimizer, delays, seed) for seed in seeds)
            for size, optimizer in columns.values()
        ]
        print(f"| {name} | {' | '.join(f'{cell:.3g}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
