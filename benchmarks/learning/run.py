"""Train every gate's agent with several seeds, and write a table and curves.

    python benchmarks/learning/run.py --gates ppo-cartpole dqn-cartpole --backend torch --jobs 2

A finished run leaves one file, `results/<gate>/<backend>-<seed>.json`, and is not repeated, so that a table can grow
step by step, and an interrupted program continues. Several such programs may use one folder. README.md has the
protocol.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import FrameType

os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads

from gates import GATES
from one_run import die_with_parent, is_done, result_file, run_one
from progress import Progress
from side_by_side import Outcome, Run, run_all

HERE = Path(__file__).parent


def missing(folder: Path, gates: Sequence[str], backend: str, seeds: Sequence[int] | None) -> list[Run]:
    """Return the runs without a result, seed by seed, so that all gates advance together.

    Args:
        folder: Folder of all results.
        gates: Keys of the gates to run.
        backend: torch, paddle, or sb3 for the same recipe in Stable-Baselines3.
        seeds: Seeds of the runs; None for those of the row of each gate.
    """
    wanted = {gate: GATES[gate].seeds(backend) if seeds is None else tuple(seeds) for gate in gates}
    return [
        Run(gate, backend, seed)
        for seed in sorted(set(chain.from_iterable(wanted.values())))
        for gate in gates
        if seed in wanted[gate] and not is_done(result_file(folder, gate, backend, seed))
    ]


def main() -> int:
    """Make the missing runs, each in a fresh process, then write table and curves."""
    options = _options()
    signal.signal(signal.SIGTERM, _end)
    if options.one:
        return _one(options)
    runs = [] if options.only_report else missing(options.results, options.gates, options.backend, options.seeds)
    minutes = sum(GATES[run.gate].minutes for run in runs)
    print(f"{len(runs)} runs of about {minutes / 60:.1f} CPU hours on torch in all", flush=True)
    progress = Progress(runs, options.results, options.jobs)
    shared = ["--share", str(options.share), "--results", str(options.results.resolve())]
    try:
        run_all(runs, shared, options.jobs, progress.changed, progress.tick)
    except KeyboardInterrupt:
        print("\ninterrupted; finished runs are kept, and the same command continues with the others", flush=True)
        return 130
    from report import write

    print(f"\n{write(options.results)}")
    taken = [str(run) for run in runs if run.outcome is Outcome.TAKEN]
    failed = [str(run) for run in runs if run.outcome is Outcome.FAILED]
    if taken:
        print("\nin progress in another process:\n  " + "\n  ".join(taken))
    if failed:
        print("\nfailed, see above:\n  " + "\n  ".join(failed))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", nargs="+", choices=sorted(GATES), default=sorted(GATES), metavar="GATE")
    parser.add_argument("--backend", choices=("torch", "paddle", "sb3"), default="torch")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="seeds of the runs; default: those of the rows, from 100 on"
    )
    parser.add_argument("--jobs", type=_positive, default=1, help="number of parallel runs, each on one core")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--share", type=_share, default=1.0, help="share of the steps; below 1 only for a trial run")
    parser.add_argument("--only-report", action="store_true", help="run nothing")
    parser.add_argument("--one", nargs=2, metavar=("GATE", "SEED"), help="train one agent in this process")
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return number


def _one(options: argparse.Namespace) -> int:
    if options.until_stdin_closes:
        die_with_parent()
    gate, seed = options.one
    return run_one(
        options.results,
        gate,
        options.backend,
        int(seed),
        options.share,
        lambda share: print(f"progress {share:.3f}", flush=True),
    )


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what signal calls
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
