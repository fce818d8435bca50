"""`history.jsonl`: one line for each update of a model, each with the digest of the line before it.

    {"model_iter_id": 7, "used": 20, ..., "parameters_sha256": "...", "previous": SHA-256 of the last line}

A line that is changed or taken out later does not fit the next one's `previous`, and the file is refused. There is no
time of day in it, because the same update of the same log has to give the same bytes; a directory's own time says when.
"""

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parl_evokit.errors import SolverError
from parl_evokit.report import UpdateReport

__all__ = ["FILE", "check", "line_of", "read", "write"]

FILE = "history.jsonl"
_REMEDY = "take it from a copy, or move it away to go on with a history that begins anew"
_KEPT = 10_000  # lines of some 400 bytes; all are written anew at each save


def line_of(report: UpdateReport, previous: str) -> str:
    """One update as a line of JSON.

    Args:
        report: Of the update.
        previous: The line before it, empty for the first.
    """
    numbers: dict[str, Any] = {name: value for name, value in asdict(report).items() if name != "parameters"}
    numbers["parameters_sha256"] = report.parameters_sha256
    numbers["previous"] = _digest(previous)
    return json.dumps(numbers, separators=(",", ":"))


def read(directory: Path) -> list[str]:
    """The lines of a model's history; none where there is no file.

    Raises:
        SolverError: It was changed or is damaged.
    """
    path = directory / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise SolverError(f"{path} is no text ({error}): {_REMEDY}") from error
    try:
        check(lines)
    except SolverError as error:
        raise SolverError(f"{path}: {error}; {_REMEDY}") from error
    return lines


def write(directory: Path, lines: Sequence[str]) -> None:
    """Write the history into a directory that no one reads yet; only the newest lines of very long ones."""
    path = directory / FILE
    path.unlink(missing_ok=True)  # it may be a link to the file of the directory being replaced
    path.write_text("".join(f"{line}\n" for line in lines[-_KEPT:]), encoding="utf-8")


def check(lines: Sequence[str]) -> int:
    """Check that each line follows the one before it; returns how many there are.

    Raises:
        SolverError: One does not, or the last one is no update.
    """
    for number, (before, line) in enumerate(itertools.pairwise(lines), 2):
        if not line.endswith(f'"previous":"{_digest(before)}"}}'):
            raise SolverError(
                f"line {number} of the history does not follow line {number - 1}: one of them was changed"
            )
    for line in lines[-1:]:
        try:
            json.loads(line)["previous"]
        except (ValueError, KeyError, TypeError) as error:
            raise SolverError(f"line {len(lines)} of the history is no update: {line[:80]!r}") from error
    return len(lines)


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest() if line else ""
