"""The table and the curves of all results that are there."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from gates import GATES

from parl_core.training.statistics import bootstrap_interval, interquartile_mean

__all__ = ["write"]

Row = tuple[str, str]  # gate, backend
SEEDS = {"torch": 5, "paddle": 3}  # that a row should have


def write(folder: Path) -> str:
    """Write `TABLE.md` and `curves.png` beside the results, and return the table."""
    rows = read(folder)
    table = _table(rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "TABLE.md").write_text(table + "\n")
    if rows:
        _curves(rows, folder / "curves.png")
    return table


def read(folder: Path) -> dict[Row, list[dict[str, Any]]]:
    """All results by gate and backend, in the order of the gates."""
    found: dict[Row, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*/*.json")):
        result = json.loads(path.read_text())
        found[result["gate"], result["backend"]].append(result)
    order = list(GATES)
    return {row: found[row] for row in sorted(found, key=lambda row: (order.index(row[0]), row[1]))}


def verdict(row: Row, rows: dict[Row, list[dict[str, Any]]]) -> str:
    """Whether the gate was passed, and what it was."""
    gate = GATES[row[0]]
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


def _so_far(backend: str, seeds: int) -> str:
    wanted = SEEDS[backend]
    return "" if seeds >= wanted else f", with {seeds} of {wanted} seeds"


def _means(results: list[dict[str, Any]]) -> list[float]:
    return [float(np.mean(result["returns"])) for result in results]


def _table(rows: dict[Row, list[dict[str, Any]]]) -> str:
    head = [
        "algorithm, task",
        "backend",
        "seeds",
        "steps",
        "IQM",
        "95 % interval",
        "each seed",
        "gate",
        "wall, CPU (s)",
    ]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row, results in rows.items():
        gate, means = GATES[row[0]], _means(results)
        low, high = bootstrap_interval(means)
        cells = [
            f"{gate.algorithm}, {gate.env}",
            row[1],
            str(len(results)),
            f"{results[0]['steps']:,}",
            f"{float(interquartile_mean(means)):.1f}",
            f"{low:.1f} ... {high:.1f}",
            ", ".join(f"{mean:.0f}" for mean in means),
            verdict(row, rows) + _so_far(row[1], len(results)),
            f"{np.median([r['wall_s'] for r in results]):.0f}, {np.median([r['cpu_s'] for r in results]):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    notes = ["", "| task | published | deviations | hyper-parameters |", "| --- | --- | --- | --- |"]
    for key in dict.fromkeys(row[0] for row in rows):
        gate = GATES[key]
        source = next(found[0]["source"] for row, found in rows.items() if row[0] == key)
        cells = ["; ".join(gate.published) or "-", "; ".join(gate.deviations) or "-", source]
        notes.append(f"| {gate.algorithm}, {gate.env} | " + " | ".join(cells) + " |")
    return "\n".join(lines + notes)


def _curves(rows: dict[Row, list[dict[str, Any]]], path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(4 * columns, 3 * lines), squeeze=False)
    for axis, (row, results) in zip(axes.flat, rows.items(), strict=False):
        for result in results:
            axis.plot(*zip(*result["curve"], strict=True), color="tab:blue", alpha=0.3, linewidth=0.8)
        shortest = min(len(result["curve"]) for result in results)
        values = np.array([[value for _, value in result["curve"][:shortest]] for result in results])
        steps = [step for step, _ in results[0]["curve"][:shortest]]
        axis.plot(steps, interquartile_mean(values, axis=0), color="tab:blue")
        if GATES[row[0]].threshold is not None:
            axis.axhline(GATES[row[0]].threshold, color="gray", linestyle="--", linewidth=0.8)
        axis.set_title(f"{GATES[row[0]].algorithm}, {GATES[row[0]].env} ({row[1]})", fontsize=9)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    figure.tight_layout()
    partial = path.with_suffix(".part.png")
    figure.savefig(partial, dpi=80)
    pyplot.close(figure)
    partial.replace(path)
