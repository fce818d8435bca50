"""Run libraries in turn, in many short runs, and print a table of rates and ratios (README.md has the command).

Each library has a process, of which one runs at a time, so that the machine's load affects them equally; a library that
is not installed or has no such algorithm is skipped. Seconds are CPU time of the process, which equals wall-clock time
on an idle machine with one thread; with several threads, they are wall-clock time. The best run of each library counts.
"""

import argparse
import json
import os
from contextlib import ExitStack
from pathlib import Path

from batches import UPDATES
from contender import LIBRARIES, Contender

CASES = {
    "dqn": ("DQN, MLP 2x128, batch 64: updates/s", "small"),
    "dqn_many": ("the same, 32 updates in one call: updates/s", "small"),
    "ppo": ("PPO, MLP 2x64, minibatch 64: gradient steps/s", "small"),
    "sac": ("SAC, MLP 2x256, batch 256: updates/s", "continuous"),
    "sac_fixed": ("SAC, the temperature fixed: updates/s", "continuous"),
    "td3": ("TD3, MLP 2x256, batch 256: updates/s", "continuous"),
    "ddpg": ("DDPG, MLP 2x256, batch 256: updates/s", "continuous"),
    "dqn_cnn": ("DQN, Nature CNN, batch 32: updates/s", "cnn"),
    "a2c_cnn": ("A2C, Nature CNN, 50x8 frames: updates/s", "cnn"),
    "impala_cnn": ("IMPALA, Nature CNN, 50x8 frames: updates/s", "cnn"),
}


def best_rates(
    case: str, backend: str, libraries: list[str], rounds: int, threads: int, device: str
) -> dict[str, float]:
    """Return the updates per second of each library that is installed and has the algorithm."""
    updates = UPDATES[CASES[case][1]]
    seconds: dict[str, float] = {}
    with ExitStack() as running:
        contenders: dict[str, Contender] = {}
        for name in libraries:
            contender = running.enter_context(Contender(backend, name, case, threads, device))
            if contender.lacks is None:
                contenders[name] = contender
            elif contender.lacks:
                print(f"{name} is left out: {contender.lacks}")
        for contender in contenders.values():  # a first run for initialisation and compilation
            contender.seconds(updates)
        for _ in range(rounds):
            for name, contender in contenders.items():
                seconds[name] = min(seconds.get(name, float("inf")), contender.seconds(updates))
    return {name: updates / fastest for name, fastest in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Updates per second of each library.")
    parser.add_argument(
        "--rounds", type=int, default=150, help="number of runs of each small case; larger cases have fewer"
    )
    parser.add_argument("--cases", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--backend", choices=LIBRARIES, default="torch", help="framework of the libraries")
    parser.add_argument("--libraries", help="libraries, separated by semicolons; default: all of the backend")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of the arithmetic; with several, wall-clock time counts"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device of the arithmetic; on a GPU, wall-clock time counts",
    )
    parser.add_argument("--json", type=Path, help="file for the rates, by case and library")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    os.environ["PARL_BACKEND"] = options.backend
    libraries = options.libraries.split(";") if options.libraries else list(LIBRARIES[options.backend])
    peers = [name for name in libraries if name != "ours"]
    shown = [f"ours / {name}" for name in peers]
    print(f"| | {' | '.join(libraries)} | {' | '.join(shown)} |")
    print("| --- |" + " --- |" * (len(libraries) + len(peers)), flush=True)
    for case in options.cases.split(","):
        title, size = CASES[case]
        rounds = max(3, options.rounds // (1 if size == "small" else 6))
        rates = found[case] = best_rates(case, options.backend, libraries, rounds, options.threads, options.device)
        cells = [f"{rates[name]:,.{0 if rates[name] > 200 else 1}f}" if name in rates else "-" for name in libraries]
        cells += [f"{rates['ours'] / rates[name]:.2f}" if name in rates else "-" for name in peers]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
