"""Logs of a run: TensorBoard event files, CSV tables and JSON lines, and the trackers Weights & Biases and MLflow.

    callbacks = [*standard_callbacks(run, agent), WandB(run, project="cartpole")]

All have the same figures under the same names, which `docs/reference/metrics.md` lists with their meanings. Logs of a
resumed run continue at the checkpoint: lines that a killed program wrote after its last checkpoint are removed first,
because the resumed run writes them again.

A tracker is imported when a run uses it, and configured as described in its own documentation (`WANDB_MODE=offline`,
`MLFLOW_TRACKING_URI=…`). It receives the settings of the run as its configuration, and at the end the best agent.
"""

import csv
import itertools
import json
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from parl_core import logger
from parl_core._csv_log import CSVLogger
from parl_core.atomic_write import atomic_write, sync
from parl_core.errors import HyperparameterError, ParlError
from parl_core.summary import EventFile
from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.run import Run

__all__ = [
    "TRACKERS",
    "CsvTables",
    "JsonLines",
    "JsonOutput",
    "MLflow",
    "TensorBoard",
    "WandB",
    "cut_back",
    "figures",
    "size_on_disk",
    "tracker",
]


def size_on_disk(path: Path) -> int:
    """Sync a file to the disk and return its size; its writer must have flushed it before."""
    sync(path)
    return path.stat().st_size


def cut_back(path: Path, size: int | None) -> None:
    """Truncate a file to an earlier size; None removes it, because it did not exist. A shorter file does not change."""
    if size is None:
        path.unlink(missing_ok=True)
    elif path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def figures(event: Update | Evaluation) -> dict[str, float]:
    """Return the numbers of an event, named as in TensorBoard (`group/name`).

    Args:
        event: An update has `train/return` and `train/length` (means of the episodes that ended; absent if none did),
            `loss/*`, `schedule/*`, `speed/steps_per_second` and the metrics of the loop; an evaluation has
            `evaluation/return`, `evaluation/deviation` and `evaluation/length`.
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

    A resumed run begins a new event file, which hides the later steps in the previous one.

    Args:
        run: The run whose folder receives the event files, in `tensorboard/`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._file: EventFile | None = None
        self._resumed_at: int | None = None
        self._step = 0

    def on_update(self, update: Update) -> None:
        self._write(update)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write(evaluation)

    def on_end(self, ended: Ended) -> None:  # noqa: ARG002  # the name belongs to the interface
        if self._file is not None:
            self._file.close()

    def get_state(self) -> int:
        """Return the state for a checkpoint."""
        return self._step

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self._resumed_at = self._step = int(state)

    def _write(self, event: Update | Evaluation) -> None:
        from tensorboardX.summary import scalar

        if self._file is None:
            folder = self._run.path / "tensorboard"
            self._file = EventFile(folder)
            if self._resumed_at is not None:
                self._file.hide_earlier_from(self._resumed_at + 1)
            self._run.saved(folder, f"TensorBoard log, to be seen with: tensorboard --logdir {folder}")
        self._step = event.step
        for name, value in figures(event).items():
            self._file.add(scalar(name, value), event.step)


class CsvTables(Callback):
    """Writes one row per update to `updates.csv` and one per evaluation to `evaluations.csv`, each at once.

    The cell of a missing number is empty. A number that first appears after the first row adds a column, with empty
    cells above.

    Args:
        run: The run whose folder receives the tables.
    """

    NAMES = ("updates.csv", "evaluations.csv")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tables: dict[str, tuple[CSVLogger, list[str]]] = {}
        self._rows: dict[str, int] = {}

    def on_update(self, update: Update) -> None:
        sometimes = dict.fromkeys(("train/return", "train/length", "speed/steps_per_second"), math.nan)
        self._write("updates.csv", update, sometimes | figures(update))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write("evaluations.csv", evaluation, figures(evaluation))

    def on_end(self, ended: Ended) -> None:  # noqa: ARG002  # the name belongs to the interface
        for table, _ in self._tables.values():
            table.close()

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the number of rows and the columns of the tables."""
        state = {}
        for name, (table, columns) in self._tables.items():
            table.flush()
            size_on_disk(table.path)
            state[name] = {"rows": self._rows[name], "columns": columns}
        return state

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned; rows of later steps are removed."""
        for name in self.NAMES:
            path = self._run.path / name
            if name not in state or not path.exists():
                path.unlink(missing_ok=True)
                continue
            columns, rows = list(state[name]["columns"]), int(state[name]["rows"])
            _rewrite(path, columns, rows)
            self._tables[name], self._rows[name] = (CSVLogger(path), columns), rows
            self._run.saved(path, "table")

    def _write(self, name: str, event: Update | Evaluation, numbers: Mapping[str, float]) -> None:
        row = {"step": event.step, "seconds": event.seconds, **numbers}
        if name not in self._tables:
            path = self._run.path / name
            self._tables[name], self._rows[name] = (CSVLogger(path), list(row)), 0
            self._run.saved(path, "table")
        table, columns = self._tables[name]
        if new := [column for column in row if column not in columns]:
            table.close()
            columns = columns + new
            _rewrite(table.path, columns, self._rows[name])
            table = CSVLogger(table.path)
            self._tables[name] = table, columns
        table.log_dict({column: _cell(row.get(column, math.nan)) for column in columns})
        table.flush()
        self._rows[name] += 1


class JsonLines(Callback):
    """Writes one JSON object per event to `metrics.jsonl`, each at once.

        {"event": "update", "step": 2048, "seconds": 1.7, "train/return": 21.4, "loss/policy_loss": -0.01}

    A figure that is not finite is `null`; a missing figure is left out. The last line of a run that ended by itself has
    `"event": "end"` and the reason.

    Args:
        run: The run whose folder receives the file.
    """

    NAME = "metrics.jsonl"

    def __init__(self, run: Run) -> None:
        self._run = run
        self._file: TextIO | None = None
        self._goes_on = False  # after lines of an earlier process

    def on_update(self, update: Update) -> None:
        self._write("update", update.step, update.seconds, figures(update))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._write("evaluation", evaluation.step, evaluation.seconds, figures(evaluation))

    def on_end(self, ended: Ended) -> None:
        if self._file is None and not self._goes_on:
            return
        try:
            self._write("end", ended.step, ended.seconds, {"stop": ended.stop.name.lower(), "reason": ended.reason})
        finally:
            if self._file is not None:
                self._file.close()

    def get_state(self) -> int | None:
        """Return the state for a checkpoint: the length of the file."""
        return None if self._file is None else size_on_disk(self._run.path / self.NAME)

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned; lines of later steps are removed."""
        cut_back(self._run.path / self.NAME, state)
        self._goes_on = state is not None

    def _write(self, event: str, step: int, seconds: float, numbers: Mapping[str, Any]) -> None:
        if self._file is None:
            path = self._run.path / self.NAME
            self._file = path.open("a", encoding="utf-8")
            self._run.saved(path, "figures, one JSON object per line")
        print(_line(event, step, seconds, numbers), file=self._file, flush=True)


