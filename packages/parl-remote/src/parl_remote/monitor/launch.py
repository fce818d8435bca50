"""Starting a monitor as a process of its own, and saying clearly what is missing for one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from parl_remote.codec import to_json
from parl_remote.config import Environment
from parl_remote.errors import RemoteError
from parl_remote.monitor.settings import MonitorSettings
from parl_remote.node.report_pipe import ReportPipe
from parl_remote.system import processes
from parl_remote.system.facilities import NO_FOLLOW

__all__ = ["HOW_TO_INSTALL", "check_installed", "is_installed", "start_monitor"]

HOW_TO_INSTALL = "pip install 'parl-remote[monitor]'"
_NEEDS = ("flask", "waitress", "prometheus_client")
_LOG_LINES = 10


def is_installed() -> bool:
    """Whether what the monitor needs is here."""
    return not _missing()


def check_installed() -> None:
    """Make sure of it.

    Raises:
        RemoteError: Something is missing; the message says what to do.
    """
    if missing := _missing():
        raise RemoteError(f"the monitor needs {' and '.join(missing)}, not installed here: {HOW_TO_INSTALL}")


def start_monitor(settings: MonitorSettings, found: Environment, *, wait: bool = True) -> str:
    """Start a monitor that lives on after this process.

    Args:
        settings: What it is.
        found: Limits, and the command that nodes are started with.
        wait: Whether to wait until it is up; if not, what goes wrong is only in its log.

    Returns:
        Its address in a browser, as far as it is known.

    Raises:
        RemoteError: It did not come up; the message has its reason or the end of its log.
    """
    check_installed()
    try:
        log = os.open(settings.log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_FOLLOW, 0o600)
    except OSError as error:
        raise RemoteError(f"the monitor cannot write {settings.log_file}: {error.strerror}") from error
    pipe = ReportPipe()
    try:
        process = subprocess.Popen(
            [
                *(found.launcher or (sys.executable,)),
                *("-P", "-m", "parl_remote.monitor", json.dumps(to_json(settings)), str(pipe.number)),
            ],
            cwd=settings.directory,
            **pipe.options(log),
        )
    except OSError as error:
        pipe.close()
        raise RemoteError(f"the monitor cannot be started: {error.strerror}") from error
    finally:
        pipe.started()
        os.close(log)
    if not wait:
        pipe.close()
        process.returncode = 0  # it is on its own from here; nobody waits for it
        return f"http://{settings.host}:{settings.port}"
    outcome = pipe.read(process, found.limits.start_timeout_s)
    pipe.close()
    if address := outcome.get("address"):
        process.returncode = 0
        return f"http://{address}"
    process.kill()
    process.wait()
    lines = "".join(f"\n  | {line}" for line in processes.tail(settings.log_file, _LOG_LINES))
    raise RemoteError(
        outcome.get("error")
        or f"the monitor did not come up within {found.limits.start_timeout_s:g} s; its log says:{lines}"
    )


def _missing() -> list[str]:
    return [name for name in _NEEDS if importlib.util.find_spec(name) is None]
