"""Stops the clusters of a run directory when whoever started it lets go of its standard input, on purpose or by dying.

    test process --pipe, never written to--> guard --end of file--> what `xparl stop` does

So nothing is left behind when a test run is killed.
"""

from __future__ import annotations

import signal
import sys

from parl_remote.cli.stopping import stop_all
from parl_remote.config import environment
from parl_remote.node.run_files import RunFiles

__all__ = ["main"]


def main() -> None:
    """Wait for the end of standard input, then stop what is on record."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the end of file is what counts
    sys.stdin.buffer.read()
    found = environment()
    stop_all(RunFiles(found.run_dirs), (), found.limits)


if __name__ == "__main__":
    main()
