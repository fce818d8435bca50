"""Do the algorithms learn? Trains every gate's agent over seeds, and writes a table and curves.

    python benchmarks/learning/run.py --gates ppo-cartpole dqn-cartpole --seeds 5 --backend torch

A run leaves one file, `results/<gate>/<backend>-<seed>.json`, when it is over; what is there is not run again, so a
table can grow over several evenings, and an interrupted program goes on where it was. README.md has the protocol.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads

from gates import GATES

HERE = Path(__file__).parent


def result_file(folder: Path, gate: str, backend: str, seed: int) -> Path:
    """Where the result of a run lies."""
    return folder / gate / f"{backend}-{seed}.json"


def missing(folder: Path, gates: Sequence[str], backend: str, seeds: Sequence[int]) -> list[tuple[str, int]]:
    """The runs that have no result yet, seed by seed, so that all gates grow together."""
    return [(gate, seed) for seed in seeds for gate in gates if not result_file(folder, gate, backend, seed).exists()]


def run_one(folder: Path, gate: str, backend: str, seed: int, share: float) -> None:
    """Train one agent and write its result, under its name only when it is complete."""
    import parl

    parl.set_backend(backend)
    from recipes import RECIPES, logged, train

    load, began = os.getloadavg()[0], time.time()
    cpu = time.process_time()
    trained = train(gate, seed, share=share)
    result: dict[str, Any] = {
        "gate": gate,
        "backend": backend,
        "seed": seed,
        "steps": trained.steps,
        "returns": trained.returns,
        "curve": trained.curve,
        "wall_s": round(time.time() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "load_before": round(load, 1),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("parl-core", f"parl-{backend}", "gymnasium", "numpy")},
        "python": platform.python_version(),
        "source": RECIPES[gate].source,
        "recipe": repr(RECIPES[gate]),
    }
    if GATES[gate].relative_to == "data":
        result["data_return"] = float(logged(GATES[gate].env).episode_returns.mean())
    target = result_file(folder, gate, backend, seed)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(result) + "\n")
    partial.replace(target)


def main() -> int:
    """Run what is missing, each in a fresh process, then write table and curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", nargs="+", choices=sorted(GATES), default=sorted(GATES), metavar="GATE")
    parser.add_argument("--backend", choices=("torch", "paddle"), default="torch")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this - 1")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps; below 1 only to see that it runs")
    parser.add_argument("--only-report", action="store_true", help="run nothing")
    parser.add_argument("--one", nargs=2, metavar=("GATE", "SEED"), help="train one agent in this process")
    options = parser.parse_args()
    if options.one:
        run_one(options.results, options.one[0], options.backend, int(options.one[1]), options.share)
        return 0
    todo = [] if options.only_report else missing(options.results, options.gates, options.backend, range(options.seeds))
    failed = []
    for number, (gate, seed) in enumerate(todo, 1):
        print(f"{number}/{len(todo)} {gate}, {options.backend}, seed {seed}", flush=True)
        arguments = ["--one", gate, str(seed), "--backend", options.backend, "--share", str(options.share)]
        command = [sys.executable, __file__, *arguments, "--results", str(options.results)]
        if subprocess.run(command, check=False).returncode:
            failed.append(f"{gate}, {options.backend}, seed {seed}")
    from report import write

    print(write(options.results))
    if failed:
        print("\nfailed, see above:\n  " + "\n  ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
