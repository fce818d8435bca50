"""Runs over many seeds, each saved at its end, so that an interrupted measurement continues."""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["fill", "saved"]

Outcome = TypeVar("Outcome", bound=tuple[Any, ...])  # a named tuple whose first fields identify the run


def saved(path: Path, kind: type[Outcome]) -> list[Outcome]:
    """Return the runs in a file of JSON lines, sorted, without a truncated line."""
    outcomes = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            outcomes.append(kind(**json.loads(line)))
        except (TypeError, ValueError):
            continue
    return sorted(outcomes)


def fill(
    path: Path,
    kind: type[Outcome],
    run: Callable[..., Outcome],
    wanted: Iterable[tuple[Any, ...]],
    jobs: int,
) -> list[Outcome]:
    """Make the runs that the file lacks, in so many processes, and return all its runs."""
    known = saved(path, kind)
    left = [name for name in wanted if not any(outcome[: len(name)] == name for outcome in known)]
    with ProcessPoolExecutor(jobs) as pool, path.open("a") as file:
        for future in as_completed([pool.submit(run, *name) for name in left]):
            file.write(json.dumps(future.result()._asdict()) + "\n")  # type: ignore[attr-defined]
            file.flush()
    return saved(path, kind)
