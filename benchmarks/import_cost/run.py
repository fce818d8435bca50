"""The cost of `import parl` and `import parl_remote` beyond `import numpy`, in alternating fresh interpreters.

    hatch run base:python benchmarks/import_cost/run.py [--rounds 30]

Prints a Markdown table of medians in milliseconds of whole processes, and the difference to numpy's row.
"""

import argparse
import statistics
import subprocess
import sys
import time

PROGRAMS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "numpy, parl": "import numpy, parl",
    "numpy, parl_remote": "import numpy, parl_remote",
    "numpy, parl.remote_class": "import numpy, parl; parl.remote_class",
    "numpy, parl_evokit": "import numpy, parl_evokit",
}
LIMIT_MS = {"numpy, parl": 30, "numpy, parl_remote": 60, "numpy, parl_evokit": 50}


def seconds(source: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", source], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="number of turns of each program (default: 30)")
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds + 1):
        for name, source in PROGRAMS.items():
            times[name].append(seconds(source))
    # the first one fills the disk cache
    medians = {name: 1000 * statistics.median(values[1:]) for name, values in times.items()}
    print("| import | process, ms | above numpy, ms | limit, ms |\n| --- | --- | --- | --- |")
    for name, value in medians.items():
        print(f"| {name} | {value:.1f} | {value - medians['numpy']:+.1f} | {LIMIT_MS.get(name, '')} |")


if __name__ == "__main__":
    main()
