"""Learning curves: of one run as a picture, and of several runs compared in a table, a picture and an interactive page.

    runs/ppo-a/                        a run: a line
    runs/ppo-b/seed-0, seed-1, …       a group: the interquartile mean with a band of its 95 % interval

A run is any folder with the `metrics.jsonl` of `standard_callbacks`, from `parl train` or your own program. If the runs
of a group were evaluated at different steps, each is interpolated between its own steps. Matplotlib draws without a
display.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.stats import Interval, bootstrap_interval, interquartile_mean
from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.logs import JsonLines
from parl_core.training.run import Run

__all__ = [
    "Band",
    "Comparison",
    "LearningCurve",
    "RunCurve",
    "RunGroup",
    "draw_comparison",
    "draw_curve",
    "read_run",
    "write_page",
]


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunCurve:
    """The evaluations of one run.

    Attributes:
        path: The path of its folder.
        steps: The steps of training at each evaluation; of a run without evaluations, at each report of ended episodes.
        returns: Mean return there.
        returns_of: The origin of the returns: `evaluations`, or `training` with exploring episodes; empty without
            returns.
        seconds: Logged duration of the whole run.
        ended: The reason for its end; empty if it has not ended, or was killed.
        stop: The kind of end, a name of `Stop` in small letters.
        asked: The content of `run.json` or `settings.json`; empty if neither exists.
        taken: Logged number of steps of training.
    """

    path: Path
    steps: Floats
    returns: Floats
    returns_of: str
    seconds: float
    ended: str
    stop: str
    asked: Mapping[str, Any]
    taken: int = 0

    @property
    def best(self) -> float:
        """The best return; NaN without returns."""
        return float(self.returns.max()) if len(self.returns) else float("nan")

    @property
    def last(self) -> float:
        """The last return; NaN without returns."""
        return float(self.returns[-1]) if len(self.returns) else float("nan")


def read_run(folder: Path) -> RunCurve:
    """Read a run's curve.

    Raises:
        CheckpointError: The folder does not belong to a run, or its log is damaged.
    """
    path = folder / JsonLines.NAME
    found: dict[str, list[tuple[float, float]]] = {"evaluation/return": [], "train/return": []}
    step, seconds, ended, stop = 0.0, 0.0, "", ""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{folder} has no {JsonLines.NAME}: it is not a folder of a run, nor of several"
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            step, seconds = float(values["step"]), float(values["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # a run that is writing it, or was killed
                break
            raise CheckpointError(f"{path}, line {number}, is not an event of a run: {error}") from error
        over = values.get("event") == "end"
        ended, stop = (str(values.get("reason", "")), str(values.get("stop", ""))) if over else ("", "")
        for name, pairs in found.items():
            if values.get(name) is not None:
                pairs.append((step, float(values[name])))
    sources = {"evaluations": found["evaluation/return"], "training": found["train/return"]}
    of = next((name for name, pairs in sources.items() if pairs), "")
    points: Floats = np.array(sources.get(of, np.empty((0, 2))), np.float64)
    return RunCurve(folder, points[:, 0], points[:, 1], of, seconds, ended, stop, _asked(folder), int(step))


def _asked(folder: Path) -> Mapping[str, Any]:
    for name in ("run.json", "settings.json"):
        try:
            values = json.loads((folder / name).read_text(encoding="utf-8"))
            return dict(values)
        except (OSError, ValueError, TypeError):
            continue
    return {}


@dataclass(frozen=True)
class Band:
    """The curve of a group: `steps`, the interquartile mean there, and the bounds of its 95 % interval."""

    steps: Floats
    middle: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only by their seeds.

    Attributes:
        name: The name in legends and tables.
        runs: The runs, at least one.
    """

    name: str
    runs: tuple[RunCurve, ...]

    def band(self, points: int = 200) -> Band:
        """Return the curve of the group, over the steps that all of its runs have.

        Args:
            points: Largest number of points.
        """
        drawn = [run for run in self.runs if len(run.steps)]
        if not drawn:
            none = np.empty(0)
            return Band(none, none, none, none)
        first, last = max(run.steps[0] for run in drawn), min(run.steps[-1] for run in drawn)
        steps = np.unique(np.concatenate([run.steps for run in drawn]))
        steps = steps[(steps >= first) & (steps <= last)]
        if not len(steps):  # they do not overlap
            steps = np.array([last])
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(points, len(steps))).astype(int))]
        values = np.stack([np.interp(steps, run.steps, run.returns) for run in drawn])
        middle = np.atleast_1d(interquartile_mean(values, axis=0))
        if len(drawn) == 1:
            return Band(steps, middle, middle, middle)
        bounds = [bootstrap_interval(values[:, i], resamples=2_000) for i in range(len(steps))]
        return Band(steps, middle, np.array([one.low for one in bounds]), np.array([one.high for one in bounds]))

    @property
    def last_returns(self) -> list[float]:
        """The last returns of runs with returns."""
        return [run.last for run in self.runs if len(run.returns)]

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the interquartile mean of the runs' last returns; None without returns."""
        return bootstrap_interval(self.last_returns) if self.last_returns else None


