"""Starting a node or a monitor in the background: its settings, and the pipe on which it reports once.

    start_program  --settings as JSON, the pipe's number--> python -m ...
                   <--one JSON object, {"address": ...} or {"error": ...}-- report_on(number)

Where only the standard streams are inherited (Windows), the pipe is the program's stdout until it has reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parl_remote._codec import to_json
from parl_remote._config import Environment
from parl_remote._resources import Resources
from parl_remote._system import processes
from parl_remote._system.facilities import IN, NO_FOLLOW, is_portable, wait_once
from parl_remote.errors import RemoteError

__all__ = ["NodeSettings", "report_on", "start_program"]

_STDOUT, _STDERR = 1, 2
_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings that `xparl` gives a node.

    Attributes:
        directory: Its run directory, with the cluster's key in the file `key`.
        node_id: Its id.
        cluster_id: The cluster's id; empty for a worker, whose master has it.
        host: The interface to listen on.
        known_as: The host by which others reach this node; empty for the master's host, under any of its names.
        port: The port to listen on, 0 for a free one.
        master: "host:port" of the master; empty if this node is the master.
        cpu: CPUs to give to actors; 0 for a master without a worker.
        gpus: GPUs to give to actors, as CUDA_VISIBLE_DEVICES names them.
        memory: Bytes available to actors that request memory.
        labels: Amounts of resources that the cluster's owner has named.
        debug: Whether it logs debug messages.
        once: The name under which a worker is to run only once on its host; empty for none.
    """

    directory: str
    node_id: str
    cluster_id: str
    host: str
    known_as: str
    port: int
    master: str
    cpu: float
    gpus: tuple[str, ...]
    memory: int = 0
    labels: Mapping[str, float] = field(default_factory=dict)
    debug: bool = False
    once: str = ""

    @property
    def has_worker(self) -> bool:
        """True if actors can run here."""
        return bool(self.cpu or self.gpus or self.labels)

    @property
    def resources(self) -> Resources:
        """The resources that the node offers."""
        return Resources(cpu=self.cpu, gpu=len(self.gpus), memory=self.memory, labels=self.labels)


def start_program(
    module: str, settings: object, log_file: Path, found: Environment, *, what: str, wait: bool = True
) -> str:
    """Start a Python program that outlives this process; return the address that it reports.

    Args:
        module: Its module, as for `python -m`.
        settings: A dataclass, its first argument as JSON.
        log_file: The file of its output; it runs in the directory of that file.
        found: The time limit, and the command that runs Python.
        what: Its name in messages.
        wait: Whether to wait for its report; if not, the address is empty, and errors are only in its log.

    Raises:
        RemoteError: It did not come up; the message has its reason or the end of its log.
    """
    command = found.launcher or (sys.executable,)
    try:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_FOLLOW, 0o600)
    except OSError as error:
        raise RemoteError(f"the {what} cannot write {log_file}: {error.strerror}") from error
    pipe = _ReportPipe()
    try:
        process = subprocess.Popen(
            [*command, "-P", "-m", module, json.dumps(to_json(settings)), str(pipe.number)],
            cwd=log_file.parent,
            **pipe.options(log),
        )
    except OSError as error:
        pipe.close()
        hint = "; XPARL_PYTHON names it" if found.launcher else ""
        raise RemoteError(f"the {what} cannot run {command[0]}: {error.strerror}{hint}") from error
    finally:
        pipe.started()
        os.close(log)
    outcome = pipe.read(process, found.limits.start_timeout_s) if wait else {"address": ""}
    pipe.close()
    if "address" in outcome:
        process.returncode = 0  # from here on it runs independently and is not awaited
        return outcome["address"]
    process.kill()
    process.wait()
    if reason := outcome.get("error"):
        raise RemoteError(reason)
    lines = "".join(f"\n  | {line}" for line in processes.tail(log_file, _LOG_LINES))
    raise RemoteError(
        f"the {what} did not come up within {found.limits.start_timeout_s:g} s; the end of {log_file}:{lines}"
    )


class _ReportPipe:
    """The starter's side of the pipe; must be closed in the end.

    Attributes:
        number: The descriptor that the program reports on.
    """

    def __init__(self) -> None:
        self._reading = -1
        self.number = _STDOUT
        if not is_portable():
            self._reading, self.number = map(processes.above_stderr, os.pipe())

    def options(self, log: int) -> dict[str, Any]:
        """Return options of `subprocess.Popen`: streams, inherited descriptors, and a session of its own.

        Args:
            log: The descriptor of its output.
        """
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
        if self._reading >= 0:
            options["pass_fds"] = (self.number,)
        else:
            options["stdout"] = subprocess.PIPE
            options["creationflags"] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        return options

    def started(self) -> None:
        """Close the writing end here: the program has it now, or failed to start."""
        if self._reading >= 0 and self.number >= 0:
            os.close(self.number)
            self.number = -1

    def read(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, str]:
        """Return the program's report; empty if it ended, or the time passed, before it reported."""
        said = self._read_inherited(timeout_s) if self._reading >= 0 else _read_stdout(process, timeout_s)
        outcome: dict[str, str] = json.loads(said or b"{}")
        return outcome

    def close(self) -> None:
        """Close both ends; a second call does nothing."""
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
    """Return the program's first line, read in a thread because not every system can wait for pipes."""
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
    """Report the outcome of this program's start, and close the pipe.

    Args:
        number: The descriptor from the command line.
        outcome: `address`, or `error`.

    Raises:
        BrokenPipeError: The starter has ended.
    """
    try:
        os.write(number, json.dumps(outcome).encode() + b"\n")
    finally:
        if number == _STDOUT:
            os.dup2(_STDERR, _STDOUT)
        else:
            os.close(number)
