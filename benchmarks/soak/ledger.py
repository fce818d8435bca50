"""Records of calls and of what was carried out, in files that outlive every killed process.

    caller   <name>.calls   counters in mapped memory: sent, answered, lost, hung, wrong, closed, withdrawn
    actor    <name>.done.N  eight bytes a call, appended before the work is done; N is the actor's process, for one that
                            is made again has several

Beside each other they say of every call whether it was lost without a word, carried out twice, or out of order.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np


class Count(IntEnum):
    """Positions of a caller's counters."""

    SENT = 0
    ANSWERED = 1
    LOST = 2
    HUNG = 3
    WRONG = 4
    CLOSED = 5
    WITHDRAWN = 6  # cancelled, or an argument of it failed


class Calls:
    """The caller's side of one actor's life."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.calls"
        self._counts = np.memmap(self.path, np.int64, "w+", shape=(len(Count),))

    def add(self, count: Count, amount: int = 1) -> None:
        self._counts[count] += amount

    def close(self) -> None:
        """Everything has been settled; the file may be read and removed."""
        self._counts[Count.CLOSED] = 1
        self._counts.flush()


def carried_out(path: Path, *, again: bool) -> int:
    """Open an actor's file; a second life under the same name is an error unless it may be made `again`."""
    file = path.with_suffix(f".done.{os.getpid()}") if again else path
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


@dataclass
class Totals:
    """The sums over all files."""

    lives: int = 0
    sent: int = 0
    answered: int = 0
    lost: int = 0
    withdrawn: int = 0
    abandoned: int = 0
    carried_out: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def as_row(self) -> dict[str, int]:
        """Numbers for a log."""
        return {
            "lives": self.lives,
            "sent": self.sent,
            "answered": self.answered,
            "lost_with_error": self.lost,
            "cancelled_or_without_an_argument": self.withdrawn,
            "abandoned_by_killed_programs": self.abandoned,
            "carried_out": self.carried_out,
            "faults": self.faults.total(),
        }

    def settle(self, calls: Path, *, caller_was_killed: bool) -> bool:
        """Take one life into account and remove its files; False if it is not over yet.

        Args:
            calls: The caller's file.
            caller_was_killed: Its program was killed, so that calls may be left without an outcome.
        """
        counts = np.fromfile(calls, np.int64)
        if len(counts) != len(Count) or not (counts[Count.CLOSED] or caller_was_killed):
            return False
        sent, answered, lost, hung, wrong = (int(counts[one]) for one in list(Count)[:5])
        withdrawn = int(counts[Count.WITHDRAWN])
        paths = list(calls.parent.glob(f"{calls.stem}.done*"))
        each = [np.fromfile(path, np.int64) for path in paths]
        done = np.concatenate([np.empty(0, np.int64), *each])
        self.lives += 1
        self.sent += sent
        self.answered += answered
        self.lost += lost
        self.withdrawn += withdrawn
        self.carried_out += len(done)
        self.faults["hung"] += hung
        self.faults["wrong answer"] += wrong
        without_outcome = sent - answered - lost - hung - wrong - withdrawn
        if caller_was_killed:
            self.abandoned += max(0, without_outcome)
        elif without_outcome:
            self.faults["without an outcome"] += abs(without_outcome)
        self.faults["carried out twice"] += len(done) - len(np.unique(done))
        # Of an actor that was made again, the one before it may still work on what it got while it was cut off.
        self.faults["out of order"] += sum(int(np.sum(np.diff(one) < 0)) for one in each)
        self.faults["carried out without being sent"] += int(np.sum(done >= sent + caller_was_killed))
        # Calls of one caller are answered in order, so the answered ones are the first ones.
        self.faults["answered, not carried out"] += max(0, answered - len(done))
        for path in (calls, *paths):
            path.unlink()
        return True
