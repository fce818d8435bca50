"""Experiment trackers: real clients, which write to folders of the test and to no network."""

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parl_core.errors import HyperparameterError, ParlError
from parl_core.training import logs
from parl_core.training.events import Ended, Episode, Evaluation, Stop, Update
from parl_core.training.logs import MLflow, WandB, tracker
from parl_core.training.run import Run

ENDED = Ended(Stop.BUDGET, "10 steps were taken", 10, 1.0)


def tell(callback: Any, step: int) -> None:
    callback.on_update(Update(step, 20, 1.0, [Episode(3.0, 5)], {"loss": 0.5}))
    callback.on_evaluation(Evaluation([Episode(7.0, 5)], step, 1.0))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mlflow_gets_figures_settings_agent_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer clients ask for a database otherwise
    from mlflow.tracking import MlflowClient

    store = (tmp_path / "store").as_uri()
    with Run("r", tmp_path / "runs") as run:
        (run.path / "best.ckpt").write_bytes(b"agent")
        first = MLflow(run, "task", config={"lr": 0.1}, tracking_uri=store)
        assert first.get_state() is None
        tell(first, 5)
        resumed = MLflow(run, "task", tracking_uri=store)
        resumed.set_state(first.get_state())
        tell(resumed, 10)
        resumed.on_end(ENDED)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("task")
    assert experiment is not None
    (record,) = client.search_runs([experiment.experiment_id])
    assert record.info.status == "FINISHED"
    assert record.info.run_name == run.path.name
    assert record.data.params == {"lr": "0.1"}
    assert record.data.metrics["evaluation/return"] == 7.0
    assert [one.step for one in client.get_metric_history(record.info.run_id, "loss/loss")] == [5, 10]
    assert record.data.tags["ended"] == "10 steps were taken"
    assert [one.path for one in client.list_artifacts(record.info.run_id)] == ["best.ckpt"]


