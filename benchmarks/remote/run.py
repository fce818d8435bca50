"""Remote actors compared with Ray, a pipe and pyzmq: runs every row for each peer in turn and writes a Markdown table.

    hatch run base:python benchmarks/remote/run.py [--python PEER=PATH ...] [--rounds 3] [--only ROW ...]

Each measurement runs in a fresh process, and the peers alternate within a round, so that the machine's load affects
all. The latency of calls is measured in short windows, in which the processes of two or three peers alternate, because
a machine may have several speeds for the same code. The table shows the medians over rounds and windows. See the README
beside this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import machine
import procs
from measures import MEASURES, WINDOWED
from rows import ROWS, ROWS_OF
from table import render

HERE = Path(__file__).parent
PEERS = ("parl", "pipe", "zmq", "ray", "parl221", "dask")
BY_HAND = PEERS[:3]  # peers that this environment always has
LIMIT_S = 300.0  # limit of one measurement; the longest takes a minute on two idle cores
Values = dict[str, float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", help=f"peers, of {','.join(PEERS)} (default: {','.join(BY_HAND)} and all with --python)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each peer (default: 3)")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows or measurements; --list names them")
    parser.add_argument("--list", action="store_true", help="list measurements and rows, and exit")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="interpreter of a peer, for example ray=ray-env/bin/python; may be repeated",
    )
    parser.add_argument(
        "--windows", type=int, default=12, help="number of alternating windows of each peer (default: 12)"
    )
    parser.add_argument("--json", type=Path, help="file for the medians, by row and peer")
    parser.add_argument(
        "--count", type=int, default=10**8, help="number up to which the counting row counts (default: 1e8)"
    )
    parser.add_argument("--output", type=Path, help="file for the table (default: print it only)")
    parser.add_argument("--note", default="", help="note for the table, such as other load of the machine")
    chosen = parser.parse_args()
    chosen.pythons = dict(given.split("=", 1) for given in chosen.python if "=" in given)
    if len(chosen.pythons) < len(chosen.python):
        parser.error(f"--python takes PEER=PATH once for each peer, not {', '.join(chosen.python)}")
    everybody = [peer for peer in PEERS if peer in BY_HAND or peer in chosen.pythons]
    chosen.peers = chosen.peers.split(",") if chosen.peers else everybody
    if unknown := {*chosen.peers, *chosen.pythons} - set(PEERS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return chosen


def wanted(only: list[str] | None) -> list[str]:
    """Return the measurements that these names of rows and measurements select."""
    if not only:
        return [*WINDOWED, *MEASURES]
    measures = [name for name, rows in ROWS_OF.items() if name in only or set(rows) & set(only)]
    if unknown := set(only) - set(WINDOWED) - set(MEASURES) - {row.key for row in ROWS}:
        sys.exit(f"no such row or measurement: {', '.join(sorted(unknown))}; see --list")
    return measures


def process_environment(python: str, mark: str) -> dict[str, str]:
    """Return the environment variables of a measurement, whose processes are identified by the mark."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", procs.MARK: mark}
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)  # these paths are for this environment only
    return environment


