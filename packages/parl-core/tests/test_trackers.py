"""Experiment trackers: real clients, which write to folders of the test and to no network."""

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parl_core.errors import HyperparameterError, ParlError
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
