"""Loggers of experiment trackers: Weights & Biases, and MLflow; each is imported when a run uses it.

    callbacks = [*standard_callbacks(run, agent), WandB(run, project="cartpole")]

They get the figures of every other log under the same names, the settings of the run as its configuration, and at the
end the best agent. Both are set up as their own documentation says (`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI=…`). A
resumed run continues in the same record.
"""

from collections.abc import Mapping
from typing import Any

from parl_core.training.events import Callback, Ended, Evaluation, Stop, Update
from parl_core.training.logs import figures
from parl_core.training.run import Run

__all__ = ["TRACKERS", "MLflow", "WandB", "tracker"]

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Names that `--track` takes; `tensorboard` is always written."""

PROJECT = "parl"


def tracker(name: str, run: Run, asked: Any) -> Callback:
    """Return the logger of a tracker for a run of `parl train`.

    Args:
        name: one of `TRACKERS`.
        run: its folder has the record.
        asked: the `RecipeRun`.

    Raises:
        ImportError: its package is not installed.
    """
    title = f"{asked.algorithm} on {asked.env}"
    config = {"algorithm": asked.algorithm, "env": asked.env, "seed": asked.seed, **asked.settings()}
    if name == "wandb":
        return WandB(run, PROJECT, group=title, config=config)
    if name == "mlflow":
        return MLflow(run, title, config=config)
    return Callback()  # standard_callbacks has it


class WandB(Callback):
    """Logs a run to Weights & Biases; its files are in `wandb/` in the run's folder.

    Args:
        run: whose folder; its name is the record's.
        project: of the record.
        config: settings, shown beside it.
        options: further arguments of `wandb.init`, such as `group`, `tags` or `mode="offline"`.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(
        self, run: Run, project: str = PROJECT, config: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise _missing("Weights & Biases", "wandb", error) from None
        self._client: Any = wandb
        self._run, self._options = run, {"project": project, "config": dict(config or {}), **options}
        self._record: Any = None
        self._id: str | None = None

    def on_update(self, update: Update) -> None:
        self._log(update)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._log(evaluation)

    def on_end(self, ended: Ended) -> None:
        if self._record is None:
            return
        self._record.summary["ended"] = ended.reason
        best = self._run.path / "best.ckpt"
        if best.exists() and ended.stop in (Stop.BUDGET, Stop.CALLBACK):
            agent = self._client.Artifact(f"agent-{self._record.id}", type="model")
            agent.add_file(str(best))
            self._record.log_artifact(agent)
        self._record.finish(exit_code=1 if ended.stop is Stop.FAILED else 0)

    def get_state(self) -> str | None:
        """Return the state for a checkpoint: the record's id."""
        return self._id

    def set_state(self, state: Any) -> None:
        """Continue in the same record."""
        self._id = state

    def _log(self, event: Update | Evaluation) -> None:
        if self._record is None:
            again = {} if self._id is None else {"id": self._id, "resume": "allow"}
            options = {"name": self._run.path.name, "dir": str(self._run.path), **again, **self._options}
            self._record = self._client.init(**options)
            self._id = self._record.id
        self._record.log({**figures(event), "step": event.step, "seconds": event.seconds}, step=event.step)


class MLflow(Callback):
    """Logs a run to MLflow; without `MLFLOW_TRACKING_URI` its client's own default store takes it.

    Args:
        run: its name is the record's.
        experiment: of the record.
        config: settings, its parameters.
        tracking_uri: of the store; default: as `MLFLOW_TRACKING_URI` says.

    Raises:
        ImportError: mlflow is not installed.
    """

    def __init__(
        self,
        run: Run,
        experiment: str = PROJECT,
        config: Mapping[str, Any] | None = None,
        *,
        tracking_uri: str | None = None,
    ) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ModuleNotFoundError as error:
            raise _missing("MLflow", "mlflow-skinny", error) from None
        self._client: Any = MlflowClient(tracking_uri)
        self._run, self._experiment, self._config = run, experiment, dict(config or {})
        self._id: str | None = None
        self._resumed = False

    def on_update(self, update: Update) -> None:
        self._log(update)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._log(evaluation)

    def on_end(self, ended: Ended) -> None:
        if self._id is None:
            return
        self._client.set_tag(self._id, "ended", ended.reason)
        best = self._run.path / "best.ckpt"
        if best.exists() and ended.stop in (Stop.BUDGET, Stop.CALLBACK):
            self._client.log_artifact(self._id, str(best))
        status = {Stop.FAILED: "FAILED", Stop.INTERRUPTED: "KILLED"}.get(ended.stop, "FINISHED")
        self._client.set_terminated(self._id, status)

    def get_state(self) -> str | None:
        """Return the state for a checkpoint: the record's id."""
        return self._id

    def set_state(self, state: Any) -> None:
        """Continue in the same record."""
        self._id, self._resumed = state, state is not None

    def _log(self, event: Update | Evaluation) -> None:
        if self._id is None:
            self._id = self._begin()
        elif self._resumed:
            self._client.update_run(self._id, status="RUNNING")
            self._resumed = False
        for name, value in figures(event).items():
            self._client.log_metric(self._id, name, value, step=event.step)

    def _begin(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        record = self._client.create_run(experiment, run_name=self._run.path.name)
        for name, value in self._config.items():
            self._client.log_param(record.info.run_id, name, str(value)[:6000])
        return str(record.info.run_id)


def _missing(what: str, package: str, error: ModuleNotFoundError) -> ImportError:
    return ImportError(f'{what} needs {package}: pip install "parl-core[track]"', name=error.name)
