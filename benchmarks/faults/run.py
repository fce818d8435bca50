"""The time until each fault is known, and its target.

PYTHONPATH=tests python benchmarks/faults/run.py    about five minutes, mostly waiting for the limit of silence
PYTHONPATH=tests python benchmarks/faults/run.py --limit 3    with another limit of silence, in seconds
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import events
from events import Outcome

import parl_remote as parl
from parl_remote.testing import LoopbackCluster


def in_cluster(event: Callable[..., Iterator[Outcome]], *arguments: float, **options: Any) -> Iterator[Outcome]:
    """Measure an event in its own cluster, to which this program is connected."""
    with LoopbackCluster(1, cpus=2, **options) as cluster:
        cluster.connect()
        try:
            yield from event(cluster, *arguments)
        finally:
            parl.disconnect()


def all_events(limit_s: float, home: Path) -> Iterator[Outcome]:
    yield from in_cluster(events.killed_actor)
    yield from events.killed_actor_here()
    yield from in_cluster(events.killed_worker)
    yield from in_cluster(events.killed_driver)
    yield from events.killed_driver_here()
    yield from in_cluster(events.killed_master)
    for event in (events.stopped_actor, events.stopped_worker, events.cut):
        yield from in_cluster(event, limit_s, liveness_limit_s=limit_s)
    yield from events.bad_line(home)
    yield from in_cluster(events.memory)
    yield from events.full_disk()
    yield from events.stopped_cluster()


def row(outcome: Outcome) -> str:
    if outcome.target_s is None or outcome.seconds is None:
        verdict = "" if outcome.good else "**wrong**"
    else:
        verdict = "met" if outcome.good and outcome.seconds <= outcome.target_s else "**missed**"
    seconds = "" if outcome.seconds is None else f"{outcome.seconds:.3f}"
    target = "" if outcome.target_s is None else f"<= {outcome.target_s:g}"
    return f"| {outcome.what} | {seconds} | {target} | {verdict} | {outcome.said.replace('|', '/')} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds of silence after which a peer is lost")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}, limit of silence {options.limit:g} s\n")
    print("| event | seconds | target | | what was said |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/tmp") as home:
        for outcome in all_events(options.limit, Path(home)):
            print(row(outcome), flush=True)


if __name__ == "__main__":
    main()
