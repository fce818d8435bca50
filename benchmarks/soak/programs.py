"""The programs under load, as the soak starts, kills and ends them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from parl_remote.testing import Process

ENDS_S = 120.0


class Program:
    """One program with a number of actors; after `kill` it may be started again.

    Args:
        name: For the log.
        address: What it connects to, or "local".
        actors: How many actors it has at a time.
        home: Where its files go.
        environment: Its variables.
    """

    def __init__(self, name: str, address: str, actors: int, home: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.private = address == "local"
        self.log = home / f"{name}.log"
        self.folders: dict[Path, bool] = {}  # of each life: whether it was killed
        self._address = address
        self._actors = actors
        self._home = home
        self._environment = environment

    def start(self) -> None:
        folder = self._home / f"{self.name}-{len(self.folders)}"
        folder.mkdir()
        self.folders[folder] = False
        here = Path(__file__).with_name("program.py")
        command = [sys.executable, str(here), self._address, str(folder), str(self._actors), str(len(self.folders))]
        with open(self.log, "ab") as log:
            self._running = subprocess.Popen(command, env={**os.environ, **self._environment}, stdout=log, stderr=log)
        self.process = Process(self._running.pid)

    def kill(self) -> None:
        self.process.kill()
        self._running.wait()
        self.folders[list(self.folders)[-1]] = True

    def end(self) -> int:
        """Let it finish; its exit status."""
        self.process.kill(15)
        return self._running.wait(ENDS_S)
