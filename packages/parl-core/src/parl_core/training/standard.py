"""The callbacks that most runs want, put together."""

from typing import Any

from parl_core.training.curve import LearningCurve
from parl_core.training.events import Callback, Ended, Stop
from parl_core.training.logs import CsvTables, JsonLines, TensorBoard
from parl_core.training.progress import Progress
from parl_core.training.run import Run
from parl_core.training.stopping import (
    ConfirmedReturn,
    KeepBest,
    KeepLatest,
    NoImprovement,
    SavableAgent,
    StepBudget,
    TimeBudget,
)

__all__ = ["standard_callbacks"]


class _TellInterrupted(Callback):
    """Says what was saved before anything else is closed, because a second signal may follow."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_end(self, ended: Ended) -> None:
        if ended.stop is Stop.INTERRUPTED:
            self._run.tell_interrupted()


def standard_callbacks(
    run: Run,
    agent: SavableAgent,
    *,
    title: str = "",
    goal: float | None = None,
    confirmations: int = 2,
    max_seconds: float | None = None,
    max_steps: int | None = None,
    patience: int | None = None,
    steps: str = "environment steps",
    normalization: Any = None,
) -> list[Callback]:
    """Progress on the terminal, TensorBoard, CSV, JSON lines, a learning curve, best and latest weights, when to stop.

    Args:
        run: whose folder takes all files.
        agent: whose best weights are kept in `best.ckpt`, and put back at the end; the latest are in `last.ckpt`.
        title: of the learning curve.
        goal: mean return of an evaluation that counts as solved; None trains until the budget is used up.
        confirmations: evaluations in a row that have to reach the goal.
        max_seconds: time budget; None for none.
        max_steps: stop there although the loop's own budget goes on, for a run in portions; None for not.
        patience: stop after so many evaluations without improvement; None for never.
        steps: what the loop counts, for the learning curve, such as `"gradient steps"` of an offline one.
        normalization: the environment whose running statistics belong to the agent (`NormalizeVector`): saved with it.
    """
    callbacks: list[Callback] = [
        _TellInterrupted(run),
        KeepLatest(agent, run, normalization=normalization),
        KeepBest(agent, run, normalization=normalization),
        TensorBoard(run),
        CsvTables(run),
        JsonLines(run),
        LearningCurve(run, title or run.name, goal, steps=steps),
        Progress(),  # after those that save, so that what it shows has been saved
    ]
    if goal is not None:
        callbacks.append(ConfirmedReturn(goal, confirmations))
    if max_seconds is not None:
        callbacks.append(TimeBudget(max_seconds))
    if max_steps is not None:
        callbacks.append(StepBudget(max_steps))
    if patience is not None:
        callbacks.append(NoImprovement(patience))
    return callbacks
