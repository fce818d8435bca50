"""The actors-and-learner loop on remote actors: the same numbers as in one process, and actors that end or hang."""

import contextlib
import os
import signal
import threading
import time
import traceback
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.actors import InProcessActors, wait_any
from parl_core.errors import LostActor
from parl_core.training import ActorLearnerSettings, Callback, Ended, Update, train_actor_learner
from parl_remote.actors import RemoteActors

DEADLINE_S = 60.0


class Noisy(gymnasium.Env[Any, Any]):
    """Observes and rewards what its generator says; asked to, it fails once in its 3rd step."""

    observation_space: Any = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(3)

    def __init__(self, fault: str = "", marker: str = "", often: int = 1) -> None:
        self._fault, self._marker, self._often, self._steps = fault, marker, often, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._fault and self._steps == 3 and any(self._is_first(number) for number in range(self._often)):
            self._fail()
        obs = self.np_random.normal(size=3).astype(np.float32)
        return obs, float(obs[action]), bool(self.np_random.random() < 0.1), False, {}

    def _is_first(self, number: int) -> bool:
        with contextlib.suppress(FileExistsError), open(f"{self._marker}-{number}", "x"):
            return True
        return False

    def _fail(self) -> None:
        if self._fault == "raise":
            raise LookupError("lost its map")
        if self._fault == "hang":
            threading.Event().wait()
        os.kill(os.getpid(), signal.SIGKILL)


Losses = namedtuple("Losses", ["total_loss"])


class Linear:
    """Logits are the observations times a weight that every update changes; its large array shows what is shared."""

    sample_batch_steps = 4

    def __init__(self) -> None:
        self.weights = {"scale": np.ones(1), "large": np.zeros(50_000)}

    def logits(self, obs: Any) -> Any:
        return obs * self.weights["scale"]

    def value(self, obs: Any) -> Any:
        return obs[:, 0]

    def learn(self, obs: Any, _action: Any, _logits: Any, reward: Any, _done: Any, **_: Any) -> Any:
        self.weights["scale"] = self.weights["scale"] + np.float64(np.mean(reward) + np.mean(obs))
        return Losses(float(np.mean(reward))), 0.0

    def get_weights(self) -> dict[str, Any]:
        return dict(self.weights)

    def set_weights(self, weights: dict[str, Any]) -> None:
        self.weights = weights


class Recorder(Callback):
    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def on_update(self, update: Update) -> None:
        self.metrics = dict(update.metrics)


@pytest.fixture(scope="module")
def actors(unconnected: None) -> Iterator[RemoteActors]:
    with RemoteActors(cpu_num=2) as system:
        system.create(Linear).close()  # after which all of this module travels by value: actors cannot import it
        yield system


def run(actors: Any, agent: Any = None, **changes: Any) -> tuple[Ended, dict[str, float]]:
    recorder = Recorder()
    env_kwargs = changes.pop("env_kwargs", {})
    small = {"total_steps": 96, "n_actors": 2, "envs_per_group": 3, "n_steps": 4, "report_every": 1, "max_lag": 1}
    settings = ActorLearnerSettings(**{**small, **changes})
    ended = train_actor_learner(
        agent or Linear(), Linear, Noisy, settings, actors=actors, env_kwargs=env_kwargs, callbacks=[recorder], seed=3
    )
    return ended, recorder.metrics


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_remote_actors_give_the_same_bits_as_this_process(actors: RemoteActors, inference: str) -> None:
    here, there = Linear(), Linear()
    changes = {"groups": 4, "deterministic": True, "inference": inference}
    run(InProcessActors(), here, n_actors=1, **changes)
    run(actors, there, **changes)
    assert there.weights["scale"] != 1.0
    np.testing.assert_equal(there.weights, here.weights)


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_an_actor_that_is_killed_is_replaced_and_the_run_goes_on(
    actors: RemoteActors, tmp_path: Path, inference: str
) -> None:
    env_kwargs = {"fault": "kill", "marker": str(tmp_path / "done")}
    ended, metrics = run(actors, env_kwargs=env_kwargs, inference=inference, deterministic=True)
    assert ended.step == 96
    assert metrics["actors/lost"] == 1


def test_an_environment_that_raises_once_is_made_anew(actors: RemoteActors, tmp_path: Path) -> None:
    ended, metrics = run(actors, env_kwargs={"fault": "raise", "marker": str(tmp_path / "done")}, deterministic=True)
    assert ended.step == 96
    assert (metrics["actors/failed"], metrics["actors/lost"]) == (1, 0)


def test_an_environment_that_always_raises_ends_the_run_with_the_remote_traceback(
    actors: RemoteActors, tmp_path: Path
) -> None:
    env_kwargs = {"fault": "raise", "marker": str(tmp_path / "done"), "often": 100}
    with pytest.raises(LookupError, match="lost its map") as caught:
        run(actors, env_kwargs=env_kwargs, max_failures=1)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in _fail" in shown
    assert "failed 2 times in a row; max_failures=1 were allowed" in shown


class Clock:
    """A clock of the pool of actors that leaps over `timeout_s` once, when the environment hangs."""

    def __init__(self, timeout_s: float, marker: Path) -> None:
        self._timeout_s, self._marker = timeout_s, marker
        self._ahead_s = 0.0
        self.sleep = time.sleep

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def wait_any(self, events: Any, limit: float | None) -> None:
        wait_any(events, 0.05 if limit is None else min(limit, 0.05))
        if self._marker.exists():
            self._ahead_s = 2 * self._timeout_s


@pytest.mark.parametrize("inference", ["actors", "learner"])
def test_an_actor_that_hangs_is_ended_and_its_slot_is_used_again(
    actors: RemoteActors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inference: str
) -> None:
    clock = Clock(DEADLINE_S, tmp_path / "done-0")
    monkeypatch.setattr("parl_core.worker_pool.time", clock)
    monkeypatch.setattr("parl_core.worker_pool.wait_any", clock.wait_any)
    changes = {"env_kwargs": {"fault": "hang", "marker": str(tmp_path / "done")}, "inference": inference}
    ended, metrics = run(actors, timeout_s=DEADLINE_S, deterministic=True, **changes)
    assert ended.step == 96
    assert metrics["actors/lost"] >= 1  # the leap may find the other one in a call


def test_actors_that_always_hang_end_the_run_with_what_to_do(actors: RemoteActors, tmp_path: Path) -> None:
    env_kwargs = {"fault": "hang", "marker": str(tmp_path / "done"), "often": 100}
    with pytest.raises(LostActor, match=r"within timeout_s=2.0 seconds: an environment hangs"):
        run(actors, env_kwargs=env_kwargs, timeout_s=2.0, max_failures=0, n_actors=1)
