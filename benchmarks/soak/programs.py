"""The programs under load: starting, killing and ending them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from parl_remote.testing import Process

ENDS_S = 120.0


class Program:
    """A program with a number of actors, which can be started again after `kill`.

    Args:
        name: Its name in the log.
        address: Address of its cluster, or "local".
        actors: Number of concurrent actors.
        home: Folder of its files.
        environment: Its environment variables.
    """

    def __init__(self, name: str, address: str, actors: int, home: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.private = address == "local"
        self.log = home / f"{name}.log"
        self.folders: dict[Path, bool] = {}  # whether it was killed, for each time that it ran
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
        """Ask it to finish, and return its exit status."""
        self.process.kill(15)
        return self._running.wait(ENDS_S)
