"""Checkpoints of actors and a learner, with an agent of numpy: what goes on exactly, what does not, what is refused."""

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

from parl_core._subprocess_actors import SubprocessActors
from parl_core.checkpoint import CheckpointStore
from parl_core.errors import CheckpointError, DivergedError, HyperparameterError, RunExistsError
from parl_core.training import (
    ActorLearnerSettings,
    Callback,
    Checkpoints,
    CsvTables,
    Run,
    StepBudget,
    Update,
    train_actor_learner,
)

pytestmark = pytest.mark.usefixtures("importable_classes")

EVERY = 36


class VTraceLoss(NamedTuple):
    total_loss: float


class Linear:
    """Acts and learns like IMPALA with one matrix; what it does depends on everything that it ever saw."""

    sample_batch_steps = 3

    def __init__(self) -> None:
        self.weights = np.zeros((4, 2))
        self.updates = 0
        self.spoil_from = 10**9
        self.seen: list[bytes] = []

    def logits(self, obs: Any) -> Any:
        return obs["position"] @ self.weights

    def value(self, obs: Any) -> Any:
        return self.logits(obs).max(axis=1)

    def learn(self, obs: Any, action: Any, logits: Any, reward: Any, done: Any, **more: Any) -> Any:
        self.updates += 1
        self.seen.append(b"".join(np.ascontiguousarray(part).tobytes() for part in (action, logits, reward, done)))
        gain = reward + 0.1 * len(more["last_obs"]["position"]) - 0.01 * done
        self.weights = self.weights + 0.01 * obs["position"].T @ np.stack([gain, np.roll(gain, 1) * action], axis=1)
        self.weights = self.weights / max(1.0, float(np.abs(self.weights).max()))
        return VTraceLoss(float("nan") if self.updates >= self.spoil_from else float(self.weights.sum())), 0.0

    def get_weights(self) -> dict[str, Any]:
        return {"weights": self.weights.copy()}

    def set_weights(self, weights: dict[str, Any]) -> None:
        self.weights = np.array(weights["weights"])

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, weights=self.weights, updates=self.updates)

    def restore(self, path: Path) -> None:
        with np.load(path) as saved:
            self.weights, self.updates = saved["weights"], int(saved["updates"])


class Walk(gymnasium.Env[Any, Any]):
    """Observes a dictionary; its episodes follow from its generator and the actions, and end or are cut."""

    observation_space: Any = gymnasium.spaces.Dict({"position": gymnasium.spaces.Box(-9, 9, (4,), np.float32)})
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self, repeatable: bool = True, broken: str = "", error: str = "LookupError") -> None:
        self._repeatable, self._broken, self._error = repeatable, broken, getattr(builtins, error)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._broken and Path(self._broken).exists():
            raise self._error("lost its map")
        obs = self._observed()
        ends = self.np_random.random(2) < 0.15
        return obs, float(obs["position"][action]), bool(ends[0]), bool(ends[1]), {}

    def _observed(self) -> dict[str, Any]:
        source = self.np_random if self._repeatable else np.random.default_rng()
        return {"position": source.normal(size=4).clip(-9, 9).astype(np.float32)}


class Metrics(Callback):
    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def on_update(self, update: Update) -> None:
        self.last = dict(update.metrics)


def learn(
    run: Run,
    *callbacks: Callback,
    agent: Any = None,
    actors: Any = None,
    env_kwargs: Any = None,
    checkpoints: dict[str, Any] | None = None,
    **changes: Any,
) -> Linear:
    agent = agent or Linear()
    given = {"total_steps": 144, "n_actors": 2, "groups": 2, "envs_per_group": 2, "n_steps": 3, "report_every": 20}
    train_actor_learner(
        agent,
        Linear,
        Walk,
        ActorLearnerSettings(**{**given, "deterministic": True, "max_lag": 1, **changes}),
        actors=actors,
        env_kwargs=env_kwargs,
        callbacks=[CsvTables(run), *callbacks],
        checkpoints=Checkpoints(run, EVERY, **(checkpoints or {})),
        seed=4,
    )
    return agent  # type: ignore[no-any-return]


