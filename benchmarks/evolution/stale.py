"""What rewards that come late cost, and what the ways of using them make of it.

Each round draws 64 samples of the present model, whose rewards arrive 0 to 8 updates later; a sphere of 1000
dimensions, 400 updates.
"""

from collections import defaultdict

import numpy as np
from timing import Table

from parl_evokit import ES, NothingToUpdate, SamplingInfo

D, POPULATION, LONGEST = 1000, 64, 8
RULES = ("grouped", "no delay", "no decay", "as fresh", "fresh only")


def remaining(optimizer: dict[str, object], rule: str, updates: int) -> float:
    """The last objective over the first."""
    update = {"max_age": 0 if rule == "fresh only" else LONGEST, "stale_decay": 1.0 if rule == "no decay" else 0.8}
    sampling = {"gaussian_sampling": {"std": 0.1, "seed": 7}}
    es = ES(np.ones(D), {"keys": "COUNTER", "solver": {"optimizer": optimizer, "sampling": sampling, "update": update}})
    delays, coming = np.random.default_rng(3), defaultdict(list)
    for now in range(updates):
        for info in es.ask(POPULATION):
            reward = -float((es.candidate(info).astype(np.float64) ** 2).sum())
            delay = 0 if rule == "no delay" else int(delays.integers(0, LONGEST + 1))
            coming[now + delay].append((info, reward))
        due = coming.pop(now)
        if rule == "as fresh":  # the sample's noise is applied to the present centre
            due = [(SamplingInfo(info.key, now, info.fingerprint), reward) for info, reward in due]
        try:
            es.tell([info for info, _ in due], [reward for _, reward in due])
        except NothingToUpdate:  # time goes on all the same
            es.tell(es.ask(2), [0.0, 0.0])
    return float((es.mean.astype(np.float64) ** 2).sum()) / D


def stale(table: Table, quick: bool) -> None:
    updates = 60 if quick else 400
    for name, optimizer, target in (
        ("Adam", {"type": "ADAM", "base_lr": 0.01}, "<= 2.1"),
        ("SGD", {"type": "SGD", "base_lr": 0.05 * D}, "<= 1.2"),
    ):
        found = {rule: remaining(optimizer, rule, updates) for rule in RULES}
        ours, straight = found.pop("grouped"), found["no delay"]
        what = f"stale samples, delays 0 to 8, {name}: remaining objective; over that of no delay"
        table.row(what, "", (ours, ours / straight), found, f"{target} of no delay")
