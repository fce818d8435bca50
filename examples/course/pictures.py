"""The pictures of the lessons: values and policies on a grid, curves of several runs, maps of two numbers.

`show` displays a picture in a notebook, or writes it to a folder if the lesson runs as a script.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


def new_figure(columns: int = 1, width: float = 4.5, height: float = 3.2) -> tuple[Figure, Any]:
    """Return a figure and its axes, side by side."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def show(figure: Figure, name: str, folder: str) -> None:
    if "ipykernel" in sys.modules:
        from IPython.display import Image, display

        png = io.BytesIO()
        figure.savefig(png, dpi=80)
        display(Image(png.getvalue()))
    else:
        path = Path(folder) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=80)
        print(f"Picture: {path}")


def draw_grid(
    axes: Any,
    values: Any,
    title: str,
    labels: Any,
    actions: Any = None,
    path: Sequence[tuple[int, int]] | None = None,
    number: str = "{:.2f}",
    limits: tuple[float | None, float | None] = (None, None),
) -> None:
    """Draw numbers as colours, with the best actions as arrows.

    Args:
        values: [rows, columns]; nan is left white.
        labels: [rows, columns] of texts that replace a cell's arrow and number; "" for none.
        actions: [rows, columns] of sets of the best directions (row, column).
        path: Cells (row, column) of a line.
    """
    image = axes.imshow(values, cmap="viridis", vmin=limits[0], vmax=limits[1])
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if np.isnan(value) or image.norm(value) > 0.6 else "white"
        text = {"ha": "center", "va": "center", "color": colour, "fontsize": 8}
        if labels[row, column]:
            axes.text(column, row, labels[row, column], **text)
            continue
        if number:
            axes.text(column, row + 0.3, number.format(value), **text)
        for down, right in actions[row, column] if actions is not None else ():
            axes.annotate(
                "",
                xy=(column + 0.28 * right, row - 0.12 + 0.28 * down),
                xytext=(column, row - 0.12),
                arrowprops={"arrowstyle": "->", "color": colour},
            )
    if path is not None:
        rows, columns = zip(*path, strict=True)
        axes.plot(columns, rows, color="tab:red", linewidth=4, alpha=0.5)
    axes.set(title=title, xticks=[], yticks=[])
    axes.set_xticks(np.arange(0.5, values.shape[1] - 1), minor=True)
    axes.set_yticks(np.arange(0.5, values.shape[0] - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def smooth(runs: Any, window: int) -> Any:
    """Return means over the last `window` entries of each run `[runs, n]`."""
    return np.stack([np.convolve(run, np.full(window, 1 / window), mode="valid") for run in np.atleast_2d(runs)])


def draw_runs(axes: Any, runs: Any, label: str, window: int = 1, colour: int = 0, x: Any = None) -> None:
    """Draw the median and the interquartile range of several runs `[runs, n]`."""
    window = min(window, np.shape(runs)[-1])
    smoothed = smooth(runs, window)
    x = np.arange(window, np.shape(runs)[-1] + 1) if x is None else x
    low, middle, high = np.quantile(smoothed, (0.25, 0.5, 0.75), axis=0)
    axes.plot(x, middle, color=COLOURS[colour], label=label)
    axes.fill_between(x, low, high, color=COLOURS[colour], alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)


def draw_map(
    figure: Figure, axes: Any, x: Any, y: Any, values: Any, title: str, xlabel: str, ylabel: str, cmap: str = "viridis"
) -> None:
    """Draw `values[i, j]` of x[j] and y[i] as colours, with a scale."""
    mesh = axes.pcolormesh(x, y, values, cmap=cmap, shading="nearest", rasterized=True)
    figure.colorbar(mesh, ax=axes)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
