"""The child process of `speed.py`, which is prepared for a case and runs it on request."""

import sys
import time
from collections.abc import Callable, Mapping

__all__ = ["AGENTS", "BATCH", "CHOICES", "EPISODES", "HIDDEN", "OBS_DIM", "ROWS", "Run", "serve"]

Run = Callable[[int], None]

AGENTS, OBS_DIM, CHOICES, STEPS = 3, 18, 5, 25  # of simple_spread_v3
HIDDEN, BATCH, EPISODES, ROWS = 64, 1024, 32, 3_200
"""Units of each of two layers or of a GRU; batch sizes: transitions of MADDPG, episodes of QMIX, steps of MAPPO."""


def serve(cases: Mapping[str, Callable[[], Run]]) -> None:
    """Prepare the case on the command line, and answer each number of runs with its CPU seconds."""
    make = cases.get(sys.argv[1])
    if make is None:
        print("lacks", flush=True)
        return
    run = make()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.process_time()
        run(int(line))
        print(time.process_time() - began, flush=True)
