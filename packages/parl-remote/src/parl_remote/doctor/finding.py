"""One thing that a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Severity", "fine", "note", "problem"]


class Severity(Enum):
    """How bad it is.

    FINE: as it should be. NOTE: worth knowing; what runs now is not hindered. PROBLEM: something does not work.
    """

    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do.

    Attributes:
        check: The check, one word.
        severity: How bad it is.
        what: One line.
        remedy: One line, empty where there is nothing to do.
    """

    check: str
    severity: Severity
    what: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        """For programs."""
        return {"check": self.check, "severity": self.severity.value, "what": self.what, "remedy": self.remedy}


def fine(check: str, what: str) -> Finding:
    """Something that is as it should be."""
    return Finding(check, Severity.FINE, what)


def note(check: str, what: str, remedy: str) -> Finding:
    """Something worth knowing."""
    return Finding(check, Severity.NOTE, what, remedy)


def problem(check: str, what: str, remedy: str) -> Finding:
    """Something that does not work."""
    return Finding(check, Severity.PROBLEM, what, remedy)
