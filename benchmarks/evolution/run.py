"""The table of evolution: what it costs, beside pycma, cmaes, evosax, evotorch and noise-table code, in one run.

    python benchmarks/evolution/run.py                        everything: an hour on a quiet machine
    python benchmarks/evolution/run.py --quick                small sizes, a few minutes
    python benchmarks/evolution/run.py --only generations cma_generations

One thread for everybody. Everyone gets short turns, one after the other; the best turn counts.
"""

import argparse
import os
import platform
import sys

SECTIONS = {
    "imports": "sampling:imports",
    "rates": "sampling:rates",
    "sums": "sampling:sums",
    "add_noise": "sampling:add_noise",
    "generations": "generations:generations",
    "computed": "generations:computed",
    "first": "generations:first",
    "memory": "generations:memory",
    "cma_generations": "cma_rows:generations",
    "cma_evaluations": "cma_evaluations:evaluations",
    "cartpole": "cartpole:cartpole",
    "log": "storage:speeds",
    "damage": "storage:damage",
    "stale": "stale:stale",
    "pools": "pools:pools",
}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures parl-evokit beside its peers and prints a table in Markdown.",
        epilog=f"Parts: {', '.join(SECTIONS)}. Ratios are ours to the best peer's; below 1 is better.",
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="PART", help="these parts (see below)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few seeds")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time, for a machine with other work"
    )
    arguments = parser.parse_args()
    if not ONE_THREAD.items() <= os.environ.items():  # these are read when libraries are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})

    import timing

    timing.use_clock(arguments.clock)
    versions = []
    for name in ("numpy", "cma", "cmaes", "evosax", "evotorch", "torch"):
        try:
            versions.append(f"{name} {__import__('importlib.metadata').metadata.version(name)}")
        except ImportError:
            versions.append(f"{name} missing")
    print(f"Python {platform.python_version()}, {', '.join(versions)}; {arguments.clock} clock; load {timing.load()}\n")
    table = timing.Table()
    table.head()
    for part in arguments.only or SECTIONS:
        module, _, function = SECTIONS[part].partition(":")
        getattr(__import__(module), function)(table, arguments.quick)
    print(f"\nLoad at the end: {timing.load()}")


if __name__ == "__main__":
    main()
