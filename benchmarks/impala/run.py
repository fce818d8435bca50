"""Environment steps per second of actors and a learner, for alternating contenders (README.md has the command).

Each contender is a process in its own Python environment; a round runs all of them, so that load of the machine affects
all. The table shows the medians of the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rates import MARK, end_all
from tasks import COUNTS, TASKS

HERE = Path(__file__).parent
SCRIPTS = {
    "ours": ["ours.py"],
    "ours-bf16": ["ours.py", "bfloat16"],
    "rllib": ["rllib.py"],
    "parl221": ["parl221.py"],
    "floor": ["floor.py"],
}
OURS = ("ours", "ours-bf16")
TARGETS = {
    ("frames", "ours"): {"rllib": 1.4, "parl221": 1.8},
    ("frames", "ours-bf16"): {"rllib": 2.0},
    ("cartpole", "ours"): {"rllib": 15.0, "parl221": 1.3},
}


def rates(contender: str, python: str, task: str, warm_up_s: float, seconds: float) -> dict[str, float] | None:
    """Return one run's rates; print the reason and return None if the run fails."""
    script, *arguments = SCRIPTS[contender]
    times = [str(warm_up_s), str(seconds)]
    command = [python, "-W", "ignore", str(HERE / "contenders" / script), task, *times, *arguments]
    counts = tempfile.TemporaryDirectory()
    mark = f"impala {contender} {os.getpid()} {time.time_ns()}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: mark, COUNTS: counts.name}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180 + 5 * seconds)
    except subprocess.TimeoutExpired:
        print(f"{contender} did not end", file=sys.stderr)
        return None
    finally:
        end_all(mark)
        counts.cleanup()
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"sampled"')]
    if not lines:
        print(f"{contender} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(lines[-1])
    print(f"{task} {contender}: {found}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Environment steps per second of actors and a learner.")
    parser.add_argument("--tasks", default=",".join(TASKS), help="which, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each contender")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of warm-up")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds to measure")
    parser.add_argument(
        "--python", action="append", default=[], help="contender=interpreter; contenders without one are skipped"
    )
    parser.add_argument("--json", type=Path, help="file for the medians, by task and contender")
    options = parser.parse_args()
    medians: dict[str, dict[str, dict[str, float]]] = {}
    pythons = dict.fromkeys([*OURS, "floor"], sys.executable) | dict(each.split("=", 1) for each in options.python)
    for task in options.tasks.split(","):
        names = [name for name in SCRIPTS if name in pythons and (TASKS[task].images or name != "ours-bf16")]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name, turns in found.items():
                if (turn := rates(name, pythons[name], task, options.warm_up, options.seconds)) is not None:
                    turns.append(turn)
        medians[task] = {name: _medians(turns) for name, turns in found.items() if turns}
        print(_table(task, medians[task]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(medians, indent=1) + "\n")


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {kind: statistics.median(turn[kind] for turn in turns) for kind in ("sampled", "trained", "cpu_ms")}


def _table(task: str, median: dict[str, dict[str, float]]) -> str:
    """Return the table of all rates, and of ours relative to each."""
    ours = [name for name in OURS if name in median]
    head = [TASKS[task].title, "sampled/s", "trained/s", *(f"{name} / it (target)" for name in ours)]
    lines = ["", _row([*head, "CPU ms / 1000 steps"]), _row(["---"] * (len(head) + 1))]
    for name, figures in median.items():
        cells = [name, f"{figures['sampled']:,.0f}", f"{figures['trained']:,.0f}"]
        for one in ours:
            target = TARGETS.get((task, one), {}).get(name)
            cells.append(f"{median[one]['trained'] / figures['trained']:.2f}" + (f" ({target})" if target else ""))
        lines.append(_row([*cells, f"{figures['cpu_ms']:.1f}"]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
