"""Evaluations in an actor: the loop goes on, and results name the weights that were played."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.actors import open_actors
from parl_core.env.normalize import NormalizeVector
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError
from parl_core.training import Callback, ConfirmedReturn, Ended, EvaluateInActor, Evaluation, Stop, Update
from parl_core.training.events import tell_end

LONG = 60.0
"""Seconds that nothing here takes, unless it hangs."""


class Paying(gymnasium.Env[Any, Any]):
    """One step, which pays the number of the action; it begins when it may."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(100)
    may_step = threading.Event()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.may_step.wait(LONG)
        return np.zeros(1, np.float32), float(action), True, False, {}


class Constant:
    """Chooses the action that is its only weight."""

    def __init__(self) -> None:
        self.training, self.weight = True, 0

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    def get_weights(self) -> dict[str, int]:
        return {"w": self.weight}

    def set_weights(self, weights: dict[str, int]) -> None:
        self.weight = weights["w"]

    def predict(self, obs: Any) -> Any:
        return np.full(len(obs), self.weight, np.int64)


class Told(Callback):
    def __init__(self) -> None:
        self.means: list[tuple[int, float]] = []

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.means.append((evaluation.step, evaluation.mean))


@pytest.fixture(autouse=True)
def may_step() -> None:
    Paying.may_step.set()


def _running(watching: EvaluateInActor) -> Any:
    return None if watching._running is None else watching._running[0]


def _update(step: int) -> Update:
    return Update(step, 100, float(step))


ENDED = Ended(Stop.BUDGET, "the end", 100, 1.0)


def test_the_loop_goes_on_while_episodes_are_played() -> None:
    learner, told = Constant(), Told()
    Paying.may_step.clear()
    with open_actors("threads", threads=1) as actors:
        watching = EvaluateInActor(learner, Constant, Paying, actors, every=10, episodes=3, callbacks=[told])
        learner.weight = 5
        watching.on_update(_update(9))
        assert _running(watching) is None, "it is not due yet"
        watching.on_update(_update(12))
        future = _running(watching)
        learner.weight = 7
        for step in (14, 21, 33):  # two more would be due: the actor is busy, and the loop waits for nothing
            watching.on_update(_update(step))
        assert not future.done()
        assert _running(watching) is future
        Paying.may_step.set()
        future.result(LONG)
        watching.on_update(_update(35))
        assert told.means == [(12, 5.0)], "the weights and the step of then"
        watching.on_end(ENDED)
    assert told.means == [(12, 5.0), (35, 7.0)]
    assert watching.best_weights == {"w": 7}
    assert [len(one.episodes) for one in watching.evaluations] == [3, 3]


def test_actors_of_this_process_play_at_once() -> None:
    learner, told = Constant(), Told()
    with open_actors() as actors:
        watching = EvaluateInActor(learner, Constant, Paying, actors, every=10, callbacks=[told])
        for step, weight in ((10, 4), (20, 9), (30, 2), (40, 1)):
            learner.weight = weight
            watching.on_update(_update(step))
        watching.on_end(ENDED)
    assert told.means == [(10, 4.0), (20, 9.0), (30, 2.0), (40, 1.0)]
    assert watching.best_weights == {"w": 9}


def test_the_last_evaluation_comes_before_any_callback_ends() -> None:
    class Log(Told):
        def on_end(self, ended: Ended) -> None:
            self.means.append((-1, 0.0))

    log = Log()
    with open_actors() as actors:
        watching = EvaluateInActor(Constant(), Constant, Paying, actors, every=10, callbacks=[log])
        watching.on_update(_update(10))
        assert not tell_end([log, watching], ENDED)
    assert log.means == [(10, 0.0), (-1, 0.0)]


def test_a_person_who_pressed_ctrl_c_does_not_wait_for_episodes() -> None:
    told = Told()
    with open_actors() as actors:
        watching = EvaluateInActor(Constant(), Constant, Paying, actors, every=10, callbacks=[told])
        watching.on_update(_update(10))
        watching.on_end(Ended(Stop.INTERRUPTED, "interrupted", 10, 1.0))
    assert not told.means


def test_a_callback_of_it_ends_the_loop_and_its_state_is_kept() -> None:
    learner = Constant()
    learner.weight = 50
    with open_actors() as actors:
        watching = EvaluateInActor(
            learner, Constant, Paying, actors, every=10, callbacks=[ConfirmedReturn(40.0, times=2)]
        )
        assert watching.on_update(_update(10)) is None
        assert watching.on_update(_update(20)) is None
        reason = watching.on_update(_update(30))
        assert reason is not None
        assert "reached 40" in reason
        state = watching.get_state()
        again = EvaluateInActor(learner, Constant, Paying, actors, every=10)
        again.set_state(state)
        assert again.get_state() == state


def test_what_fails_in_the_actor_ends_the_loop_with_its_error() -> None:
    class Broken(Paying):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise RuntimeError("the simulator is gone")

    with open_actors("threads", threads=1) as actors:
        watching = EvaluateInActor(Constant(), Constant, Broken, actors, every=1)
        watching.on_update(_update(1))
        with pytest.raises(Exception, match="the simulator is gone"):
            watching.on_end(ENDED)


class Showing(Paying):
    """Shows 3 until the end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full(1, 3.0, np.float32), {}


class Seeing(Constant):
    """Chooses ten times the number that it sees."""

    def predict(self, obs: Any) -> Any:
        return np.round(10.0 * obs[:, 0]).astype(np.int64)


def test_observations_are_normalised_by_the_statistics_of_then() -> None:
    with open_actors("threads", threads=1) as actors, make_vector_env(Showing, 2) as envs:
        normalization = NormalizeVector(envs, reward=False)
        assert normalization.ob_rms is not None
        normalization.ob_rms.mean, normalization.ob_rms.var = np.array([1.0]), np.array([4.0])
        then = normalization.get_state()
        watching = EvaluateInActor(Seeing(), Seeing, Showing, actors, every=10, normalization=normalization)
        Paying.may_step.clear()
        watching.on_update(_update(10))
        normalization.ob_rms.mean[:] = 2.5
        Paying.may_step.set()
        watching.on_end(ENDED)
    assert [one.mean for one in watching.evaluations] == [10.0]
    assert {name: array.tolist() for name, array in watching.best_normalization.items()} == {
        name: array.tolist() for name, array in then.items()
    }


def test_an_interval_of_no_steps_is_refused() -> None:
    with open_actors() as actors, pytest.raises(HyperparameterError, match="every"):
        EvaluateInActor(Constant(), Constant, Paying, actors, every=0)
