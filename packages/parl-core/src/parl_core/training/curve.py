"""The learning curve of a run as a picture; matplotlib draws it without a display after the loop has ended."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.run import Run

__all__ = ["LearningCurve", "draw_curve"]


class LearningCurve(Callback):
    """Draws returns over steps when training is over, but not when it was interrupted.

    Args:
        run: the picture is saved in its folder.
        title: of the picture.
        goal: mean return that is drawn as a line; None draws none.
        name: file name of the picture; its suffix is the format.
        steps: what the loop counts, such as `"gradient steps"` of an offline one.
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
        """Continue from what `get_state` returned."""
        self._steps, self._returns = state["steps"].tolist(), state["returns"].tolist()

    def on_end(self, ended: Ended) -> None:
        if ended.stop is Stop.INTERRUPTED or not (self._steps or ended.evaluations):
            return  # drawing takes longer than a person who pressed Ctrl-C wants to wait
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
        path: of the picture; its suffix is the format.
        title: above the picture.
        steps: environment steps at which each training episode was over.
        returns: one a training episode.
        evaluations: in order.
        goal: drawn as a line where given.
        window: training episodes that are averaged.
        xlabel: what `steps` count.
        label: what the dots are.
    """
    from matplotlib.figure import Figure

    # The object interface, because pyplot would choose a display and keep the figure for the whole process.
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
