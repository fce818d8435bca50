"""The `parl` command, which requires the extra `train` and reports if it is missing."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from parl_core._config import one_thread_unless_chosen

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    # The usual networks are small: on several threads they are slower, and much slower beside other programs.
    os.environ.update(one_thread_unless_chosen(os.environ))
    try:
        with _ending_at_once():
            from parl_core.cli._commands import parl
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "gymnasium"):
            raise
        sys.exit(f"the parl command needs {missing.name}; install it with: pip install 'parl-core[train]'")
    parl()


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Provide a context in which Ctrl-C ends the process, because imports would show a traceback or ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\nInterrupted: nothing has begun.\n")
    os._exit(128 + number)
