"""Telling what the system said from what a signal's handler raised while the system was asked."""

from __future__ import annotations

__all__ = ["is_raised_by_handler"]

_ASKING = ("parl_remote.", "socket", "select", "selectors")


def is_raised_by_handler(error: BaseException) -> bool:
    """Whether an error came out of a signal's handler, as the `TimeoutError` of programs that use `signal.alarm`.

    Python runs handlers between any two steps, and what one raises looks as if the system call that was interrupted
    had failed. Its traceback ends in the handler.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return trace is not None and not f"{module}.".startswith(tuple(f"{name.rstrip('.')}." for name in _ASKING))
