"""What a program that is started in the background says once: that it is up, or why it cannot be.

    starter  ReportPipe --number on the command line, pipe inherited--> program
             .read <--one JSON object-- report_on(number)

Where only the standard streams are inherited (Windows), the pipe is the program's stdout until it has spoken.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from parl_remote.system import processes
from parl_remote.system.facilities import is_portable
from parl_remote.system.pollers import IN, wait_once

__all__ = ["ReportPipe", "report_on"]

_STDOUT, _STDERR = 1, 2


class ReportPipe:
    """The starter's side; `close` it in the end.

    Attributes:
        number: What the program has to be told.
    """

    def __init__(self) -> None:
        self._reading = -1
        self.number = _STDOUT
        if not is_portable():
            self._reading, self.number = map(processes.beyond_standard, os.pipe())

    def options(self, log: int) -> dict[str, Any]:
        """For `subprocess.Popen`: streams, what is inherited, and that the program lives on by itself.

        Args:
            log: Where its output goes.
        """
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
        if self._reading >= 0:
            options["pass_fds"] = (self.number,)
        else:
            options["stdout"] = subprocess.PIPE
            options["creationflags"] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        return options

    def started(self) -> None:
        """The program has the writing end now, or there will be no program."""
        if self._reading >= 0 and self.number >= 0:
            os.close(self.number)
            self.number = -1

    def read(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, str]:
        """What it said; empty if it ended or the time has passed before it spoke."""
        said = self._read_inherited(timeout_s) if self._reading >= 0 else _read_stdout(process, timeout_s)
        outcome: dict[str, str] = json.loads(said or b"{}")
        return outcome

    def close(self) -> None:
        """Do not listen; a second call does nothing."""
        self.started()
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1

    def _read_inherited(self, timeout_s: float) -> bytes:
        if not wait_once(self._reading, IN, timeout_s * 1000):
            return b""
        said = b""
        while part := os.read(self._reading, 65536):
            said += part
        return said


def _read_stdout(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Pipes cannot be waited for everywhere, so a thread reads; it ends with the program at the latest."""
    pipe = process.stdout
    if pipe is None:
        return b""
    said: list[bytes] = []

    def read() -> None:
        with pipe:
            said.append(pipe.readline())

    reader = threading.Thread(target=read, name="parl-report", daemon=True)
    reader.start()
    reader.join(timeout_s)
    return said[0] if said else b""


def report_on(number: int, outcome: Mapping[str, str]) -> None:
    """The program's side: say it, and give the pipe back.

    Args:
        number: What it was told.
        outcome: What to say.

    Raises:
        BrokenPipeError: Nobody listens any more.
    """
    try:
        os.write(number, json.dumps(outcome).encode() + b"\n")
    finally:
        if number == _STDOUT:
            os.dup2(_STDERR, _STDOUT)
        else:
            os.close(number)
