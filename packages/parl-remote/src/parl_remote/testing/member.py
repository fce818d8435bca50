"""One node of a loopback cluster: a process tree of its own, with the lines that lead to it.

    programs --line--> this node's port          this node --line--> the master's port

Its own process serves the network, its zygote makes actors, and each actor is a process: all three can be hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from parl_remote.testing.conditions import Conditions, Direction
from parl_remote.testing.line import Line
from parl_remote.testing.process import Process

__all__ = ["Member"]

_START_S = 30.0  # imports on a busy machine
_ZYGOTE = "parl:zygote"
_LINES_OF_LOG = 15


class Member:
    """A node that was started for tests, the master's included.

    Attributes:
        name: What its cluster calls it.
        said: What its command printed when it was up.
        toward: The line that leads to it, for programs; None until it is known.
        upward: The line that leads from it to the master; None for the master itself.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.toward: Line | None = None
        self.upward: Line | None = None
        self.said = ""
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<node {self.name}, {self._process!r}>"

    @property
    def process(self) -> Process:
        """The node's own process: master, worker or both; after a restart another one.

        Raises:
            ProcessLookupError: It was never started.
        """
        if self._process is None:
            raise ProcessLookupError(f"node {self.name} was not started")
        return self._process

    @property
    def zygote(self) -> Process:
        """The process that its actors are forked from.

        Raises:
            ProcessLookupError: There is none now: the node has no CPUs or is being started.
        """
        for child in self.process.children:
            if child.name == _ZYGOTE:
                return child
        raise ProcessLookupError(f"node {self.name} has no zygote now")

    @property
    def actors(self) -> tuple[Process, ...]:
        """The processes of its actors, without the spare one that is kept ready."""
        with contextlib.suppress(ProcessLookupError):
            return tuple(child for child in self.zygote.children if child.name != "parl:spare")
        return ()

    @property
    def log(self) -> str:
        """What it has written to its log so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start it and wait until it is up; after `kill` it is started anew, as the same node of a cluster's master.

        Raises:
            RuntimeError: It runs already, or did not come up; the message has the end of its log.
        """
        if self._process is not None and self._process.alive:
            raise RuntimeError(f"node {self.name} runs already")
        self._reap()
        with open(self._log, "ab") as log:
            self._running = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._process = Process(self._running.pid)
        assert self._running.stdout is not None  # it was asked for
        self.said = _first_words(self._running.stdout)
        if not self.said:
            self._running.kill()
            self._reap()
            lines = "".join(f"\n  | {line}" for line in self.log.splitlines()[-_LINES_OF_LOG:])
            raise RuntimeError(f"node {self.name} did not come up within {_START_S:g} s{lines}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the node's own process and wait for its end; its actors end with it, shortly after."""
        self.process.kill(number)
        self.process.resume()
        self._reap()

    def stop(self) -> None:
        """End it as a person would who presses Ctrl-C, and wait for that."""
        self.kill(signal.SIGINT)

    def pause(self) -> None:
        """Stop the node's own process where it is (SIGSTOP); its actors go on."""
        self.process.pause()

    def resume(self) -> None:
        """Let it go on."""
        self.process.resume()

    def freeze(self) -> None:
        """Stop the node and all its actors, as a suspended machine does."""
        for process in self.process.family:
            process.pause()

    def thaw(self) -> None:
        """End `freeze`."""
        for process in self.process.family:
            process.resume()

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Cut it off: nothing reaches it, or nothing leaves it, or both; connections stay open."""
        for line, which in self._lines(direction):
            line.cut(which)

    def set(self, conditions: Conditions, direction: Direction = Direction.BOTH) -> None:
        """Have everything to it, or from it, meet these conditions from now on."""
        for line, which in self._lines(direction):
            line.set(conditions, which)

    def restore(self) -> None:
        """End the cut; what waited is delivered."""
        for line in self.lines:
            line.restore()

    def reset(self) -> None:
        """Reset all connections to and from it."""
        for line in self.lines:
            line.reset()

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that lead to it and from it."""
        return tuple(line for line in (self.toward, self.upward) if line is not None)

    def close(self) -> None:
        """Take its lines down and forget its process, which somebody else ends."""
        for line in self.lines:
            line.close()
        self._reap()

    def _lines(self, direction: Direction) -> Iterator[tuple[Line, Direction]]:
        """Each line with the direction that is meant there: on the way up, the node is the one that dials."""
        if self.toward is not None:
            yield self.toward, direction
        if self.upward is not None:
            turned = {Direction.IN: Direction.OUT, Direction.OUT: Direction.IN}
            yield self.upward, turned.get(direction, direction)

    def _reap(self) -> None:
        if self._running is not None:
            self._running.wait(_START_S)
            if self._running.stdout is not None:
                self._running.stdout.close()
            self._running = None


def _first_words(pipe: IO[bytes]) -> str:
    """What a command says at once, until it says no more; empty if it ends or takes too long."""
    deadline = time.monotonic() + _START_S
    said = b""
    while b"\n  Logs " not in said or not said.endswith(b"\n"):  # its last line
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            return ""
        more = os.read(pipe.fileno(), 4096)
        if not more:
            return ""
        said += more
    return said.decode(errors="replace")
