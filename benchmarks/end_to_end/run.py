"""Environment steps per second with acting, replay and updates, for alternating libraries (README.md has the command).

All run in one process with one thread and alternate, so that the machine's load affects them equally; missing libraries
and environments are skipped. Times are CPU times of the process. The result is the median turn, or the best one
(`--best`, for a busy machine), without the first.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ours import Parl
from parl2 import Parl2
from sb3 import StableBaselines3
from tasks import TASKS

LIBRARIES: dict[str, Callable[[], object]] = {
    "ours": Parl,
    "ours, compiled": lambda: Parl(compile=True),
    "SB3": StableBaselines3,
    "PARL 2.2.1": Parl2,
}


def rates(task: str, rounds: int, scale: float, *, best: bool) -> dict[str, float]:
    """Median or best environment steps per second of each library."""
    steps = int(TASKS[task][1] * scale)
    runs: dict[str, Callable[[int], None]] = {}
    for name, library in LIBRARIES.items():
        try:
            runs[name] = getattr(library(), task)()
            runs[name](steps)
        except (ImportError, ModuleNotFoundError) as missing:
            print(f"{name} is left out: {missing}")
            runs.pop(name, None)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            run(steps)
            seconds[name].append(time.process_time() - began)
    return {name: steps / (min(turns) if best else statistics.median(turns)) for name, turns in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Environment steps per second of each library.")
    parser.add_argument("--rounds", type=int, default=20, help="number of turns of each library")
    parser.add_argument("--tasks", default=",".join(TASKS), help="cases, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of environment steps per turn")
    parser.add_argument("--best", action="store_true", help="report the best turn instead of the median")
    parser.add_argument("--json", type=Path, help="file for the rates, by task and library")
    options = parser.parse_args()
    rates_of: dict[str, dict[str, float]] = {}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peers = [name for name in LIBRARIES if not name.startswith("ours")]
    pairs = [(mine, peer) for mine in LIBRARIES if mine not in peers for peer in peers]
    heads = [*LIBRARIES, *(f"{mine} / {peer}" for mine, peer in pairs)]
    print(f"| | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}", flush=True)
    for task in options.tasks.split(","):
        found = rates_of[task] = rates(task, options.rounds, options.scale, best=options.best)
        cells = [f"{found[name]:,.0f}" if name in found else "-" for name in LIBRARIES]
        cells += [f"{found[a] / found[b]:.2f}" if {a, b} <= found.keys() else "-" for a, b in pairs]
        print(f"| {TASKS[task][0]} | {' | '.join(cells)} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rates_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
