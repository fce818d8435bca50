"""What a run leaves behind to be read later: TensorBoard event files and CSV tables."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_core.csv_log import CSVLogger
from parl_core.training.events import Callback, Ended, Evaluation, Update
from parl_core.training.run import Run

__all__ = ["CsvTables", "TensorBoard", "figures"]


def figures(event: Update | Evaluation) -> dict[str, float]:
    """The numbers of an event, named as in TensorBoard (`group/name`).

    Args:
        event: an update gives `train/return` and `train/length` (means of the episodes that ended; absent when none
            did), `loss/*`, `schedule/*`, `speed/steps_per_second` and its `metrics`; an evaluation `evaluation/return`,
            `evaluation/deviation` and `evaluation/length`.
    """
    if isinstance(event, Evaluation):
        lengths = [episode.length for episode in event.episodes]
        return {
            "evaluation/return": event.mean,
            "evaluation/deviation": event.std,
            "evaluation/length": float(np.mean(lengths)),
        }
    named = {f"loss/{name}": value for name, value in event.losses.items()}
    named |= {f"schedule/{name}": value for name, value in event.schedules.items()}
    named |= event.metrics
    if event.seconds > 0:
        named["speed/steps_per_second"] = event.step / event.seconds
    if event.episodes:
        named["train/return"] = float(np.mean([episode.episode_return for episode in event.episodes]))
        named["train/length"] = float(np.mean([episode.length for episode in event.episodes]))
    return named


class TensorBoard(Callback):
    """Writes scalars over environment steps, for `tensorboard --logdir <folder>`.

    Args:
        run: the event files go to `tensorboard/` in its folder.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._writer: Any = None

    def on_update(self, update: Update) -> None:
        self._write(update)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write(evaluation)

    def on_end(self, ended: Ended) -> None:  # noqa: ARG002  # the name belongs to the interface
        if self._writer is not None:
            self._writer.close()

    def _write(self, event: Update | Evaluation) -> None:
        if self._writer is None:
            from tensorboardX import SummaryWriter

            folder = self._run.path / "tensorboard"
            self._writer = SummaryWriter(str(folder))
            self._run.saved(folder, f"TensorBoard log, to be seen with: tensorboard --logdir {folder}")
        for name, value in figures(event).items():
            self._writer.add_scalar(name, value, event.step)


class CsvTables(Callback):
    """Writes one row an update to `updates.csv` and one an evaluation to `evaluations.csv`, each at once.

    The columns are those of the first row; a number that is missing later leaves its cell empty.

    Args:
        run: the tables go to its folder.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tables: dict[str, tuple[CSVLogger, list[str]]] = {}

    def on_update(self, update: Update) -> None:
        sometimes = dict.fromkeys(("train/return", "train/length", "speed/steps_per_second"), math.nan)
        self._write("updates.csv", update, sometimes | figures(update))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write("evaluations.csv", evaluation, figures(evaluation))

    def on_end(self, ended: Ended) -> None:  # noqa: ARG002  # the name belongs to the interface
        for table, _ in self._tables.values():
            table.close()

    def _write(self, name: str, event: Update | Evaluation, numbers: Mapping[str, float]) -> None:
        row = {"step": event.step, "seconds": event.seconds, **numbers}
        if name not in self._tables:
            path = self._run.path / name
            self._tables[name] = CSVLogger(path), list(row)
            self._run.saved(path, "table")
        table, columns = self._tables[name]
        table.log_dict({column: _cell(row.get(column, math.nan)) for column in columns})
        table.flush()


def _cell(value: float) -> float | str:
    return "" if math.isnan(value) else value
