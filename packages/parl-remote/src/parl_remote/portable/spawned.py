"""An actor's process as a program of its own, started by `portable.spawner`; from `run_actor` on it is as any other.

stdin   a pipe that says nothing: its end is the end of the worker, and then of this process
stdout  one line, {"ready": pid, "failed": {module: why}}, once it listens; from then on what stderr is
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import threading

from parl_remote.actor.stack_dumps import ignore_stack_signal
from parl_remote.system.thread_counts import chosen_by_user, set_variables

__all__ = ["main"]

_WARM = ("numpy", "cloudpickle", "parl", "parl_remote.decorator")
_STDOUT, _STDERR = 1, 2


def main(settings_json: str) -> None:
    """Be an actor's process; never returns.

    Args:
        settings_json: Where to listen, what to import ahead, whether to clear the node's directory when that is gone.
    """
    path, preload, clear = json.loads(settings_json)
    directory = os.path.dirname(path)
    ignore_stack_signal()
    life = os.dup(0)
    threading.Thread(target=_end_with, args=(life, directory if clear else ""), name="parl-life", daemon=True).start()
    if not chosen_by_user(os.environ):
        set_variables(os.environ, 1)
    failed = {}
    for name in (*_WARM, *preload):
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"

    from parl_remote.actor.process import run_actor
    from parl_remote.transport.unix import listen_at

    listening = listen_at(path)
    os.write(_STDOUT, json.dumps({"ready": os.getpid(), "failed": failed}).encode() + b"\n")
    os.dup2(_STDERR, _STDOUT)
    sys.argv[:] = [""]
    run_actor(listening, os.getppid())


def _end_with(life: int, directory: str) -> None:
    """Wait for the end of the worker, which writes nothing."""
    while os.read(life, 1):
        pass
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)
