"""Plain functions compared with ProcessPoolExecutor, loky, mpire and Ray; writes a Markdown table.

    hatch run base:python benchmarks/remote/functions.py [--python PEER=PATH ...] [--rounds 3] [--only MEASUREMENT ...]

Each measurement runs in a fresh process, and the peers alternate within a round, so that the machine's load affects
all. Peers use the best of several chunk sizes, ours chooses its own. The table shows the medians over rounds.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import machine

HERE = Path(__file__).parent
PEERS = {
    "parl_functions": "parl",
    "process_pool": "ProcessPoolExecutor",
    "loky_pool": "loky",
    "mpire_pool": "mpire",
    "ray_tasks": "Ray",
}
ROWS = {
    "nothing": ("10,000 items that do nothing, pool started", 2.0),
    "cold": ("10,000 items that do nothing, with the start", 2.0),
    "millisecond": ("2,000 items of 1 ms", 0.95),
    "take": ("1,000 arrays of 1 MB there", 5.0),
    "echo": ("1,000 arrays of 1 MB there and back", 5.0),
    "kept": ("1,000 arrays of 1 MB there and back, all kept in a list", None),
    "first": ("start to the first result", None),
    "nested": ("4 maps of 100 items within a map, with the start", None),
}
LIMIT_S = 300.0


def measure(python: str, peer: str, name: str) -> dict[str, float] | str:
    """Return the values of one measurement, or the reason of its failure."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)  # these paths are for this environment only
    command = [python, str(HERE / "functions_driver.py"), peer, name]
    try:
        done = subprocess.run(
            command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:g} s"
    except subprocess.CalledProcessError as error:
        return (str(error.stderr).strip().splitlines() or ["it ended"])[-1]
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each peer (default: 3)")
    parser.add_argument("--only", nargs="+", metavar="MEASUREMENT", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="interpreter with the peer")
    parser.add_argument("--output", type=Path, help="file for the table (default: print it only)")
    parser.add_argument("--note", default="", help="note for the table")
    chosen = parser.parse_args()
    pythons = dict.fromkeys(("parl_functions", "process_pool"), sys.executable)
    pythons |= dict(given.split("=", 1) for given in chosen.python)
    machine.compile_sources()
    before = machine.load()
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    sizes: dict[tuple[str, str], object] = {}
    failed: dict[tuple[str, str], str] = {}
    jobs = [(name, peer) for _ in range(chosen.rounds) for name in chosen.only for peer in pythons]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # after Ctrl-C or SIGTERM, the table has the results until then
        for name, peer in jobs:
            values = measure(pythons[peer], peer, name)
            if isinstance(values, str):
                failed[name, peer] = values
                continue
            print(f"{peer} {name} {values[name]:.3g} s", file=sys.stderr, flush=True)
            found[name, peer].append(values[name])
            sizes[name, peer] = values.get("chunksize")
    heads = ["what, seconds", *(PEERS[peer] for peer in pythons), "times ProcessPoolExecutor", "target", ""]
    lines = ["# Plain functions: results", ""]
    lines += [f"- {line}" for line in machine.describe(pythons)]
    lines += [f"- {chosen.rounds} rounds; load average before {before}, after {machine.load()}. {chosen.note}".rstrip()]
    lines += ["", f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for name in chosen.only:
        text, target = ROWS[name]
        medians = {peer: statistics.median(found[name, peer]) for peer in pythons if found[name, peer]}
        cells = [
            f"{medians[peer]:.3g}" + (f" ({sizes[name, peer]})" if sizes.get((name, peer)) else "")
            if peer in medians
            else "-"
            for peer in pythons
        ]
        both = {"process_pool", "parl_functions"} <= medians.keys()
        gain = medians["process_pool"] / medians["parl_functions"] if both else float("nan")
        verdict = "" if target is None else "met" if gain >= target else "**missed**"
        aim = "" if target is None else f">= {target:g}"
        lines.append(f"| {' | '.join([text, *cells, f'{gain:.2f}', aim, verdict])} |")
    lines += ["", "In brackets: the chunk size that was best for the peer.", ""]
    lines += [f"- {PEERS[peer]}, {name}: {reason}" for (name, peer), reason in failed.items()]
    table = "\n".join(lines).rstrip() + "\n"
    print(table)
    if chosen.output is not None:
        chosen.output.write_text(table)


if __name__ == "__main__":
    main()
