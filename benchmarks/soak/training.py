"""Train an example with remote actors under random faults: does it finish?

python benchmarks/soak/training.py examples/impala/train.py --actors 4        options behind the path are the example's
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time

from chaos import Chaos

from parl_remote.testing import LoopbackCluster


def _set_at_the_end(running: subprocess.Popen[bytes], over: threading.Event) -> None:
    running.wait()
    over.set()


def main() -> int:
    """Run the example, inject faults, print them with the outcome, and return the example's exit status."""
    parser = argparse.ArgumentParser(description="Random faults of a cluster while an example trains on it.")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two faults; some have no target here")
    parser.add_argument("--first", type=float, default=6.0, help="seconds before the first fault")
    parser.add_argument("--longest", type=float, default=900.0, help="seconds after which a run counts as hung")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("example", help="its train.py, which takes --address")
    parser.add_argument("own", nargs=argparse.REMAINDER, help="options of the example")
    options = parser.parse_args()
    over = threading.Event()
    with LoopbackCluster(2, cpus=3, liveness_limit_s=3.0) as cluster:
        command = [sys.executable, options.example, "--address", cluster.address, *options.own]
        running = subprocess.Popen(command, env={**os.environ, **cluster.environment, "OMP_NUM_THREADS": "1"})
        threading.Thread(target=_set_at_the_end, args=(running, over), daemon=True).start()
        began = time.monotonic()
        chaos = Chaos(cluster, [], options.seed, over)
        pause_s = options.first
        while not over.wait(pause_s) and time.monotonic() - began < options.longest:
            if said := chaos.strike():
                print(f"{time.monotonic() - began:6.1f} s  {said}", flush=True)
            pause_s = options.every
        status = running.poll()
        if status is None:
            running.kill()
            running.wait()
    faults = ", ".join(f"{count} x {fault}" for fault, count in chaos.counts.most_common())
    print(f"{'hung' if status is None else f'exit status {status}'} after {time.monotonic() - began:.0f} s; {faults}")
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
