"""The cost of late rewards, by the method of using them.

Each round draws 64 samples of the present model, whose rewards arrive 0 to 8 updates later; a sphere of 1000
dimensions, 400 updates. The learning rate is one at which there is still progress after 400 updates without delay: with
a larger one, all methods end where their steps are too long, and the one with the shortest steps looks best.

    grouped      ranked within each model, weighted by 0.8**age: parl-evokit's default
    no decay     ranked within each model, all of equal weight
    as fresh     all ranked together, noise applied to the present centre
    fresh only   stale samples are left out
"""

from collections import defaultdict
from statistics import median

import numpy as np
from timing import Table

from parl_evokit import ES, NothingToUpdate, SamplingInfo

D, POPULATION, LONGEST = 1000, 64, 8
RULES = ("grouped", "no delay", "no decay", "as fresh", "fresh only")


def remaining(kind: str, rate: float, rule: str, updates: int, seed: int) -> float:
    """Return the last objective divided by the first."""
    update = {"max_age": 0 if rule == "fresh only" else LONGEST, "stale_decay": 1.0 if rule == "no decay" else 0.8}
    optimizer = {"type": kind, "base_lr": rate}
    sampling = {"gaussian_sampling": {"std": 0.1, "seed": seed}}
    solver = {"optimizer": optimizer, "sampling": sampling, "update": update}
    es = ES(np.ones(D), {"keys": "COUNTER", "worker": seed, "solver": solver})
    delays, coming = np.random.default_rng(seed), defaultdict(list)
    for now in range(updates):
        infos = es.ask(POPULATION)
        for info, candidate in zip(infos, es.candidates(infos), strict=True):
            delay = 0 if rule == "no delay" else int(delays.integers(0, LONGEST + 1))
            coming[now + delay].append((info, -float(np.square(candidate, dtype=np.float64).sum())))
        due = coming.pop(now, [])
        if rule == "as fresh":  # the sample's noise is applied to the present centre
            due = [(SamplingInfo(info.key, now, info.fingerprint), reward) for info, reward in due]
        try:
            es.tell([info for info, _ in due], [reward for _, reward in due])
        except NothingToUpdate:  # time passes without an update
            es.tell(es.ask(2), [0.0, 0.0])
    return float(np.square(es.mean, dtype=np.float64).sum()) / D


def stale(table: Table, quick: bool) -> None:
    updates, seeds = (60, (1,)) if quick else (400, (1, 2, 3))
    for kind, rate, target in (("ADAM", 0.01, "<= 2.1"), ("SGD", 2.0, "<= 1.2")):
        found = {rule: median(remaining(kind, rate, rule, updates, seed) for seed in seeds) for rule in RULES}
        ours, straight = found.pop("grouped"), found["no delay"]
        what = f"stale samples, delays 0 to 8, {kind}, rate {rate:g}: remaining objective; over that of no delay"
        table.row(what, "", (ours, ours / straight), found, f"{target} of no delay")