def check_the_same(resumed: Linear, whole: Linear, folders: tuple[Path, Path]) -> None:
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    assert resumed.updates == whole.updates
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    tables = [(folder / "updates.csv").read_text().splitlines() for folder in folders]
    header = tables[0][0].split(",")
    told = [
        name for name in header if name.startswith(("loss/", "episodes/", "lag/")) or name in ("step", "actors/lost")
    ]
    assert {"step", "lag/mean", "loss/total_loss"} <= set(told)
    rows = [[[row.split(",")[header.index(name)] for name in told] for row in table] for table in tables]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("inference", ["actors", "learner"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_lag": 0},
        {"max_lag": 2, "groups": 4, "batch_fragments": 3},
        {"max_lag": 2, "groups": 3, "n_actors": 1, "batch_fragments": 1, "n_steps": 1, "total_steps": 48},
    ],
    ids=["lag", "rounds", "batches across rounds", "single steps"],
)
def test_a_run_in_portions_is_the_run_in_one(
    inference: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Linear, "sample_batch_steps", changes.get("n_steps", 3))
    changes = {"inference": inference, **changes}
    with Run.at(tmp_path / "whole") as run:
        whole = learn(run, **changes)
    with Run.at(tmp_path / "parts") as run:
        learn(run, StepBudget(20), **changes)
    with Run.resume(tmp_path / "parts") as run:
        learn(run, StepBudget(28), **changes)
    with Run.resume(tmp_path / "parts") as run:
        parts = learn(run, **changes)
    check_the_same(parts, whole, (tmp_path / "parts", tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_actors_in_processes_go_on_too_and_may_be_others(inference: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"inference": inference, "groups": 4, "batch_fragments": 3}
    with Run.at(tmp_path / "whole") as run:
        whole = learn(run, **changes)
    with Run.at(tmp_path / "parts") as run, SubprocessActors(2) as actors:
        learn(run, StepBudget(50), actors=actors, **changes)
    with Run.resume(tmp_path / "parts") as run:
        learn(run, StepBudget(90), n_actors=4, **changes)
    with Run.resume(tmp_path / "parts") as run, SubprocessActors(1) as actors:
        parts = learn(run, actors=actors, n_actors=1, **changes)
    check_the_same(parts, whole, (tmp_path / "parts", tmp_path / "whole"))


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_how_often_checkpoints_are_written_changes_nothing(
    inference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one step a fragment, inference on the learner has steps under way that complete one at every checkpoint.
    monkeypatch.setattr(Linear, "sample_batch_steps", 1)
    settings = ActorLearnerSettings(
        40, 2, envs_per_group=1, n_steps=1, batch_fragments=1, deterministic=True, inference=inference
    )
    agents = []
    for every in (1, 10_000):
        agents.append(Linear())
        with Run.at(tmp_path / str(every)) as run:
            train_actor_learner(agents[-1], Linear, Walk, settings, checkpoints=Checkpoints(run, every), seed=4)
    assert agents[0].seen == agents[1].seen


def test_with_new_episodes_at_every_checkpoint_stopping_changes_nothing_either(tmp_path: Path) -> None:
    for inference in ("actors", "learner"):
        changes: dict[str, Any] = {
            "inference": inference,
            "env_kwargs": {"repeatable": True},
            "checkpoints": {"environments": "reset"},
        }
        with Run.at(tmp_path / inference / "whole") as run:
            whole = learn(run, **changes)
        with Run.at(tmp_path / inference / "parts") as run:
            learn(run, StepBudget(60), **changes)
        with Run.resume(tmp_path / inference / "parts") as run:
            parts = learn(run, **changes)
        np.testing.assert_array_equal(parts.weights, whole.weights)


class Scaled(gymnasium.RewardWrapper[Any, Any]):
    """Divides rewards by the largest one that it has seen."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.largest = 0.1

    def reward(self, reward: Any) -> float:
        self.largest = max(self.largest, abs(reward))
        return float(reward / self.largest)

    def checkpoint_state(self) -> Any:
        return {"largest": self.largest}

    def restore_checkpoint(self, state: Any) -> None:
        self.largest = float(state["largest"])


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_statistics_of_environments_go_on_in_new_episodes(
    inference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Walk
    monkeypatch.setitem(globals(), "Walk", lambda: Scaled(made()))
    changes: dict[str, Any] = {"inference": inference, "checkpoints": {"environments": "reset"}}
    with Run.at(tmp_path / "whole") as run:
        whole = learn(run, **changes)
    with Run.at(tmp_path / "parts") as run:
        learn(run, StepBudget(60), **changes)
    with Run.resume(tmp_path / "parts") as run:
        parts = learn(run, **changes)
    np.testing.assert_array_equal(parts.weights, whole.weights)


def test_environments_that_cannot_be_had_again_are_named_and_fresh_episodes_go_on(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"env_kwargs": {"repeatable": False}}
    with Run.at(tmp_path / "run") as run:
        learn(run, StepBudget(50), **changes)
    with pytest.raises(CheckpointError, match="fresh_episodes=True") as refused, Run.resume(tmp_path / "run") as run:
        learn(run, **changes)
    assert "environment 0 of the 2 of its actor" in " ".join(refused.value.__notes__)
    with Run.resume(tmp_path / "run") as run:
        assert learn(run, checkpoints={"fresh_episodes": True}, **changes).updates == 12


@pytest.mark.parametrize("changes", [{"max_lag": 2}, {"max_lag": 0, "inference": "learner"}])
def test_a_run_whose_order_is_that_of_arrival_goes_on_with_new_episodes(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    changes = {"deterministic": False, **changes}
    with Run.at(tmp_path / "run") as run:
        first = learn(run, StepBudget(50), **changes)
    metrics = Metrics()
    with Run.resume(tmp_path / "run") as run:
        agent = learn(run, metrics, **changes)
    assert agent.updates == 12
    assert not set(first.seen) & set(agent.seen)  # other episodes and other draws
    assert metrics.last["lag/max"] <= 2
    with pytest.raises(HyperparameterError, match=r'environments="exact" is not possible here.*deterministic=True'):
        learn(Run.at(tmp_path / "other"), checkpoints={"environments": "exact"}, **changes)


def test_settings_that_make_other_fragments_are_refused(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        learn(run, StepBudget(50))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_lag": 2}, "max_lag was 1 and is 2"),
        ({"inference": "learner"}, "inference was 'actors' and is 'learner'"),
        ({"groups": 4, "batch_fragments": 2}, "had 2 groups of 2 environments, this one has 4 of 2"),
        ({"envs_per_group": 3}, "had 2 groups of 2 environments, this one has 2 of 3"),
        ({"deterministic": False}, "another kind of loop"),
    ]
    for changes, message in refused:
        with pytest.raises(CheckpointError, match=message), Run.resume(tmp_path / "run") as run:
            learn(run, **changes)
    with Run.resume(tmp_path / "run") as run:
        assert learn(run).updates == 12


def test_a_run_that_has_all_its_steps_goes_on_with_more(tmp_path: Path) -> None:
    with Run.at(tmp_path / "whole") as run:
        whole = learn(run, total_steps=192)
    with Run.at(tmp_path / "run") as run:
        learn(run)
    with Run.resume(tmp_path / "run") as run:
        np.testing.assert_array_equal(learn(run, total_steps=192).weights, whole.weights)


def test_a_loss_that_is_not_a_number_costs_the_last_interval_and_no_more(tmp_path: Path) -> None:
    spoiled = Linear()
    spoiled.spoil_from = 7
    with pytest.raises(DivergedError, match="loss") as failed, Run.at(tmp_path / "run") as run:
        learn(run, agent=spoiled, report_every=1)
    assert "checkpoint of step 72" in " ".join(failed.value.__notes__)
    assert check_resumes(tmp_path, lambda run: learn(run, report_every=1)).updates == 12


def test_an_environment_that_raises_costs_the_last_interval_and_no_more(tmp_path: Path) -> None:
    broken = tmp_path / "broken"

    class Breaks(Callback):
        def on_update(self, update: Update) -> None:
            broken.touch()  # the lag has grown by then, and the checkpoint before is between two reports

    changes: dict[str, Any] = {"env_kwargs": {"broken": str(broken)}, "max_lag": 3, "report_every": 40}
    with pytest.raises(LookupError, match="lost its map") as failed, Run.at(tmp_path / "run") as run:
        learn(run, Breaks(), **changes)
    assert "continue with: Run.resume" in " ".join(failed.value.__notes__)
    broken.unlink()
    check_resumes(tmp_path, lambda run: learn(run, **changes))


def check_resumes(tmp_path: Path, train: Callable[[Run], Linear]) -> Linear:
    with Run.at(tmp_path / "whole") as run:
        whole = train(run)
    with Run.resume(tmp_path / "run") as run:
        resumed = train(run)
    check_the_same(resumed, whole, (tmp_path / "run", tmp_path / "whole"))
    return resumed


def test_a_full_disk_stops_training_with_what_is_left_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Fills(Callback):
        def on_update(self, update: Update) -> None:
            if update.step >= 70:
                monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(CheckpointError, match="No space left on device") as failed, Run.at(tmp_path / "run") as run:
        learn(run, Fills())
    assert "The newest complete one is that of step 36; training stops here" in str(failed.value)
    monkeypatch.undo()
    check_resumes(tmp_path, learn)


def test_what_an_environment_raises_while_a_checkpoint_waits_for_it_is_not_the_disks(tmp_path: Path) -> None:
    class Unplugs(Callback):
        def on_update(self, update: Update) -> None:
            if update.step == 36:  # the fragments under way are waited for by the checkpoint of this step
                (tmp_path / "unplugged").touch()

    env_kwargs = {"broken": str(tmp_path / "unplugged"), "error": "ConnectionError"}
    with pytest.raises(ConnectionError, match="lost its map"), Run.at(tmp_path / "run") as run:
        learn(run, Unplugs(), env_kwargs=env_kwargs, inference="learner", report_every=1)


def test_a_folder_that_exists_is_no_new_run(tmp_path: Path) -> None:
    with Run.at(tmp_path / "run") as run:
        learn(run)
    before = CheckpointStore(tmp_path / "run" / "checkpoints").steps()
    with pytest.raises(RunExistsError, match=r"Run\.resume"):
        learn(Run.at(tmp_path / "run"))
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == before == [108, 144]
