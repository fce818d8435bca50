"""Records of calls and executions, in files that survive every killed process.

    caller   <name>.calls   counters in mapped memory: sent, answered, lost, hung, wrong, closed, withdrawn
    actor    <name>.done.N  eight bytes per call, appended before the work; N is the actor's process, of which a
                            restarted actor has several

Together they show for every call whether it was lost silently, executed twice, or out of order.
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
    WITHDRAWN = 6  # cancelled, or one of its arguments failed


class Calls:
    """The caller's records of one actor."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.calls"
        self._counts = np.memmap(self.path, np.int64, "w+", shape=(len(Count),))

    def add(self, count: Count, amount: int = 1) -> None:
        self._counts[count] += amount

    def close(self) -> None:
        """Close the file, which may then be read and removed."""
        self._counts[Count.CLOSED] = 1
        self._counts.flush()


def carried_out(path: Path, *, again: bool) -> int:
    """Open an actor's file; a second process of the same actor is an error unless `again` is true."""
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
        """Return the totals as text for a log."""
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
        """Add the records of one actor and remove its files; return False if they are not complete yet.

        Args:
            calls: The caller's file.
            caller_was_killed: True if its program was killed, so that calls may have no outcome.
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
        # The previous process of a restarted actor may still execute calls that it received before it was disconnected.
        self.faults["out of order"] += sum(int(np.sum(np.diff(one) < 0)) for one in each)
        self.faults["carried out without being sent"] += int(np.sum(done >= sent + caller_was_killed))
        # Calls of one caller are answered in order, so the answered ones are the first.
        self.faults["answered, not carried out"] += max(0, answered - len(done))
        for path in (calls, *paths):
            path.unlink()
        return True