class JsonOutput(Callback):
    """Prints the lines of `JsonLines` to a stream, for programs that start a run and read its output.

    Args:
        out: The stream.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def on_update(self, update: Update) -> None:
        self._print("update", update.step, update.seconds, {"total_steps": update.total_steps, **figures(update)})

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._print("evaluation", evaluation.step, evaluation.seconds, figures(evaluation))

    def on_end(self, ended: Ended) -> None:
        self._print("end", ended.step, ended.seconds, {"stop": ended.stop.name.lower(), "reason": ended.reason})

    def _print(self, event: str, step: int, seconds: float, numbers: Mapping[str, Any]) -> None:
        print(_line(event, step, seconds, numbers), file=self._out, flush=True)


def _line(event: str, step: int, seconds: float, numbers: Mapping[str, Any]) -> str:
    finite = {name: _finite(number) for name, number in numbers.items()}
    return json.dumps({"event": event, "step": step, "seconds": seconds, **finite})


def _cell(value: float) -> float | str:
    return "" if math.isnan(value) else value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rewrite(path: Path, columns: Sequence[str], rows: int) -> None:
    """Change the columns of a table atomically, and keep its first rows."""
    text: dict[str, Any] = {"newline": "", "encoding": "utf-8"}
    with (
        atomic_write(path, "w", **text) as new,
        path.open(**text) as old,
    ):  # the old one is closed before it is replaced
        reader = csv.DictReader(old, restval="")
        writer = csv.DictWriter(new, columns, restval="", extrasaction="ignore", lineterminator="\r\n")
        writer.writeheader()
        for row in itertools.islice(reader, rows):
            writer.writerow({column: row.get(column) or "" for column in columns})


TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Names that `--track` takes; `tensorboard` is always written."""

PROJECT = "parl"


def tracker(name: str, run: Run, asked: Any) -> Callback:
    """Return the logger of a tracker for a run of `parl train`.

    Args:
        name: One of `TRACKERS`.
        run: The run; its folder takes the record.
        asked: The `RecipeRun`.

    Raises:
        ImportError: Its package is not installed.
    """
    title = f"{asked.algorithm} on {asked.env}"
    config = {"algorithm": asked.algorithm, "env": asked.env, "seed": asked.seed, **asked.settings()}
    if name == "wandb":
        return WandB(run, PROJECT, group=title, config=config)
    if name == "mlflow":
        return MLflow(run, title, config=config)
    return Callback()  # standard_callbacks has it


