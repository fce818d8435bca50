"""The web monitor on a large cluster, and its cost for the master: simulated workers, a real monitor.

python benchmarks/cluster/monitor_scale.py --workers 1000 --seconds 60
"""

from __future__ import annotations

import argparse
import statistics
import time
import urllib.request
from pathlib import Path

import psutil
from scale import SLOTS, Program, Workers, cpu_s, master

from parl_remote._monitor.launch import MonitorSettings, start_monitor
from parl_remote._run_files import RunFiles

PATHS = {
    "page of the overview": "/",
    "API: totals": "/api/v1/cluster",
    "API: all nodes, short": "/api/v1/nodes/map",
    "API: 50 nodes with their last ten minutes": "/api/v1/nodes?spark=1&window=600",
    "API: 50 actors, largest first": "/api/v1/actors?sort=memory&order=desc",
    "API: 50 actors, filtered": "/api/v1/actors?q=actor&sort=class&page=100",
    "API: a day of the cluster": "/api/v1/cluster/history?window=86400",
    "metrics": "/metrics",
}
_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def took_ms(url: str) -> float:
    began = time.perf_counter()
    with _no_proxy.open(url, timeout=60) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1e3


def placements_ms(program: Program, seconds: float) -> list[float]:
    """Return the milliseconds of each of several leases."""
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        kept = list(program.leases)
        began = time.perf_counter()
        program.lease(1)
        times.append((time.perf_counter() - began) * 1e3)
        program.leases, one = kept, program.leases[-1:]
        single = Program.__new__(Program)
        single._channel, single.leases = program._channel, one
        single.release()
        time.sleep(0.02)
    return times


def quantiles(times: list[float]) -> str:
    return f"{statistics.median(times):7.1f} ms median, {sorted(times)[int(len(times) * 0.99)]:7.1f} ms at 99 %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for which each state is measured")
    parser.add_argument("--port", type=int, default=18700)
    given = parser.parse_args()
    with master(given.port) as (cluster, found, process):
        simulated = Workers(cluster, given.workers, found.limits.heartbeat_interval_s, busy=True)
        program = Program(cluster)
        actors = given.workers * SLOTS - 10
        for _ in range(actors // 1000):
            program.lease(1000)
        program.lease(actors % 1000)
        ((directory, _),) = RunFiles(found.run_dir).clusters()
        print(f"{given.workers} workers, {actors} actors that all report every {found.limits.heartbeat_interval_s:g} s")

        before = cpu_s(process)
        alone = placements_ms(program, given.seconds)
        share = (cpu_s(process) - before) / given.seconds * 100
        print(f"without a monitor: master {share:5.1f} % of a core, one placement {quantiles(alone)}")

        url = start_monitor(
            MonitorSettings(f"127.0.0.1:{given.port}", str(directory), key_file=f"{directory}/key", with_cluster=True),
            found,
        )
        ((_, record),) = RunFiles(found.run_dir).monitors()
        monitor = psutil.Process(record.process.pid)
        before, own = cpu_s(process), cpu_s(monitor)
        beside = placements_ms(program, given.seconds)
        share = (cpu_s(process) - before) / given.seconds * 100
        print(f"with a monitor:    master {share:5.1f} % of a core, one placement {quantiles(beside)}")
        share = (cpu_s(monitor) - own) / given.seconds * 100
        print(f"the monitor:       {share:.1f} % of a core, {monitor.memory_info().rss / 2**20:.0f} MiB")
        for name, path in PATHS.items():
            print(f"  {name:45} {quantiles([took_ms(url + path) for _ in range(20)])}")
        print(Path(directory, "monitor.log").read_text(), end="")
        program.close()
        simulated.close()


if __name__ == "__main__":
    main()
