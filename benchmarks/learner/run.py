"""Runs every case of every library in turn, several rounds, and prints a table of medians and ratios.

python run.py --peers <python of an environment with the peers>      (README.md has the whole command)
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

CASES = {
    "dqn": "DQN, MLP 2x128, batch 64: updates/s",
    "ppo": "PPO, MLP 2x64, minibatch 64: gradient steps/s",
}
PEERS = {"floor": "by hand", "sb3": "SB3", "parl2": "PARL 2.2.1"}


def measure(python: str, library: str, case: str) -> float | None:
    """Run one worker on one thread; None where the environment lacks the library."""
    worker = Path(__file__).with_name("worker.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PARL_BACKEND": "torch"}
    done = subprocess.run(
        [python, str(worker), library, case], capture_output=True, text=True, env=environment, check=False
    )
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        sys.exit(f"{library} {case} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", help="python of an environment with the peers; left out without it")
    options = parser.parse_args()
    pythons = {"ours": sys.executable, "floor": sys.executable, "sb3": options.peers, "parl2": options.peers}
    figures: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for case in CASES:
            for library, python in pythons.items():
                if python and (rate := measure(python, library, case)) is not None:
                    figures.setdefault((case, library), []).append(rate)
    print(f"| | ours | {' | '.join(PEERS.values())} | {' | '.join(f'ours / {name}' for name in PEERS.values())} |")
    print("| --- |" + " --- |" * (1 + 2 * len(PEERS)))
    for case, title in CASES.items():
        medians = {library: statistics.median(rates) for (of, library), rates in figures.items() if of == case}
        rates = [f"{medians[library]:,.0f}" if library in medians else "-" for library in pythons]
        ratios = [f"{medians['ours'] / medians[peer]:.2f}" if peer in medians else "-" for peer in PEERS]
        print(f"| {title} | {' | '.join(rates + ratios)} |")


if __name__ == "__main__":
    main()
