"""Run every case of all libraries in turn for several rounds, and print a table of medians and ratios.

python run.py --parl2 <unpacked wheel of parl 2.2.1>      (README.md has the whole command)
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

COMMON = ("ours", "sb3", "cpprb")
REUSED = ("ours", "ours_reused")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "vector_insert": ("vector 17/6, capacity 200 k: inserts/s", (*COMMON, "parl2")),
    "vector_insert_64": ("the same, 64 in one call: inserts/s", ("ours", "cpprb")),
    "vector_sample": ("uniform batch of 256: batches/s", (*REUSED, "sb3", "cpprb", "parl2")),
    "prioritized_insert": ("prioritised: inserts/s", ("ours", "cpprb")),
    "prioritized_learn": ("prioritised batch of 256 with update: batches/s", (*REUSED, "cpprb")),
    "frames_insert": ("Atari 4x84x84 uint8: inserts/s", COMMON),
    "frames_sample": ("uniform batch of 32: batches/s", (*REUSED, "sb3", "cpprb")),
    "frames_prioritized": ("prioritised batch of 32: batches/s", (*REUSED, "cpprb")),
    "frames_faults": ("page faults per batch of 32", (*REUSED, "sb3", "cpprb")),
    "frames_bytes": ("bytes per stored Atari transition", ("ours", "sb3")),
}


def measure(library: str, case: str, parl2: str | None) -> float | None:
    """Run one worker, on one thread; return None where the library is not installed."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), library, case]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PARL2": parl2 or ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        sys.exit(f"{library} {case} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def short(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value / 1000:,.0f} k" if value >= 100_000 else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parl2", help="folder of the unpacked wheel of parl 2.2.1, which is skipped without it")
    parser.add_argument("--cases", default=",".join(CASES), help="which, separated by commas")
    parser.add_argument("--json", type=Path, help="file for the medians, by case and library")
    options = parser.parse_args()
    cases = {case: CASES[case] for case in options.cases.split(",")}
    figures: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for case, (_, libraries) in cases.items():
            for library in libraries:
                if library == "parl2" and not options.parl2:
                    continue
                if (figure := measure(library, case, options.parl2)) is not None:
                    figures.setdefault((case, library), []).append(figure)
    print("| | ours | ours, buffers reused | SB3 | cpprb | PARL 2.2.1 | ours / SB3 | ours / cpprb | ours / PARL |")
    print("| --- |" + " --- |" * 8)
    found: dict[str, dict[str, float]] = {}
    for case, (title, _) in cases.items():
        numbers_of = {library: numbers for (of, library), numbers in figures.items() if of == case}
        medians = found[case] = {library: statistics.median(numbers) for library, numbers in numbers_of.items()}
        cells = [
            short(medians[library]) if library in medians else "-" for library in (*REUSED, "sb3", "cpprb", "parl2")
        ]
        others = [medians.get(library) for library in ("sb3", "cpprb", "parl2")]
        ratios = [f"{medians['ours'] / other:.2f}" if other and "ours" in medians else "-" for other in others]
        print(f"| {title} | {' | '.join(cells + ratios)} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
