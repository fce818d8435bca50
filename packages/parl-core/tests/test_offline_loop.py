"""The offline loop: what it draws, what it tells, and how it ends."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parl_core.errors import DivergedError, HyperparameterError
from parl_core.offline import OfflineDataset
from parl_core.training.events import Callback, Ended, Episode, Evaluation, Stop, Update
from parl_core.training.offline import OfflineSettings, train_offline


def data(n: int = 20) -> OfflineDataset:
    obs = np.arange(float(n))[:, None]
    columns = {
        "obs": obs,
        "action": np.zeros(n, int),
        "reward": obs[:, 0],
        "next_obs": obs + 1,
        "terminal": np.zeros(n),
    }
    return OfflineDataset.from_arrays(columns, "a log")


class Learner:
    """Its losses are the numbers 1, 2, 3, ... and 10 times them; what it was given is kept."""

    def __init__(self, **alg: Any) -> None:
        self.alg = SimpleNamespace(FIGURES=("first", "second", "third"), **alg)
        self.batches: list[dict[str, Any]] = []

    def learn(self, **batch: Any) -> Any:
        self.batches.append(batch)
        return float(len(self.batches)), 10.0 * len(self.batches), None


class Watcher(Callback):
    def __init__(self, stop_at: int | None = None) -> None:
        self.updates: list[Update] = []
        self.evaluations: list[Evaluation] = []
        self.ended: list[Ended] = []
        self.stop_at = stop_at

    def on_update(self, update: Update) -> str | None:
        self.updates.append(update)
        return f"seen {update.step}" if update.step == self.stop_at else None

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def on_end(self, ended: Ended) -> None:
        self.ended.append(ended)


SETTINGS = OfflineSettings(updates=10, batch_size=4, report_every=4)


def test_reports_have_means_since_the_report_before_and_evaluations_their_step() -> None:
    agent, watcher = Learner(), Watcher()
    ended = train_offline(
        agent,
        data(),
        SETTINGS,
        evaluator=lambda: Evaluation([Episode(5.0, 1)]),
        evaluate_every=5,
        callbacks=[watcher],
        seed=1,
    )
    assert [(update.step, dict(update.losses)) for update in watcher.updates] == [
        (4, {"first": 2.5, "second": 25.0}),
        (8, {"first": 6.5, "second": 65.0}),
        (10, {"first": 9.5, "second": 95.0}),
    ]
    assert [evaluation.step for evaluation in watcher.evaluations] == [5, 10]
    assert (ended.stop, ended.step) == (Stop.BUDGET, 10)
    assert watcher.ended == [ended]


def test_batches_follow_from_the_seed_and_are_rows_of_the_data() -> None:
    runs = []
    for seed in (1, 1, 2):
        agent = Learner()
        train_offline(agent, data(), SETTINGS, seed=seed)
        runs.append(np.concatenate([batch["reward"] for batch in agent.batches]))
        assert list(agent.batches[0]) == ["obs", "action", "reward", "next_obs", "terminal"]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()


def test_an_algorithm_may_say_itself_what_a_batch_is() -> None:
    agent = Learner(draw_batch=lambda dataset, n, rng: {"rows": len(dataset), "n": n})
    train_offline(agent, data(), SETTINGS)
    assert agent.batches[0] == {"rows": 20, "n": 4}


def test_further_columns_of_a_batch_reach_an_agent_of_ones_own_once() -> None:
    agent = Learner(draw_batch=lambda dataset, n, rng: {"n": n, "extra": {"goal": len(dataset)}})
    train_offline(agent, data(), SETTINGS)
    assert agent.batches[0] == {"n": 4, "goal": 20}


def test_a_callback_can_stop_it() -> None:
    watcher = Watcher(stop_at=4)
    ended = train_offline(Learner(), data(), SETTINGS, callbacks=[watcher])
    assert (ended.stop, ended.step, ended.reason) == (Stop.CALLBACK, 4, "seen 4")


def test_a_figure_that_is_not_finite_ends_it_and_the_callbacks_hear_of_it() -> None:
    agent, watcher = Learner(), Watcher()
    agent.learn = lambda **_: float("nan")  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match="update after 4 updates: first is nan"):
        train_offline(agent, data(), SETTINGS, callbacks=[watcher])
    assert watcher.ended[0].stop is Stop.FAILED
    assert not watcher.updates


def test_too_few_transitions_for_a_batch_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="a log has 3 transitions, batch_size is 4"):
        train_offline(Learner(), data(3), SETTINGS)


@pytest.mark.parametrize("name", ["updates", "batch_size", "report_every"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(HyperparameterError, match=name):
        OfflineSettings(**{name: 0})
