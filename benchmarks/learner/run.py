"""Runs every library in turn, many short runs each, and prints a table of rates and ratios (README.md has the command).

All of them in one process, so that they meet the same moments of the machine; a library that is not installed is left
out. Seconds are the process's own, equal to the clock's on an idle machine. The best run of each library counts.
"""

import argparse
import time

import torch
from libraries import LIBRARIES, UPDATES, Run

CASES = {
    "dqn": "DQN, MLP 2x128, batch 64: updates/s",
    "ppo": "PPO, MLP 2x64, minibatch 64: gradient steps/s",
}


def best_rates(case: str, rounds: int) -> dict[str, float]:
    """Updates per second of each library that is installed."""
    runs: dict[str, Run] = {}
    for name, library in LIBRARIES.items():
        try:
            runs[name] = getattr(library(), case)()
        except ModuleNotFoundError as missing:
            print(f"{name} is left out: {missing}")
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            run()
            seconds[name] = min(seconds[name], time.process_time() - began)
    return {name: UPDATES / fastest for name, fastest in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peers = [name for name in LIBRARIES if name != "ours"]
    rows = []
    for case, title in CASES.items():
        rates = best_rates(case, options.rounds)
        cells = [f"{rates[name]:,.0f}" if name in rates else "-" for name in LIBRARIES]
        cells += [f"{rates['ours'] / rates[name]:.2f}" if name in rates else "-" for name in peers]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    print(f"| | {' | '.join(LIBRARIES)} | {' | '.join(f'ours / {name}' for name in peers)} |")
    print("| --- |" + " --- |" * (len(LIBRARIES) + len(peers)))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