def test_a_server_that_does_not_answer_is_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ParlError, match=rf"MLflow: the store {address} cannot be used: .*Connection refused"):
        MLflow(Run("r", tmp_path), tracking_uri=address)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wandb_writes_an_offline_record_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with Run("r", tmp_path / "runs") as run:
        callback = WandB(run, "task", config={"lr": 0.1}, group="g")
        tell(callback, 5)
        assert callback.get_state()
        callback.on_end(ENDED)
        (record,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
        assert record.stat().st_size > 0


def test_a_missing_account_is_said_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class UsageError(Exception):
        pass

    def login(**_: Any) -> None:
        raise UsageError("No API key configured.")

    client = SimpleNamespace(login=login, errors=SimpleNamespace(UsageError=UsageError))
    monkeypatch.setitem(sys.modules, "wandb", client)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(HyperparameterError, match=r"No API key configured\..*WANDB_MODE=offline"):
        WandB(Run("r", tmp_path))
    WandB(Run("r", tmp_path), mode="offline")
    monkeypatch.setenv("WANDB_MODE", "offline")
    WandB(Run("r", tmp_path))


class Record:
    """A record of a Weights & Biases that fails while `is_lost`."""

    id = "r7"
    is_lost = False

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.summary: dict[str, str] = {}
        self.exit_code: int | None = None

    def log(self, figures: dict[str, float], step: int) -> None:
        if self.is_lost:
            raise ConnectionError("the network is unreachable")
        self.steps.append(step)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Let a client of Weights & Biases have this record, and each report try to send."""
    made = Record()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: made))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_TRIES", 0.0)
    monkeypatch.setattr(logs, "SLOWNESS", 0.0)
    return made


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


def test_a_tracker_that_is_lost_in_mid_run_is_reported_once_and_receives_what_it_missed(
    record: Record, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = WandB(Run("r", tmp_path))
    tell(callback, 5)
    record.is_lost = True
    tell(callback, 10)
    tell(callback, 15)
    assert record.steps == [5, 5]
    record.is_lost = False
    tell(callback, 20)
    assert record.steps == [5, 5, 10, 10, 15, 15, 20, 20]
    callback.on_end(ENDED)
    assert (record.summary["ended"], record.exit_code) == ("10 steps were taken", 0)
    (warning,) = told(caplog)
    assert warning == (
        "WandB: figures cannot be sent, training continues, and they are sent when it works again: "
        "the network is unreachable"
    )


def test_a_tracker_that_stays_lost_ends_with_what_it_misses(
    record: Record, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record.is_lost = True
    callback = WandB(Run("r", tmp_path))
    tell(callback, 5)
    tell(callback, 10)
    callback.on_end(ENDED)
    assert len(told(caplog)) == 2
    assert told(caplog)[1] == (
        "WandB: the record of this run lacks 4 reports, which the other logs have: the network is unreachable"
    )


def test_a_lost_tracker_is_not_tried_again_at_each_report(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_TRIES", 3600.0)
    record.is_lost = True
    callback = WandB(Run("r", tmp_path))
    tell(callback, 5)
    record.is_lost = False
    tell(callback, 10)
    assert not record.steps
    callback.on_end(ENDED)
    assert record.steps == [5, 5, 10, 10]


def test_an_mlflow_store_that_is_lost_in_mid_run_receives_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_TRIES", 0.0)
    monkeypatch.setattr(logs, "SLOWNESS", 0.0)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    def lost(*_: Any, **__: Any) -> None:
        raise MlflowException("API request failed: Connection refused")

    store = (tmp_path / "store").as_uri()
    with Run("r", tmp_path / "runs") as run:
        callback = MLflow(run, "task", config={"lr": 0.1, "gamma": 0.9}, tracking_uri=store)
        for method, step in (("create_run", 5), ("log_param", 10), ("log_batch", 15)):
            with monkeypatch.context() as broken:
                broken.setattr(MlflowClient, method, lost)
                tell(callback, step)
        tell(callback, 20)
        callback.on_end(ENDED)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("task")
    assert experiment is not None
    (record,) = client.search_runs([experiment.experiment_id])
    assert record.data.params == {"lr": "0.1", "gamma": "0.9"}
    assert [one.step for one in client.get_metric_history(record.info.run_id, "loss/loss")] == [5, 10, 15, 20]
    assert record.info.status == "FINISHED"


def test_a_resumed_mlflow_record_receives_the_settings_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    store = (tmp_path / "store").as_uri()
    first = MLflow(Run("r", tmp_path / "runs"), "task", config={"lr": 0.1}, tracking_uri=store)
    tell(first, 5)
    resumed = MLflow(Run("r", tmp_path / "runs"), "task", config={"lr": 0.2, "gamma": 0.9}, tracking_uri=store)
    resumed.set_state(first.get_state())
    tell(resumed, 10)
    record = MlflowClient(store).get_run(str(first.get_state()))
    assert record.data.params == {"lr": "0.1", "gamma": "0.9"}
    assert [one.step for one in MlflowClient(store).get_metric_history(record.info.run_id, "loss/loss")] == [5, 10]


def test_the_end_of_a_record_of_a_lost_server_is_not_tried_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    retries: list[str | None] = []

    def lost(*_: Any, **__: Any) -> None:
        retries.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
        raise MlflowException("API request failed: Connection refused")

    callback = MLflow(Run("r", tmp_path), "task", tracking_uri=(tmp_path / "store").as_uri())
    tell(callback, 5)
    monkeypatch.setattr(MlflowClient, "set_tag", lost)
    callback.on_end(ENDED)
    assert retries == ["1"]
    (warning,) = told(caplog)
    assert warning.startswith("MLflow: the record of this run lacks its end, which the other logs have: API request")


def test_a_report_or_setting_that_mlflow_refuses_is_left_out_and_the_record_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    store = (tmp_path / "store").as_uri()
    with Run("r", tmp_path / "runs") as run:
        callback = MLflow(run, "task", config={"rate [1/s]": 0.1, "lr": 0.1}, tracking_uri=store)
        for step in (5, 10):
            callback.on_update(Update(step, 20, 1.0, losses={"loss [mean]": 0.5}))
        callback.on_update(Update(15, 20, 1.0, losses={"loss": 0.5}))
        callback.on_end(ENDED)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("task")
    assert experiment is not None
    (record,) = client.search_runs([experiment.experiment_id])
    assert [one.step for one in client.get_metric_history(record.info.run_id, "loss/loss")] == [15]
    assert record.info.status == "FINISHED"
    assert record.data.params == {"lr": "0.1"}
    setting, refused, at_the_end = told(caplog)
    assert setting.startswith("MLflow: the setting rate [1/s] is refused, and left out: ")
    assert refused.startswith("MLflow: a report is refused, and left out like all others that are: ")
    assert at_the_end == "MLflow: the record of this run lacks 2 reports, which the other logs have"


def test_a_lost_tracker_misses_the_oldest_reports_of_very_many(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs, "MOST_UNSENT", 3)
    record.is_lost = True
    callback = WandB(Run("r", tmp_path))
    tell(callback, 5)
    tell(callback, 10)
    record.is_lost = False
    callback.on_end(ENDED)
    assert record.steps == [5, 10, 10]
    assert told(caplog)[1] == "WandB: the record of this run lacks 1 report, which the other logs have"


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SimpleNamespace(algorithm="PPO", env="CartPole-v1", seed=0, settings=dict)
    run = Run("r", tmp_path)
    for module, name in (("wandb", "wandb"), ("mlflow.tracking", "mlflow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r'pip install "parl-core\[track\]"'):
            tracker(name, run, asked)
    assert not list(tmp_path.iterdir())
