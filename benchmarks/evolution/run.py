"""All measurements of evolution, compared with pycma, cmaes, evosax, evotorch and noise-table code, in one run.

    python benchmarks/evolution/run.py                        everything: an hour on a quiet machine
    python benchmarks/evolution/run.py --quick                small sizes, a few minutes
    python benchmarks/evolution/run.py --list                 the parts
    python benchmarks/evolution/run.py --only generations cma_generations
    python benchmarks/evolution/run.py --skip cartpole cma_evaluations --clock cpu --output table.md

All contenders have one thread and take short turns, one after the other; the best turn counts.
"""

import argparse
import contextlib
import importlib
import io
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, TextIO

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
    "long_logs": "storage:long_logs",
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compares parl-evokit with its peers and prints a table in Markdown.",
        epilog=f"Parts: {', '.join(SECTIONS)}. Ratios are ours to the best peer's; below 1 is better.",
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="PART", help="these parts (see below)")
    parser.add_argument("--skip", nargs="+", choices=SECTIONS, metavar="PART", default=[], help="all but these parts")
    parser.add_argument("--list", action="store_true", help="print the parts and what they measure, and stop")
    parser.add_argument("--quick", action="store_true", help="small sizes and few seeds")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time, for a machine with other work"
    )
    parser.add_argument("--output", metavar="FILE", help="also write the table to this file, line by line")
    arguments = parser.parse_args()
    if not ONE_THREAD.items() <= os.environ.items():  # libraries read these variables when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})

    if arguments.list:
        for part in SECTIONS:
            function = function_of(part)
            text = function.__doc__ or sys.modules[function.__module__].__doc__ or ""
            print(f"{part:16} {text.partition(chr(10))[0]}")
        return 0
    with contextlib.ExitStack() as stack:
        if arguments.output:
            copy = stack.enter_context(open(arguments.output, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(Both(sys.stdout, copy)))
        return measure([part for part in arguments.only or SECTIONS if part not in arguments.skip], arguments)


def measure(parts: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run these parts; a failure is reported, and the others still run."""
    import timing

    timing.use_clock(arguments.clock)
    versions = []
    for name in ("numpy", "cma", "cmaes", "evosax", "evotorch", "torch"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except ImportError:
            versions.append(f"{name} missing")
    print(f"Python {platform.python_version()}, {', '.join(versions)}; {arguments.clock} clock; load {timing.load()}\n")
    table, failed = timing.Table(), []
    table.head()
    for part in parts:
        try:
            function_of(part)(table, arguments.quick)
        except Exception:
            traceback.print_exc()
            failed.append(part)
    print(f"\nLoad at the end: {timing.load()}")
    if failed:
        print(f"\nFailed: {', '.join(failed)}")
    return 1 if failed else 0


def function_of(part: str) -> Callable[[Any, bool], None]:
    """Return the function that measures a part."""
    module, _, function = SECTIONS[part].partition(":")
    found: Callable[[Any, bool], None] = getattr(importlib.import_module(module), function)
    return found


class Both(io.TextIOBase):
    """A stream that writes to two streams."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
            stream.flush()
        return len(text)


if __name__ == "__main__":
    raise SystemExit(main())
