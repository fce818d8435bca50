"""The loop of the prosthetics example, with a stub of an agent, and simulators that fail."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import parl_remote
from parl_core.actors import InProcessActors, open_actors
from parl_core.errors import DivergedError, HyperparameterError, LostActor
from parl_core.training.events import Callback, Ended, Update

EXAMPLE = Path(__file__).parents[2] / "examples" / "prosthetics"
HEADS, STEPS, GAMMA = 3, 5, 0.9


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's loop; its modules are forgotten afterwards, because other examples have some of that name."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[1]))  # actors import this module under the name that it has here
    monkeypatch.syspath_prepend(str(EXAMPLE))
    before = set(sys.modules)
    parl_remote.disconnect()  # what other tests have left open
    import learner

    yield learner
    for name in set(sys.modules) - before:
        if str(EXAMPLE) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class Agent:
    """Its action is the head that acts; weights are the number of updates."""

    def __init__(self) -> None:
        self.alg = SimpleNamespace(FIGURES=("critic_loss", "actor_loss"), gamma=GAMMA)
        self.updates = 0
        self.batches: list[Any] = []

    def get_weights(self) -> dict[str, Any]:
        return {"updates": np.array([self.updates], np.float32)}

    def set_weights(self, weights: Any) -> None:
        self.updates = int(weights["updates"][0])

    def drawing_from(self, _seed: int) -> AbstractContextManager[None]:
        return nullcontext()

    def sample(self, _obs: Any, *, head: int, noise: float) -> Any:
        assert noise == 0.1
        return np.full(1, 0.1 * head + 0.001 * min(self.updates, 90), np.float32)

    def learn(self, *columns: Any, mask: Any, discount: Any) -> tuple[float, float]:
        self.updates += 1
        self.batches.append([np.array(column) for column in (*columns, mask, discount)])
        return 1.0, 2.0


class Line(gymnasium.Env[Any, Any]):
    """Episodes of five steps, which show place and seed; what goes wrong does so in the second one's first step."""

    def __init__(self, marker: Path | None = None, fault: str = "") -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 2.0**20, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.marker, self.fault, self.episodes = marker, fault, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert options is not None
        super().reset(seed=seed)
        self.place, self.target = 0, options["speeds"][0]
        self.serial = float((seed or 0) % 2**20)
        self.episodes += 1
        return np.array([0.0, self.serial], np.float32), {}

    def step(self, action: Any) -> Any:
        if self.episodes == 2 and self.marker is not None and not self.marker.exists():
            self.marker.touch()
            self._go_wrong()
        self.place += 1
        reward = float("nan") if self.fault == "nan" else float(action[0])
        info = {"speed": 1.0, "target_speed": self.target}
        return np.array([self.place, self.serial], np.float32), reward, self.place == STEPS, False, info

    def _go_wrong(self) -> None:
        if self.fault == "raise":
            raise RuntimeError("integration failed")
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


class Seen(Callback):
    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.ended: Ended | None = None

    def on_update(self, update: Update) -> None:
        self.updates.append(update)

    def on_end(self, ended: Ended) -> None:
        self.ended = ended


def train(example: Any, actors: Any, make_env: Any, **changed: Any) -> tuple[Agent, Seen]:
    agent, seen = Agent(), Seen()
    settings = {
        "total_steps": 200,
        "simulators": 1,
        "heads": HEADS,
        "learning_starts": 20,
        "batch_size": 8,
        "memory_size": 1000,
        "n_step": 1,
        "report_every": 50,
        "timeout_s": None,
        **changed,
    }
    loop = example.LearnerSettings(**settings)
    example.train_with_simulators(agent, actors, make_env, Agent, loop, callbacks=[seen], seed=3)
    return agent, seen


def test_updates_follow_steps_by_their_ratio_and_heads_take_turns(example: Any) -> None:
    with InProcessActors() as actors:
        agent, seen = train(example, actors, Line, updates_per_step=0.5)
    assert seen.ended is not None
    assert seen.ended.step == 200
    assert agent.updates == pytest.approx(0.5 * (200 - 20 + STEPS), abs=3)
    columns = zip(*agent.batches, strict=True)
    obs, action, reward, next_obs, terminal, mask = (np.concatenate(column) for column in list(columns)[:-1])
    np.testing.assert_array_equal(next_obs[:, 0], obs[:, 0] + 1)
    np.testing.assert_array_equal(terminal, obs[:, 0] == STEPS - 1)
    np.testing.assert_array_equal(action[:, 0], reward)
    assert {int(10 * one + 1e-4) for one in action[:, 0].tolist()} == set(range(HEADS))
    assert mask.shape == (len(obs), HEADS)
    np.testing.assert_allclose(mask.mean(), 0.5, atol=0.12)
    own: dict[Any, set[Any]] = {}
    for transition, one in zip(obs.tolist(), mask.tolist(), strict=True):
        own.setdefault(tuple(transition), set()).add(tuple(one))
    assert max(len(masks) for masks in own.values()) == 1  # the same whenever it is drawn


