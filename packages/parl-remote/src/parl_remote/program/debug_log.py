"""`DEBUG=1`: what a program's side of a cluster has to say, in `parl_debug.log` in the program's directory."""

from __future__ import annotations

import functools
import logging

from parl_remote._version import __version__

__all__ = ["write_debug_log"]


@functools.cache
def write_debug_log() -> None:
    """Write down everything from now on; a second call does nothing."""
    log = logging.getLogger("parl.remote")
    try:
        handler = logging.FileHandler("parl_debug.log")
    except OSError as error:
        log.warning("cannot write parl_debug.log, which DEBUG asks for: %s", error)
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.debug("parl-remote %s, connects", __version__)
