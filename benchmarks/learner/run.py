"""Runs every library in turn, many short runs each, and prints a table of rates and ratios (README.md has the command).

All of them in one process, so that they meet the same moments of the machine; a library that is not installed, or has
no such algorithm, is left out. Seconds are the process's own, equal to the wall's on an idle machine with one thread;
with several threads they are the wall's. The best run of each library counts.
"""

import argparse
import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from batches import UPDATES

CASES = {
    "dqn": ("DQN, MLP 2x128, batch 64: updates/s", "small"),
    "ppo": ("PPO, MLP 2x64, minibatch 64: gradient steps/s", "small"),
    "sac": ("SAC, MLP 2x256, batch 256: updates/s", "continuous"),
    "sac_fixed": ("SAC, the temperature fixed: updates/s", "continuous"),
    "td3": ("TD3, MLP 2x256, batch 256: updates/s", "continuous"),
    "ddpg": ("DDPG, MLP 2x256, batch 256: updates/s", "continuous"),
    "dqn_cnn": ("DQN, Nature CNN, batch 32: updates/s", "cnn"),
    "a2c_cnn": ("A2C, Nature CNN, 50x8 frames: updates/s", "cnn"),
    "impala_cnn": ("IMPALA, Nature CNN, 50x8 frames: updates/s", "cnn"),
}


def _made_by(module: str, name: str, **options: Any) -> Callable[[], object]:
    """A library that is imported when it is measured: of two frameworks only one is loaded."""
    return lambda: getattr(import_module(module), name)(**options)


LIBRARIES: dict[str, dict[str, Callable[[], object]]] = {
    "torch": {
        "ours": _made_by("ours", "Parl"),
        "ours, compiled": _made_by("ours", "Parl", compile=True),
        "ours, bfloat16": _made_by("ours", "Reduced"),
        "by hand": _made_by("by_hand", "Floor"),
        "SB3": _made_by("sb3", "StableBaselines3"),
        "PARL 2.2.1": _made_by("parl2", "Parl2"),
    },
    "paddle": {
        "ours": _made_by("ours", "Parl", backend="paddle"),
        "PARL 2.2.1": _made_by("parl2_paddle", "Parl2"),
    },
}


def best_rates(
    case: str, libraries: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Updates per second of each library that is installed and has the algorithm."""
    updates = UPDATES[CASES[case][1]]
    runs: dict[str, Callable[[int], None]] = {}
    for name, library in libraries.items():
        try:
            make = getattr(library(), case, None)
            if make is not None:
                runs[name] = make()
        except ModuleNotFoundError as missing:
            print(f"{name} is left out: {missing}")
    for run in runs.values():  # first weights, first use of each kernel, compilation
        run(updates)
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            began = clock()
            run(updates)
            seconds[name] = min(seconds[name], clock() - began)
    return {name: updates / fastest for name, fastest in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Updates per second of each library.")
    parser.add_argument("--rounds", type=int, default=150, help="runs of each small case; the larger ones get fewer")
    parser.add_argument("--cases", default=",".join(CASES), help="which, separated by commas")
    parser.add_argument("--backend", choices=LIBRARIES, default="torch", help="the framework below the libraries")
    parser.add_argument("--libraries", help="which, separated by semicolons; default: all of the backend")
    parser.add_argument(
        "--threads", type=int, default=1, help="of the arithmetic; with several the clock on the wall counts"
    )
    options = parser.parse_args()
    os.environ["PARL_BACKEND"] = options.backend
    _set_threads(options.backend, options.threads)
    known = LIBRARIES[options.backend]
    libraries = options.libraries.split(";") if options.libraries else list(known)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    peers = [name for name in libraries if name != "ours"]
    shown = [f"ours / {name}" for name in peers]
    print(f"| | {' | '.join(libraries)} | {' | '.join(shown)} |")
    print("| --- |" + " --- |" * (len(libraries) + len(peers)), flush=True)
    for case in options.cases.split(","):
        title, size = CASES[case]
        rounds = max(3, options.rounds // (1 if size == "small" else 6))
        rates = best_rates(case, {name: known[name] for name in libraries}, rounds, clock)
        cells = [f"{rates[name]:,.{0 if rates[name] > 200 else 1}f}" if name in rates else "-" for name in libraries]
        cells += [f"{rates['ours'] / rates[name]:.2f}" if name in rates else "-" for name in peers]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def _set_threads(backend: str, threads: int) -> None:
    if backend == "torch":
        torch = import_module("torch")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
    elif os.environ.get("OMP_NUM_THREADS") != str(threads):
        raise SystemExit(f"paddle takes its threads from the environment: start this with OMP_NUM_THREADS={threads}")


if __name__ == "__main__":
    main()
