"""The tables of all results that are there: verdicts first, then the runs, then what others report."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from curves import draw
from gates import GATES
from one_run import read_result

from parl_core.stats import bootstrap_interval, interquartile_mean

__all__ = ["Result", "Row", "read", "verdict", "write"]

Row = tuple[str, str]  # gate, backend
Result = dict[str, Any]
SEEDS = {"torch": 5, "paddle": 3}  # that a row should have

_PROTOCOL = """\
Returns are those of the weights at the end of training, over 100 episodes with the deterministic policy, on seeds that
neither training nor its evaluations had; no best checkpoint is picked. A row has the interquartile mean over seeds of
these mean returns and its 95 % bootstrap interval. A gate is passed when the interval's lower bound reaches it; "not
below" another row when the intervals overlap. `README.md` has the rest."""


def write(folder: Path) -> str:
    """Write `TABLE.md` and `curves.png` beside the results, and return the former."""
    rows = read(folder)
    parts = [_PROTOCOL, _summary(rows), _verdicts(rows), "## Runs", _runs(rows), "## What others report", _others(rows)]
    text = "\n\n".join(parts)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "TABLE.part.md"
    partial.write_text(text + "\n")
    partial.replace(folder / "TABLE.md")
    if rows:
        draw(rows, folder / "curves.png")
    return text


def read(folder: Path) -> dict[Row, list[Result]]:
    """All results by gate and backend, in the order of the gates, by seed; files that are none are named and left."""
    found: dict[Row, list[Result]] = defaultdict(list)
    for path in sorted(folder.glob("*/*.json")):
        try:
            result = read_result(path)
        except ValueError as error:
            print(f"{error}; it is left out of the table", file=sys.stderr, flush=True)
            continue
        if result["gate"] in GATES:
            found[result["gate"], result["backend"]].append(result)
    order = list(GATES)
    rows = sorted(found, key=lambda row: (order.index(row[0]), list(SEEDS).index(row[1])))
    return {row: sorted(found[row], key=lambda result: result["seed"]) for row in rows}


def verdict(row: Row, rows: dict[Row, list[Result]]) -> str:
    """Return whether the gate was passed, and what it was."""
    gate = GATES[row[0]]
    steps = {result["steps"] for result in rows[row]}
    if min(steps) < gate.steps or max(steps) > 1.1 * gate.steps:  # on-policy loops complete their last rollout
        return f"open (runs of {_list(f'{step:,}' for step in sorted(steps))} steps, the gate has {gate.steps:,})"
    low, high = bootstrap_interval(_means(rows[row]))
    if gate.relative_to == "data":
        wanted = float(rows[row][0]["data_return"])
        return f"{'passed' if low >= wanted else 'MISSED'} (data: {wanted:.1f})"
    if gate.relative_to:
        other = rows.get((gate.relative_to, row[1]))
        if other is None:
            return f"open ({gate.relative_to} has not run)"
        wanted = bootstrap_interval(_means(other)).low
        return f"{'passed' if high >= wanted else 'MISSED'} (not below {gate.relative_to})"
    if gate.threshold is None:
        return "reported only"
    return f"{'passed' if low >= gate.threshold else 'MISSED'} (>= {gate.threshold:g})"


def _summary(rows: dict[Row, list[Result]]) -> str:
    by_word: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_word[verdict(row, rows).split(" (")[0]].append(f"{_task(row[0])} on {row[1]}")
    never = [_task(key) for key in GATES if not any(row[0] == key for row in rows)]
    lines = [f"- passed: {len(by_word['passed'])} of {len(rows)} rows"]
    lines += [f"- {word}: {'; '.join(by_word[word])}" for word in ("MISSED", "open", "reported only") if by_word[word]]
    if never:
        lines.append(f"- not run: {'; '.join(never)}")
    return "\n".join(lines)


def _verdicts(rows: dict[Row, list[Result]]) -> str:
    lines = []
    for key in _gates(rows):
        cells = [_task(key)]
        for backend in SEEDS:
            results = rows.get((key, backend))
            cells += [_figure(results), _so_far(key, backend, rows)] if results else ["-", "-"]
        lines.append(cells)
    head = ["algorithm, task", *(f"{backend}{what}" for backend in SEEDS for what in (": IQM [95 %]", ": gate"))]
    return _table(head, lines)


def _runs(rows: dict[Row, list[Result]]) -> str:
    head = ["algorithm, task", "backend", "steps", "mean return of each seed", "wall, CPU (s, median)", "commits"]
    lines = []
    for (key, backend), results in rows.items():
        times = (f"{np.median([result[kind] for result in results]):.0f}" for kind in ("wall_s", "cpu_s"))
        steps = sorted({result["steps"] for result in results})
        commits = sorted({result.get("commit") or "unknown" for result in results})
        cells = [_task(key), backend, _list(f"{step:,}" for step in steps)]
        lines.append([*cells, _list(f"{mean:.1f}" for mean in _means(results)), _list(times), _list(commits)])
    return _table(head, lines)


def _others(rows: dict[Row, list[Result]]) -> str:
    lines = []
    for key in _gates(rows):
        gate = GATES[key]
        sources = _list(
            dict.fromkeys(result["source"] for row, found in rows.items() if row[0] == key for result in found)
        )
        lines.append([_task(key), "; ".join(gate.published) or "-", "; ".join(gate.deviations) or "-", sources])
    return _table(["algorithm, task", "published", "deviations", "hyper-parameters from"], lines)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def _gates(rows: dict[Row, list[Result]]) -> list[str]:
    return list(dict.fromkeys(key for key, _ in rows))


def _task(key: str) -> str:
    return f"{GATES[key].algorithm}, {GATES[key].env}"


def _figure(results: list[Result]) -> str:
    means = _means(results)
    low, high = bootstrap_interval(means)
    return f"{float(interquartile_mean(means)):.1f} [{low:.1f}, {high:.1f}]"


def _so_far(key: str, backend: str, rows: dict[Row, list[Result]]) -> str:
    seeds, wanted = len(rows[key, backend]), SEEDS[backend]
    return verdict((key, backend), rows) + ("" if seeds >= wanted else f", with {seeds} of {wanted} seeds")


def _means(results: list[Result]) -> list[float]:
    return [float(np.mean(result["returns"])) for result in results]


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