SECONDS_BETWEEN_TRIES = 60.0
"""Seconds until a tracker that has failed is tried again."""
SLOWNESS = 10.0
"""Least multiple of a failed attempt's duration until the next attempt, so that a slow tracker slows no run down."""
MOST_UNSENT = 10_000
"""Reports that wait for a tracker that has failed; of more, the oldest are dropped."""


class _Seen(NamedTuple):
    """The figures of an event, and when they were seen, in milliseconds since 1970."""

    step: int
    seconds: float
    figures: Mapping[str, float]
    time_ms: int


class _Tracker(Callback):
    """Sends figures to a tracker. If it fails, training continues, and the figures are sent when it works again.

    A report that the tracker refuses as invalid is dropped, because it would be refused again.
    """

    def __init__(self) -> None:
        self._unsent: deque[_Seen] = deque(maxlen=MOST_UNSENT)
        self._dropped = 0
        self._has_refused = self._has_failed = False
        self._next_try = -math.inf

    def on_update(self, update: Update) -> None:
        self._log(update)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._log(evaluation)

    def on_end(self, ended: Ended) -> None:
        if self._id is None and not self._unsent and not self._dropped:
            return
        lacking: list[str] = []
        errors: list[str] = []
        try:
            self._send_all()
        except Exception as error:
            errors.append(str(error))
        if missing := self._dropped + len(self._unsent):
            lacking.append(f"{missing} report{'s' * (missing != 1)}")
        try:
            self._finish(ended)
        except Exception as error:
            lacking.append("its end")
            errors.append(str(error))
        if lacking:
            logger.warning(
                "%s: the record of this run lacks %s, which the other logs have%s",
                type(self).__name__,
                " and ".join(lacking),
                "".join(f": {error}" for error in dict.fromkeys(errors)),
            )

    def _log(self, event: Update | Evaluation) -> None:
        self._dropped += len(self._unsent) == self._unsent.maxlen
        self._unsent.append(_Seen(event.step, event.seconds, figures(event), time.time_ns() // 1_000_000))
        began = time.monotonic()
        if began < self._next_try:
            return
        try:
            self._send_all()
        except Exception as error:  # of any kind, because clients do not document theirs
            ended = time.monotonic()
            self._next_try = ended + max(SECONDS_BETWEEN_TRIES, SLOWNESS * (ended - began))
            if not self._has_failed:
                logger.warning(
                    "%s: figures cannot be sent, training continues, and they are sent when it works again: %s",
                    type(self).__name__,
                    str(error),
                )
            self._has_failed = True
            return
        if self._has_failed:
            logger.info("%s: it works again, and the figures since it failed were sent", type(self).__name__)
        self._has_failed = False

    def _send_all(self) -> None:
        while self._unsent:
            try:
                self._send(self._unsent[0])
            except Exception as error:
                if not self._is_refusal(error):
                    raise
                self._dropped += 1
                if not self._has_refused:
                    logger.warning(
                        "%s: a report is refused, and left out like all others that are: %s",
                        type(self).__name__,
                        str(error),
                    )
                self._has_refused = True
            self._unsent.popleft()

    _id: str | None = None
    """The record's id, once there is one."""

    def _is_refusal(self, error: Exception) -> bool:  # noqa: ARG002  # the name belongs to the interface
        """Return whether an error means that the tracker refuses the data, so that sending them again is useless."""
        return False

    def _send(self, seen: _Seen) -> None:
        """Send figures, the first ones into a new record or that of `set_state`."""
        raise NotImplementedError

    def _finish(self, ended: Ended) -> None:
        """Close the record, with the best agent."""
        raise NotImplementedError


class WandB(_Tracker):
    """Logs a run to Weights & Biases; its files are in `wandb/` in the run's folder.

    A failure during the run is logged once. Training continues, and the figures are sent when it works again.

    Args:
        run: The run; its folder takes the files, its name is the record's.
        project: The project of the record.
        config: Settings, shown with the record.
        options: Further arguments of `wandb.init`, such as `group`, `tags` or `mode="offline"`.

    Raises:
        ImportError: wandb is not installed.
        HyperparameterError: The record is to be sent, but no account is configured.
    """

    def __init__(
        self, run: Run, project: str = PROJECT, config: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__()
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise _missing("Weights & Biases", "wandb", error) from None
        if (options.get("mode") or os.environ.get("WANDB_MODE", "online")) == "online":
            try:  # now, because the record is made at the first update
                wandb.login(verify=False)
            except wandb.errors.UsageError as error:
                raise HyperparameterError(
                    f"Weights & Biases: {error} Without an account, WANDB_MODE=offline writes the record into the "
                    "folder of the run."
                ) from None
        self._client: Any = wandb
        self._run, self._options = run, {"project": project, "config": dict(config or {}), **options}
        self._record: Any = None

    def get_state(self) -> str | None:
        """Return the state for a checkpoint: the record's id."""
        return self._id

    def set_state(self, state: Any) -> None:
        """Continue in the same record."""
        self._id = state

    def _send(self, seen: _Seen) -> None:
        if self._record is None:
            again = {} if self._id is None else {"id": self._id, "resume": "allow"}
            options = {"name": self._run.path.name, "dir": str(self._run.path), **again, **self._options}
            self._record = self._client.init(**options)
            self._id = self._record.id
        self._record.log({**seen.figures, "step": seen.step, "seconds": seen.seconds}, step=seen.step)

    def _finish(self, ended: Ended) -> None:
        if self._record is None:
            return
        self._record.summary["ended"] = ended.reason
        best = self._run.path / "best.ckpt"
        if best.exists() and ended.stop in (Stop.BUDGET, Stop.CALLBACK):
            agent = self._client.Artifact(f"agent-{self._record.id}", type="model")
            agent.add_file(str(best))
            self._record.log_artifact(agent)
        self._record.finish(exit_code=1 if ended.stop is Stop.FAILED else 0)


class MLflow(_Tracker):
    """Logs a run to MLflow; without `MLFLOW_TRACKING_URI` to the default store of its client.

    A failure during the run is logged once. Training continues, and the figures are sent when it works again.

    Args:
        run: The run; its name is the record's.
        experiment: The experiment of the record.
        config: Settings, which become its parameters.
        tracking_uri: Address of the store; default: that of `MLFLOW_TRACKING_URI`.

    Raises:
        ImportError: mlflow is not installed.
        ParlError: The store cannot be used; its server does not answer, for instance.
    """

    def __init__(
        self,
        run: Run,
        experiment: str = PROJECT,
        config: Mapping[str, Any] | None = None,
        *,
        tracking_uri: str | None = None,
    ) -> None:
        super().__init__()
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ModuleNotFoundError as error:
            raise _missing("MLflow", "mlflow-skinny", error) from None
        try:
            self._client: Any = MlflowClient(tracking_uri)
            with _answering_soon():  # now, because the record is made at the first update
                self._client.get_experiment_by_name(experiment)
        except MlflowException as error:
            uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "of its client's default")
            raise ParlError(f"MLflow: the store {uri} cannot be used: {error}") from error
        self._run, self._experiment, self._config = run, experiment, dict(config or {})
        self._resumed = False

    def get_state(self) -> str | None:
        """Return the state for a checkpoint: the record's id."""
        return self._id

    def set_state(self, state: Any) -> None:
        """Continue in the same record."""
        self._id, self._resumed = state, state is not None

    def _send(self, seen: _Seen) -> None:
        from mlflow.entities import Metric

        with _answering_soon():
            if self._id is None:
                self._id = self._begin()
            elif self._resumed:
                self._client.update_run(self._id, status="RUNNING")
                for name in self._client.get_run(self._id).data.params:  # they are there, and cannot change
                    self._config.pop(name, None)
                self._resumed = False
            for name in list(self._config):
                try:
                    self._client.log_param(self._id, name, str(self._config[name])[:6000])
                except Exception as error:
                    if not self._is_refusal(error):
                        raise
                    logger.warning("MLflow: the setting %s is refused, and left out: %s", name, str(error))
                del self._config[name]
            metrics = [Metric(name, value, seen.time_ms, seen.step) for name, value in seen.figures.items()]
            self._client.log_batch(self._id, metrics)

    def _finish(self, ended: Ended) -> None:
        if self._id is None:
            return
        status = {Stop.FAILED: "FAILED", Stop.INTERRUPTED: "KILLED"}.get(ended.stop, "FINISHED")
        with _answering_soon():
            self._client.set_tag(self._id, "ended", ended.reason)
            self._client.set_terminated(self._id, status)
        best = self._run.path / "best.ckpt"
        if best.exists() and ended.stop in (Stop.BUDGET, Stop.CALLBACK):
            self._client.log_artifact(self._id, str(best))

    def _is_refusal(self, error: Exception) -> bool:
        return getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"

    def _begin(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        return str(self._client.create_run(experiment, run_name=self._run.path.name).info.run_id)


@contextmanager
def _answering_soon() -> Iterator[None]:
    """Let MLflow's client give up after seconds, not minutes, unless its user has set how long it tries."""
    set_here = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
    set_here = {name: value for name, value in set_here.items() if name not in os.environ}
    os.environ.update(set_here)
    try:
        yield
    finally:
        for name in set_here:
            del os.environ[name]


def _missing(what: str, package: str, error: ModuleNotFoundError) -> ImportError:
    return ImportError(f'{what} needs {package}: pip install "parl-core[track]"', name=error.name)