@dataclass(frozen=True)
class Comparison:
    """Groups of runs."""

    groups: tuple[RunGroup, ...]

    @classmethod
    def read(cls, folders: Sequence[Path], *, by_settings: bool = False) -> Self:
        """Read runs and groups.

        Args:
            folders: The folders of runs, or of folders that hold several; those are a group if they differ by their
                seed alone.
            by_settings: Whether single runs that differ by their seed alone become one group.

        Raises:
            CheckpointError: A folder is neither.
        """
        once: dict[Path, Path] = {}
        for folder in folders:
            once.setdefault(folder.expanduser().resolve(), folder)
        folders = list(once.values())
        groups: dict[str, tuple[RunCurve, ...]] = {}  # by settings if these are different, else by name
        names: dict[str, str] = {}
        for folder, name in zip(folders, _names(folders), strict=True):
            inside = [] if (folder / JsonLines.NAME).exists() else sorted(folder.glob(f"*/{JsonLines.NAME}"))
            runs = tuple(read_run(path.parent) for path in inside) or (read_run(folder),)
            are_alike = len({_without_seed(run) for run in runs} - {""}) <= 1
            for run in runs:
                is_single = len(runs) == 1 or not are_alike
                own = name if are_alike else f"{name}/{run.path.name}"
                settings = _without_seed(run) if by_settings and is_single else ""
                key = settings or own
                groups[key] = (*groups.get(key, ()), run)
                names.setdefault(key, (_described(run) if settings else "") or own)
        given = list(names.values())
        told_apart = [
            f"{name} #{given[: place + 1].count(name)}" if given.count(name) > 1 else name
            for place, name in enumerate(given)
        ]
        return cls(tuple(map(RunGroup, told_apart, groups.values())))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run: group, run, seed, steps, best and last return, their origin, seconds, and end.

        Without returns, they and their origin are None.
        """
        return [
            {
                "group": group.name,
                "run": str(run.path),
                "seed": run.asked.get("seed"),
                "steps": run.taken,
                "best": run.best if len(run.returns) else None,
                "last": run.last if len(run.returns) else None,
                "returns_of": run.returns_of or None,
                "seconds": run.seconds,
                "ended": run.ended,
            }
            for group in self.groups
            for run in group.runs
        ]

    def table(self) -> str:
        """Return the rows as text, and for each group of several runs the interquartile mean of their last returns."""
        alone = [group.runs[0].path for group in self.groups if len(group.runs) == 1]
        names = dict(zip(alone, _names(alone), strict=True))
        for group in self.groups:
            for run in group.runs:
                names.setdefault(run.path, f"{group.name}/{run.path.name}")
        width = max([32, *map(len, names.values())])
        head = f"{'run':<{width}}  {'seed':>6}  {'steps':>10}  {'best':>10}  {'last':>10}"
        lines = [f"{head}  {'returns of':<11}  {'seconds':>8}  ended"]
        for group in self.groups:
            for run in group.runs:
                best, last = (f"{one:.2f}" if len(run.returns) else "-" for one in (run.best, run.last))
                cells = f"{run.asked.get('seed', '')!s:>6}  {run.taken:>10}  {best:>10}  {last:>10}"
                ending = f"{run.returns_of or '-':<11}  {run.seconds:>8.1f}  {run.ended or 'not yet'}"
                lines.append(f"{names[run.path]:<{width}}  {cells}  {ending}")
            interval = group.interval
            if len(group.runs) > 1 and interval is None:
                lines.append(f"{group.name}: no run has an evaluation or a finished episode")
            elif len(group.runs) > 1 and interval is not None:
                low, high = interval
                middle = float(interquartile_mean(group.last_returns))
                exploring = any(run.returns_of == "training" for run in group.runs)
                lines.append(
                    f"{group.name}: interquartile mean of {len(group.last_returns)} runs {middle:.2f}, 95 % interval "
                    f"[{low:.2f}, {high:.2f}]{'; not evaluated: of training episodes' * exploring}"
                )
                seeds = [run.asked["seed"] for run in group.runs if run.asked.get("seed") is not None]
                if again := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
                    lines.append(
                        f"{group.name}: more than one run has the seed {', '.join(map(str, again))}; such runs are not "
                        "independent, and the interval is too narrow"
                    )
        return "\n".join(lines)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return short names that are different: the folders' own, with those above them where these are equal."""
    parts = [folder.expanduser().absolute().parts for folder in folders]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(set(parts)) and depth < max(map(len, parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


# Progress, storage and program of a run: runs of one group may differ in these, as in their seeds.
_NO_SETTINGS = {"seed", "extended_to", "checkpoint_every", "format", "version", "written_by", "repeat_with"}


def _asked_without_seed(run: RunCurve) -> dict[str, Any]:
    """Return the request of a run without its seed, and without values left to the recipe."""
    asked = {k: v for k, v in run.asked.items() if k not in _NO_SETTINGS and v not in (None, "", {})}
    if isinstance(settings := asked.get("settings"), dict):  # from a program, whose settings contain its seed
        asked["settings"] = {name: value for name, value in settings.items() if name not in ("seed", "runs")}
    return asked


def _without_seed(run: RunCurve) -> str:
    """Return the same text for all runs that differ by their seed alone; an empty one if its folder does not say."""
    asked = _asked_without_seed(run)
    return json.dumps(asked, sort_keys=True) if asked else ""


def _described(run: RunCurve) -> str:
    """Return a name for runs with the settings of this one: the program, or the algorithm and its arguments."""
    asked = _asked_without_seed(run)
    name = " ".join(str(asked.pop(part)) for part in ("program", "algorithm", "env") if part in asked)
    asked.pop("settings", None)  # all settings would be too long for a name
    tables = [asked.pop(part, {}) for part in ("given", "env_options")]
    pairs = [pair for part in (asked, *tables) for pair in sorted(part.items())]
    given = ", ".join(f"{name}={value}" for name, value in pairs)
    return name + (f" ({given})" if given else "")


def draw_comparison(comparison: Comparison, path: Path, title: str = "", goal: float | None = None) -> None:
    """Draw all groups as a picture; matplotlib needs no display for it.

    Args:
        comparison: The runs.
        path: The path of the picture; its suffix is the format.
        title: The title above the charts.
        goal: The mean return to draw as a line, or None.

    Raises:
        HyperparameterError: matplotlib does not write files with this suffix.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), dpi=120, layout="constrained")
    if path.suffix.lower()[1:] not in figure.canvas.get_supported_filetypes():
        raise HyperparameterError(f"{path} is no picture: its name must end in .png, .svg or .pdf, or .html (a page)")
    axes = figure.add_subplot()
    for number, group in enumerate(comparison.groups):
        band, colour = group.band(), f"C{number % 10}"
        axes.plot(band.steps, band.middle, color=colour, marker="o", markersize=2.5, label=_label(group))
        if len(group.runs) > 1:
            axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
            for run in group.runs:
                axes.plot(run.steps, run.returns, color=colour, alpha=0.25, linewidth=0.6)
    if goal is not None:
        axes.axhline(goal, color="grey", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(title=title, xlabel="steps", ylabel="return of an episode")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    figure.savefig(path)


def write_page(comparison: Comparison, path: Path, title: str = "", goal: float | None = None) -> None:
    """Write all groups as one HTML file, which needs no network: values at the pointer, zoom, groups on and off.

    Args:
        comparison: The runs.
        path: The path of the file.
        title: The title above the charts.
        goal: The mean return to draw as a line, or None.

    Raises:
        ImportError: plotly is not installed.
    """
    try:
        from plotly import colors, graph_objects
    except ModuleNotFoundError as error:
        raise ImportError('pages are made with plotly: pip install "parl-core[plot]"', name=error.name) from None
    figure = graph_objects.Figure()
    for number, group in enumerate(comparison.groups):
        band = group.band()
        colour = colors.qualitative.D3[number % 10]
        common: dict[str, Any] = {"legendgroup": group.name, "line": {"color": colour, "width": 2}}
        if len(group.runs) > 1:
            steps = np.concatenate([band.steps, band.steps[::-1]]).tolist()
            edge = np.concatenate([band.high, band.low[::-1]]).tolist()
            shade = {**common, "line": {"width": 0}, "fillcolor": colour, "opacity": 0.2, "hoverinfo": "skip"}
            figure.add_trace(
                graph_objects.Scatter(x=steps, y=edge, fill="toself", showlegend=False, mode="lines", **shade)
            )
            for run in group.runs:
                thin = {**common, "line": {"color": colour, "width": 0.7}, "opacity": 0.5, "showlegend": False}
                points = {"x": run.steps.tolist(), "y": run.returns.tolist(), "name": run.path.name}
                figure.add_trace(graph_objects.Scatter(mode="lines", **points, **thin))
        labels = [f"[{low:.2f}, {high:.2f}]" for low, high in zip(band.low, band.high, strict=True)]
        figure.add_trace(
            graph_objects.Scatter(
                x=band.steps.tolist(),
                y=band.middle.tolist(),
                text=labels if len(group.runs) > 1 else None,
                name=_label(group),
                mode="lines+markers",
                marker={"size": 4},
                hovertemplate="%{y:.2f} %{text}" if len(group.runs) > 1 else "%{y:.2f}",
                **common,
            )
        )
    if goal is not None:
        figure.add_hline(goal, line_dash="dash", line_color="grey", annotation_text=f"goal {goal:g}")
    axes = {"xaxis_title": "steps", "yaxis_title": "return of an episode"}
    figure.update_layout(title=title, hovermode="x unified", template="plotly_white", **axes)
    figure.write_html(path, include_plotlyjs=True, full_html=True)


def _label(group: RunGroup) -> str:
    return group.name if len(group.runs) == 1 else f"{group.name} ({len(group.runs)} runs)"


class LearningCurve(Callback):
    """Draws returns over steps when training is over, but not when it was interrupted.

    Args:
        run: The run whose folder receives the picture.
        title: The title of the picture.
        goal: The mean return to draw as a line, or None.
        name: File name of the picture; its suffix is the format.
        steps: The unit of the loop's steps, such as `"gradient steps"` of an offline loop.
    """

    def __init__(
        self,
        run: Run,
        title: str,
        goal: float | None = None,
        name: str = "learning-curve.png",
        steps: str = "environment steps",
    ) -> None:
        self._run, self._title, self._goal, self._name, self._xlabel = run, title, goal, name, steps
        self._steps: list[int] = []
        self._returns: list[float] = []

    def on_update(self, update: Update) -> None:
        self._steps.extend(itertools.repeat(update.step, len(update.episodes)))
        self._returns.extend(episode.episode_return for episode in update.episodes)

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"steps": np.array(self._steps, np.int64), "returns": np.array(self._returns, np.float64)}

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self._steps, self._returns = state["steps"].tolist(), state["returns"].tolist()

    def on_end(self, ended: Ended) -> None:
        if ended.stop is Stop.INTERRUPTED or not (self._steps or ended.evaluations):
            return  # drawing takes too long after Ctrl-C
        path = self._run.path / self._name
        evaluations, goal = ended.evaluations, self._goal
        draw_curve(path, self._title, self._steps, self._returns, evaluations, goal, xlabel=self._xlabel)
        self._run.saved(path, "learning curve")


def draw_curve(
    path: Path,
    title: str,
    steps: Sequence[int],
    returns: Sequence[float],
    evaluations: Sequence[Evaluation],
    goal: float | None = None,
    window: int = 20,
    xlabel: str = "environment steps",
    label: str = "training episode",
) -> None:
    """Draw training episodes (dots, and their mean over `window`) and evaluations (mean and standard deviation).

    Args:
        path: The path of the picture; its suffix is the format.
        title: The title above the picture.
        steps: Environment steps at which each training episode was over.
        returns: One per training episode.
        evaluations: The evaluations, in order.
        goal: The mean return to draw as a line, or None.
        window: Training episodes that are averaged.
        xlabel: The unit of `steps`.
        label: The meaning of the dots.
    """
    from matplotlib.figure import Figure

    # The object interface, because pyplot would choose a display and keep the figure alive.
    figure = Figure(figsize=(8.0, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    if len(returns):
        axes.scatter(steps, returns, s=14, alpha=0.4, color="tab:blue", linewidths=0, label=label)
    if len(returns) >= window:
        mean = np.convolve(returns, np.full(window, 1 / window), mode="valid")
        axes.plot(steps[window - 1 :], mean, color="tab:blue", label=f"mean of {window}")
    if evaluations:
        axes.errorbar(
            [evaluation.step for evaluation in evaluations],
            [evaluation.mean for evaluation in evaluations],
            [evaluation.std for evaluation in evaluations],
            color="tab:orange",
            marker="o",
            capsize=3,
            label=f"evaluation, mean and deviation of {len(evaluations[-1].episodes)} episodes",
        )
    if goal is not None:
        axes.axhline(goal, color="tab:green", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(title=title, xlabel=xlabel, ylabel="return of an episode")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.savefig(path)
