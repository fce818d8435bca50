"""An hour of random faults under load: are calls lost or duplicated, and do processes, files or memory remain or grow?

python benchmarks/soak/run.py --seconds 3600        writes RESULTS.md, samples.csv and events.csv beside itself
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos import Chaos
from ledger import Totals
from programs import Program

from parl_remote.testing import LoopbackCluster, Process, processes_with

MIB = 2**20
MARKER = "PARL_SOAK"
SAMPLE_S = 10.0
SETTLE_S = 300.0  # growth is measured after this time, when pools and caches are full
GROWTH_MIB = 10.0
GROWTH_DESCRIPTORS = 8
LEAST_MINUTES = 10.0  # a process that was watched for less shows how many actors it had, rather than growth
# The values that glibc begins with. Unless they are set, it raises them when a larger block is freed, and then keeps
# megabytes of free memory in the arena of each thread, which looks like growth for an hour.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


class Table:
    """A CSV file that is written during the run."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", newline="")  # noqa: SIM115  # closed with the run
        self._writer: csv.DictWriter[str] | None = None

    def add(self, **row: Any) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()


class Growth:
    """Memory and descriptors of each long-lived process, from `SETTLE_S` after its start."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[tuple[float, float, int]]] = {}

    def look(self, name: str, process: Process, now: float) -> tuple[float, int]:
        memory, descriptors = process.own_bytes / MIB, process.descriptors
        self._seen.setdefault((name, process.pid), []).append((now, memory, descriptors))
        return memory, descriptors

    def rows(self) -> Iterator[tuple[str, float, float, float, int, int]]:
        """Return name, observed minutes, and MiB and descriptors: medians of the first and last fifth of that time."""
        for (name, _), looks in self._seen.items():
            settled = [look for look in looks if look[0] - looks[0][0] >= SETTLE_S]
            fifth = len(settled) // 5
            if fifth >= 3:
                first, last = settled[:fifth], settled[-fifth:]
                yield (
                    name,
                    (settled[-1][0] - settled[0][0]) / 60,
                    sorted(one[1] for one in first)[fifth // 2],
                    sorted(one[1] for one in last)[fifth // 2],
                    sorted(one[2] for one in first)[fifth // 2],
                    sorted(one[2] for one in last)[fifth // 2],
                )


class Soak:
    """The run."""

    def __init__(self, options: argparse.Namespace, home: Path) -> None:
        self._options = options
        self._home = home
        self._stopping = threading.Event()
        self._variables = {
            MARKER: home.name,
            "TMPDIR": str(home),
            "OMP_NUM_THREADS": "1",
            "PARL_FORCE_TCP": "0",
            **MALLOC,
        }
        os.environ.update(self._variables)
        self.totals = Totals()
        self.growth = Growth()
        self.samples = Table(options.out / "samples.csv")
        self.events = Table(options.out / "events.csv")
        self.failures: list[str] = []
        self.chaos: Chaos | None = None
        self.seconds = 0.0

    def run(self) -> None:
        with self._cluster() as cluster:
            over_tcp = {**cluster.environment, "PARL_FORCE_TCP": "1"}
            programs = [
                Program("far", cluster.address, 4, self._home, over_tcp),
                Program("near", cluster.address, 3, self._home, over_tcp if self._options.tcp else cluster.environment),
                Program("private", "local", 3, self._home, {}),
                Program("mortal", cluster.address, 2, self._home, over_tcp),
            ]
            for program in programs:
                program.start()
            self.chaos = Chaos(cluster, programs, self._options.seed, self._stopping)
            watching = threading.Thread(target=self._watch, args=(cluster, programs))
            watching.start()
            try:
                self._strike(self.chaos)
            finally:
                self._stopping.set()
                watching.join()
                for program in programs:
                    if status := program.end():
                        self.failures.append(f"program {program.name} ended with status {status}; see its log")
                self._settle(programs, over=True)
            for program in programs:
                shutil.copy(program.log, self._options.out / f"{program.name}.log")
            shutil.copy(cluster.master._log, self._options.out / "master.log")
        self._look_for_remains()

    @contextmanager
    def _cluster(self) -> Iterator[LoopbackCluster]:
        cluster = LoopbackCluster(3, cpus=4, liveness_limit_s=5.0, variables=self._variables)
        try:
            yield cluster
        finally:
            try:
                cluster.close()
            except RuntimeError as error:
                self.failures.append(str(error))

    def _strike(self, chaos: Chaos) -> None:
        dice = random.Random(self._options.seed)
        began = due = time.monotonic()
        while True:
            due += dice.expovariate(1 / self._options.every)  # a lasting fault does not delay the next ones
            if due > began + self._options.seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            struck = time.monotonic()
            chaos.kill_masters = struck - began < self._options.seconds / 3  # then its memory is observed
            before = chaos.counts.copy()
            said = chaos.strike()
            (what,) = [*(chaos.counts - before), "no target"][:1]
            lasted = time.monotonic() - struck
            self.events.add(at_s=round(struck - began, 2), what=what, detail=said, lasted_s=round(lasted, 2))
        self.seconds = time.monotonic() - began

    def _watch(self, cluster: LoopbackCluster, programs: list[Program]) -> None:
        began = time.monotonic()
        while not self._stopping.wait(SAMPLE_S):
            now = time.monotonic() - began
            self._settle(programs, over=False)
            watched = {"master": cluster.master, **cluster.nodes}
            row: dict[str, Any] = {"at_s": round(now, 1)}
            for name, process in (
                *((name, member.process) for name, member in watched.items()),
                *((program.name, program.process) for program in programs),
            ):
                memory, descriptors = self.growth.look(name, process, now)
                row |= {f"{name}_mib": round(memory, 1), f"{name}_descriptors": descriptors}
            everyone = processes_with(MARKER, self._home.name)
            row["processes"] = len(everyone)
            row["segments"] = sum(process.shared_segments for process in everyone)
            row["dev_shm"] = len(shared_files())
            row["socket_folders"] = len(list(self._home.glob("parl-*")))
            self.samples.add(**row, **self.totals.as_row())

    def _settle(self, programs: list[Program], *, over: bool) -> None:
        for program in programs:
            for folder, killed in list(program.folders.items()):  # a killed program may have been restarted
                if killed and not over:
                    continue  # its actors may be ending
                for calls in folder.glob("*.calls"):
                    if not self.totals.settle(calls, caller_was_killed=killed) and over:
                        self.failures.append(f"{program.name} did not settle the calls of {calls.name}")

    def _look_for_remains(self) -> None:
        for process in processes_with(MARKER, self._home.name):
            if process.pid != os.getpid():
                self.failures.append(f"left behind: {process!r}")
        for folder in self._home.glob("parl-*"):
            self.failures.append(f"left behind: {folder.name} with {sorted(os.listdir(folder))}")


def shared_files() -> set[str]:
    """Return the files in /dev/shm without semaphores, which belong to other programs of this host."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def report(soak: Soak, options: argparse.Namespace, shm_before: set[str]) -> tuple[str, bool]:
    totals, chaos = soak.totals, soak.chaos
    if chaos is None:
        return "It did not start.\n", False
    growing = []
    table = []
    for name, minutes, first, last, few, more in soak.growth.rows():
        grows = last - first > GROWTH_MIB or more - few > GROWTH_DESCRIPTORS
        verdict = "too short" if minutes < LEAST_MINUTES else "**grows**" if grows else "flat"
        growing += [name] * (verdict == "**grows**")
        table.append(f"| {name} | {minutes:.0f} | {first:.1f} | {last:.1f} | {few} | {more} | {verdict} |")
    left = sorted(shared_files() - shm_before)
    command = f"python benchmarks/soak/run.py --seconds {options.seconds:g} --every {options.every:g}"
    lines = [
        "# Soak\n",
        f"`{command} --seed {options.seed}`, "
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{soak.seconds / 60:.1f} minutes, {chaos.counts.total()} faults, one every "
        f"{soak.seconds / max(1, chaos.counts.total()):.1f} s.\n",
        "| calls | |\n| --- | --- |",
        *(f"| {name.replace('_', ' ')} | {value} |" for name, value in totals.as_row().items() if name != "faults"),
        *(
            f"| {name} | {'**' if value else ''}{value}{'**' if value else ''} |"
            for name, value in totals.faults.items()
        ),
        "\n| fault | times |\n| --- | --- |",
        *(f"| {name} | {times} |" for name, times in chaos.counts.most_common()),
        "\n| process | minutes watched | MiB, first fifth | MiB, last fifth | descriptors, first | last | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *table,
        "",
        f"New files in /dev/shm: {len(left)}. " + (f"Growing: {', '.join(growing)}." if growing else "Nothing grows."),
        "",
        *(f"- **{failure}**" for failure in soak.failures),
    ]
    good = not (soak.failures or totals.faults.total() or growing)
    lines.append("**Passed.**" if good else "**Failed.**")
    return "\n".join(lines) + "\n", good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tcp", action="store_true", help="use TCP for every program with a shared cluster")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    shm_before = shared_files()
    home = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    soak = Soak(options, home)
    try:
        soak.run()
    finally:
        text, good = report(soak, options, shm_before)
        (options.out / "RESULTS.md").write_text(text)
        print(text)
        if good:
            shutil.rmtree(home, ignore_errors=True)
        else:
            print(f"its files are kept in {home}")
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