class Alternating:
    """A measurement of one peer, paused between windows.

    Raises:
        RuntimeError: The peer failed to start, or ended.
    """

    def __init__(self, python: str, peer: str, name: str) -> None:
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [python, str(HERE / "driver.py"), peer, name],
            env=process_environment(python, self._mark),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._answer()
        except BaseException:
            self.end()
            raise

    def window(self) -> Values:
        """Measure one window."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        values: Values = self._answer()["values"]
        return values

    def end(self) -> None:
        """End the peer with all its processes."""
        self._process.kill()
        self._process.wait()
        procs.end_all(self._mark)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # some peers print when they are imported
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError("the peer ended before it answered")


def groups(peers: list[str]) -> list[list[str]]:
    """Return the groups of peers whose windows alternate: ours with those by hand, and ours with each other peer."""
    by_hand = [peer for peer in peers if peer in BY_HAND]
    others = [["parl", peer] if "parl" in peers else [peer] for peer in peers if peer not in BY_HAND]
    return [by_hand, *others] if by_hand else others


def alternate(pythons: dict[str, str], peers: list[str], name: str, windows: int) -> dict[str, list[Values]]:
    """Return the windows of each peer of a group, measured in turns.

    Raises:
        RuntimeError: A peer failed to start, or ended.
    """
    running: dict[str, Alternating] = {}
    try:
        for peer in peers:
            running[peer] = Alternating(pythons[peer], peer, name)
        found: dict[str, list[Values]] = {peer: [] for peer in peers}
        for _ in range(windows):
            for peer, one in running.items():
                found[peer].append(one.window())
        return found
    finally:
        for one in running.values():
            one.end()


def measure(python: str, peer: str, name: str, count: int) -> dict[str, Any]:
    """Run one measurement, and return its `values` or the reason of its failure."""
    mark = uuid.uuid4().hex
    environment = process_environment(python, mark)
    command = [python, str(HERE / "driver.py"), peer, name, "--count", str(count)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"failed": f"no end within {LIMIT_S:g} s"}
    except (subprocess.CalledProcessError, json.JSONDecodeError, IndexError) as error:
        lines = (getattr(error, "stderr", "") or "").strip().splitlines()
        return {"failed": lines[-1] if lines else f"it ended with {getattr(error, 'returncode', 'no answer')}"}
    finally:
        procs.end_all(mark)
    return answer


def progress(jobs: list[Any]) -> Iterator[Any]:
    try:
        from tqdm import tqdm
    except ImportError:
        for i, job in enumerate(jobs):
            print(f"{i + 1}/{len(jobs)} {job}", file=sys.stderr)
            yield job
        return
    with tqdm(jobs) as bar:
        for job in bar:
            bar.set_description(f"{job[1]} {job[2]}")
            yield job


def main() -> None:
    chosen = arguments()
    if chosen.list:
        for name, rows in ROWS_OF.items():
            print(f"{name}: {', '.join(rows)}")
        return
    pythons = {peer: chosen.pythons.get(peer, sys.executable) for peer in chosen.peers}
    names = wanted(chosen.only)
    machine.compile_sources()
    before = machine.load()
    jobs = [
        (number, peer, name)
        for number in range(chosen.rounds)
        for name in names
        if name in MEASURES
        for peer in chosen.peers
    ]
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    reasons: dict[tuple[str, str], str] = {}
    try:
        for name in (name for name in names if name in WINDOWED):
            for group in groups(chosen.peers):
                try:
                    windows = alternate(pythons, group, name, chosen.windows)
                except RuntimeError as error:
                    reasons[" and ".join(group), f"{name}, failed"] = str(error)
                    continue
                for peer in group if group[-1] in BY_HAND else group[-1:]:  # our windows alternate with the pipe's
                    for values in windows[peer]:
                        for key, value in values.items():
                            found[key][peer].append(value)
        for number, peer, name in progress(jobs):
            answer = measure(pythons[peer], peer, name, chosen.count)
            for key, value in answer.get("values", {}).items():
                found[key][peer].append(value)
            if reason := answer.get("not_offered"):
                reasons[peer, name] = reason
            elif reason := answer.get("failed"):
                reasons[peer, f"{name}, round {number + 1}, failed"] = reason
    except KeyboardInterrupt:
        reasons["run", "interrupted"] = "the table has the results until then"
    medians = {key: {peer: statistics.median(all_) for peer, all_ in by_peer.items()} for key, by_peer in found.items()}
    conditions = [
        *machine.describe(pythons),
        f"{chosen.rounds} round{'s' * (chosen.rounds != 1)}, {chosen.windows} windows; load average before {before}, "
        f"after {machine.load()}. "
        f"{chosen.note}".strip(),
    ]
    text = render(chosen.peers, medians, conditions, reasons)
    print(text)
    if chosen.output is not None:
        chosen.output.write_text(text)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    main()
