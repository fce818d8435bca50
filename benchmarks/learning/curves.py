"""The learning curves as one picture with a panel per gate, which shows both backends."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from gates import GATES

from parl_core.stats import bootstrap_interval, interquartile_mean

__all__ = ["draw"]

COLORS = {"torch": "tab:blue", "paddle": "tab:orange"}
COLUMNS = 4


def draw(rows: dict[tuple[str, str], list[dict[str, Any]]], path: Path) -> None:
    """Draw the results of `rows`, by gate and backend, to a PNG file."""
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    keys = list(dict.fromkeys(key for key, _ in rows))
    columns = min(COLUMNS, len(keys))
    lines = -(-len(keys) // columns)
    size = max(4.0 * columns, 6.0), 3.0 * lines + 0.6
    figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, key in zip(axes.flat, keys, strict=False):
        _panel(axis, key, {backend: rows[key, backend] for backend in COLORS if (key, backend) in rows})
    for axis in axes.flat[len(keys) :]:
        axis.axis("off")
    figure.supylabel("mean return of 10 episodes", fontsize=9)
    legend = [Line2D([], [], color=color, label=backend) for backend, color in COLORS.items()]
    gate = Line2D([], [], color="gray", linestyle="--", label="gate")
    about = "interquartile mean over seeds and its 95 % interval; thin: each seed"
    figure.legend(
        handles=[*legend, gate], title=about, title_fontsize=9, ncols=3, loc="outside upper center", fontsize=9
    )
    partial = path.with_suffix(".part.png")
    figure.savefig(partial, dpi=90)
    pyplot.close(figure)
    partial.replace(path)


def _panel(axis: Any, key: str, by_backend: dict[str, list[dict[str, Any]]]) -> None:
    from matplotlib.ticker import EngFormatter

    gate = GATES[key]
    for backend, results in by_backend.items():
        for result in results:
            axis.plot(*zip(*result["curve"], strict=True), color=COLORS[backend], alpha=0.25, linewidth=0.7)
        shortest = min(len(result["curve"]) for result in results)
        values = np.array([[value for _, value in result["curve"][:shortest]] for result in results])
        steps = [step for step, _ in results[0]["curve"][:shortest]]
        axis.plot(steps, interquartile_mean(values, axis=0), color=COLORS[backend], linewidth=1.6)
        low, high = zip(*(bootstrap_interval(column, resamples=2_000) for column in values.T), strict=True)
        axis.fill_between(steps, low, high, color=COLORS[backend], alpha=0.15, linewidth=0.0)
    wanted = gate.threshold
    if wanted is not None:
        axis.axhline(wanted, color="gray", linestyle="--", linewidth=0.9)
    axis.set_title(gate.title, fontsize=9)
    axis.set_xlabel("episodes" if gate.algorithm == "PolicyGradient" else "steps", fontsize=8)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k, 1M
    axis.tick_params(labelsize=7)
