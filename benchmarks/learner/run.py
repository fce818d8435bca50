"""Runs every library in turn, many short runs each, and prints a table of rates and ratios (README.md has the command).

All of them in one process, so that they meet the same moments of the machine; a library that is not installed, or has
no such algorithm, is left out. Seconds are the process's own, equal to the clock's on an idle machine with one thread.
The best run of each library counts.
"""

import argparse
import time
from collections.abc import Callable

import torch
from batches import UPDATES
from by_hand import Floor
from ours import Parl, Reduced
from parl2 import Parl2
from sb3 import StableBaselines3

CASES = {
    "dqn": ("DQN, MLP 2x128, batch 64: updates/s", "small"),
    "ppo": ("PPO, MLP 2x64, minibatch 64: gradient steps/s", "small"),
    "sac": ("SAC, MLP 2x256, batch 256: updates/s", "continuous"),
    "td3": ("TD3, MLP 2x256, batch 256: updates/s", "continuous"),
    "ddpg": ("DDPG, MLP 2x256, batch 256: updates/s", "continuous"),
    "dqn_cnn": ("DQN, Nature CNN, batch 32: updates/s", "cnn"),
    "a2c_cnn": ("A2C, Nature CNN, 50x8 frames: updates/s", "cnn"),
}
LIBRARIES: dict[str, Callable[[], object]] = {
    "ours": Parl,
    "ours, compiled": lambda: Parl(compile=True),
    "ours, bfloat16": Reduced,
    "by hand": Floor,
    "SB3": StableBaselines3,
    "PARL 2.2.1": Parl2,
}


def best_rates(case: str, libraries: list[str], rounds: int) -> dict[str, float]:
    """Updates per second of each library that is installed and has the algorithm."""
    updates = UPDATES[CASES[case][1]]
    runs: dict[str, Callable[[int], None]] = {}
    for name in libraries:
        try:
            make = getattr(LIBRARIES[name](), case, None)
            if make is not None:
                runs[name] = make()
        except ModuleNotFoundError as missing:
            print(f"{name} is left out: {missing}")
    for run in runs.values():  # first weights, first use of each kernel, compilation
        run(updates)
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            run(updates)
            seconds[name] = min(seconds[name], time.process_time() - began)
    return {name: updates / fastest for name, fastest in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Updates per second of each library.")
    parser.add_argument("--rounds", type=int, default=150, help="runs of each small case; the larger ones get fewer")
    parser.add_argument("--cases", default=",".join(CASES), help="which, separated by commas")
    parser.add_argument("--libraries", default=";".join(LIBRARIES), help="which, separated by semicolons")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    libraries = options.libraries.split(";")
    peers = [name for name in libraries if name != "ours"]
    shown = [f"ours / {name}" for name in peers]
    print(f"| | {' | '.join(libraries)} | {' | '.join(shown)} |")
    print("| --- |" + " --- |" * (len(libraries) + len(peers)), flush=True)
    for case in options.cases.split(","):
        title, size = CASES[case]
        rates = best_rates(case, libraries, max(3, options.rounds // (1 if size == "small" else 6)))
        cells = [f"{rates[name]:,.{0 if rates[name] > 200 else 1}f}" if name in rates else "-" for name in libraries]
        cells += [f"{rates['ours'] / rates[name]:.2f}" if name in rates else "-" for name in peers]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
