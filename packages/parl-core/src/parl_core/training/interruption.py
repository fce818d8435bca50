"""Ctrl-C that cannot get lost: an interruption that somebody swallowed is raised again until it is noticed.

    SIGINT ──> KeyboardInterrupt ──> … ──> noticed()        the usual way
                     └─ swallowed ──(1 s)──> KeyboardInterrupt again
    SIGINT again ──> the process ends at once, by that signal, and cleans nothing up

Extension modules clear errors while they import others, and exceptions in callbacks of the garbage collector are only
printed; a `KeyboardInterrupt` that falls there is gone, and may leave a module half imported.
"""

import atexit
import os
import signal
import threading
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Interruption"]

# Unwinding to the place that notices takes less, so that nobody who cleans up is disturbed; a person waits for it.
SECONDS_UNTIL_AGAIN = 1.0


class Interruption:
    """Watches for Ctrl-C between `begin` and `end`, where that is ours to do.

    It is not in other threads than the main one, and not where the program has a handler of its own or ignores SIGINT.
    """

    def __init__(self) -> None:
        self.happened = False
        self._alarm_before: Any = None
        self._watching = False

    def begin(self) -> None:
        """Take over Python's own handler."""
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._watching = True
            self._alarm_before = signal.signal(signal.SIGALRM, self._raise)
            signal.signal(signal.SIGINT, self._pressed)

    def noticed(self) -> None:
        """Somebody unwinds the program now: do not raise again."""
        if self._watching:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def end(self) -> None:
        """Give the handlers back."""
        if self._watching:
            self.noticed()
            self._watching = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, self._alarm_before)
            if self.happened:  # who presses again while the interpreter ends wants no traceback of its last callbacks
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if not self.happened:
            self._raise(number, frame)
        # Whoever presses again does not want to wait for what cleans up. What is on disk is whole at any moment.
        os.write(2, b"\nInterrupted again: ended at once.\n")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    def _raise(self, number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG002  # what signal calls
        self.happened = True
        signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_AGAIN)
        raise KeyboardInterrupt
