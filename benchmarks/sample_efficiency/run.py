"""Number of environment steps until a task is solved, over seeds, compared with Stable-Baselines3 (see README.md).

Both use RL Baselines3 Zoo's hyper-parameters and are evaluated by the same function on the same episodes. Every
finished run is a line of the output, so an interrupted measurement continues.
"""

import argparse
import os
import sys
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from cases import CASES, first_confirmed

sys.path.append(str(Path(__file__).resolve().parents[1] / "evolution"))

from runs import fill

LIBRARIES = ("ours", "sb3")


class Outcome(NamedTuple):
    """The result of one run; steps are 0 if the task was not solved."""

    case: str
    library: str
    seed: int
    steps: int


def one(name: str, library: str, seed: int) -> Outcome:
    """Train one agent."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)  # for the initial weights; Stable-Baselines3 seeds torch itself
    if library == "ours":
        from ours import ours as train
    else:
        from sb3 import sb3 as train
    case = CASES[name]
    return Outcome(name, library, seed, first_confirmed(train(name, case, seed), case.threshold) or 0)


def table(outcomes: list[Outcome]) -> str:
    """Return a row of medians over seeds for each case; an unsolved run counts as longer than any other."""
    lines = ["| | threshold | ours: median | least to most | SB3: median | least to most | ours / SB3 [95 %] |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, case in CASES.items():
        found = {}
        for library in LIBRARIES:
            steps = [one.steps or float("inf") for one in outcomes if one[:2] == (name, library)]
            if steps:
                found[library] = steps
        cells = [case.title, f"{case.threshold:g}"]
        for library in LIBRARIES:
            if library in found:
                steps = found[library]
                cells += [f"{median(steps):,.0f}", f"{min(steps):,.0f} to {max(steps):,.0f} ({len(steps)} seeds)"]
            else:
                cells += ["-", "-"]
        ratio = _ratio(found["ours"], found["sb3"]) if len(found) == 2 else "-"
        lines.append(f"| {' | '.join([*cells, ratio])} |")
    return "\n".join(lines)


def _ratio(ours: list[float], theirs: list[float]) -> str:
    """Return the ratio of the medians, with its bootstrap interval over seeds."""
    rng = Random(0)
    drawn = sorted(
        median(rng.choices(ours, k=len(ours))) / median(rng.choices(theirs, k=len(theirs))) for _ in range(5_000)
    )
    return f"{median(ours) / median(theirs):.2f} [{drawn[125]:.2f}, {drawn[-126]:.2f}]"


def main() -> None:
    """Make the runs that the output lacks, then print the table."""
    parser = argparse.ArgumentParser(description="Environment steps until solved, compared with Stable-Baselines3.")
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to this - 1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.jsonl"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by child processes
    wanted = [
        (case, name, seed) for seed in range(options.seeds) for case in options.cases for name in options.libraries
    ]
    print(table(fill(options.output, Outcome, one, wanted, options.jobs)))


if __name__ == "__main__":
    main()