def test_rewards_of_several_steps_are_summed_within_their_episode(example: Any) -> None:
    with InProcessActors() as actors:
        agent, _ = train(example, actors, Line, n_step=3)
    obs, action, reward, next_obs, _, _, discount = (np.concatenate(rows) for rows in zip(*agent.batches, strict=True))
    steps = np.minimum(3, STEPS - obs[:, 0])
    np.testing.assert_array_equal(next_obs[:, 0], obs[:, 0] + steps)
    np.testing.assert_array_equal(next_obs[:, 1], obs[:, 1])
    np.testing.assert_allclose(discount, GAMMA**steps, rtol=1e-6)
    np.testing.assert_allclose(reward, action[:, 0] * (1.0 - GAMMA**steps) / (1.0 - GAMMA), rtol=1e-5)


def test_simulators_act_with_the_newest_weights_and_the_curriculums_speeds(example: Any) -> None:
    with InProcessActors() as actors:
        agent, seen = train(example, actors, Line)
    versions = [1000 * (one % 0.1) for one in np.concatenate([batch[1][:, 0] for batch in agent.batches]).tolist()]
    assert max(versions) > 80
    lags = [update.metrics["lag/mean"] for update in seen.updates]
    assert max(lags) <= STEPS  # an episode at once in this process, so only the updates that are due wait
    slowest = [update.schedules["slowest_target"] for update in seen.updates]
    assert slowest[0] > slowest[-1] == 0.5
    errors = [update.metrics["task/speed_error"] for update in seen.updates]
    assert errors[0] > 0.9  # |1 - 2| while only 2 m/s is asked for
    assert max(errors[1:]) < 0.9


def test_one_head_learns_from_everything(example: Any) -> None:
    with InProcessActors() as actors:
        agent, _ = train(example, actors, Line, heads=1)
    assert agent.batches[0][-2].tolist() is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["die", "hang"])
def test_a_simulator_that_dies_or_hangs_is_replaced_and_counted(example: Any, fault: str, tmp_path: Path) -> None:
    marker = tmp_path / "wrong"
    with open_actors("remote", cpu_num=2) as actors:
        agent, seen = train(
            example,
            actors,
            lambda: Line(marker, fault),
            simulators=2 if fault == "die" else 1,  # else the other one plays all that is left meanwhile
            total_steps=400,
            timeout_s=None if fault == "die" else 5.0,
        )
    assert marker.exists()
    assert seen.ended is not None
    assert seen.ended.step >= 400
    assert seen.updates[-1].metrics["actors/lost"] >= 1.0
    assert agent.updates > 300


def test_a_simulator_that_raises_is_made_anew(example: Any, tmp_path: Path) -> None:
    marker = tmp_path / "wrong"
    with InProcessActors() as actors:
        _, seen = train(example, actors, lambda: Line(marker, "raise"))
    last = seen.updates[-1].metrics
    assert (last["actors/failed"], last["actors/lost"]) == (1.0, 0.0)


def test_a_simulator_that_always_raises_ends_the_run_with_its_error(example: Any) -> None:
    def make_env() -> Any:
        raise RuntimeError("no license")

    with InProcessActors() as actors, pytest.raises(RuntimeError, match="no license") as raised:
        train(example, actors, make_env, max_failures=2)
    assert "failed 3 times in a row; max_failures=2" in "".join(raised.value.__notes__)


@pytest.mark.slow
def test_simulators_that_always_die_end_the_run(example: Any) -> None:
    def make_env() -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    with open_actors("remote", cpu_num=1) as actors, pytest.raises(LostActor):
        train(example, actors, make_env, max_failures=1)


def test_a_reward_that_is_not_finite_is_never_remembered(example: Any) -> None:
    with InProcessActors() as actors, pytest.raises(DivergedError, match=r"reward .*of episode 0"):
        train(example, actors, lambda: Line(fault="nan"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"simulators": 0}, "simulators must be at least 1"),
        ({"updates_per_step": 0.0}, "updates_per_step must be above 0"),
        ({"memory_size": 4}, "memory_size is 4, less than batch_size 8"),
        ({"timeout_s": -1.0}, "timeout_s must be above 0"),
        ({"noise": -0.1}, "noise must be at least 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(example: Any, changed: dict[str, Any], message: str) -> None:
    with InProcessActors() as actors, pytest.raises(HyperparameterError, match=message):
        train(example, actors, Line, **changed)
