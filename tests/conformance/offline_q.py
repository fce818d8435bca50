"""Tests of Q-learning on logged data that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import absolute, gradient, layers
from conformance.identity import discrete_identity
from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from conformance.reference import Adam
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError
from parl_core.model import Weights
from parl_core.offline import OfflineDataset
from parl_core.training.offline import OfflineSettings, train_offline

__all__ = ["OfflineQConformance"]

_HEADS, _BATCH, _LR, _GAMMA = 4, 16, 0.01, 0.9


def _shapes(heads: int) -> dict[str, tuple[int, ...]]:
    outputs = heads * ACT_DIM
    return {
        "fc1.weight": (HIDDEN, OBS_DIM),
        "fc1.bias": (HIDDEN,),
        "fc2.weight": (outputs, HIDDEN),
        "fc2.bias": (outputs,),
    }


def _make(backend: Backend, heads: int) -> Any:
    parl_layers: Any = backend.layers

    class Heads(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = parl_layers.fc(size=HIDDEN, act="tanh")
            self.fc2 = parl_layers.fc(size=heads * ACT_DIM)

        def value(self, obs: Any) -> Any:
            values = self.fc2(self.fc1(obs))
            return values if heads == 1 else parl_layers.reshape(values, [-1, heads, ACT_DIM])

    return Heads()


class OfflineQConformance(Conformance):
    """Suite of OfflineQ."""

    @pytest.mark.parametrize("heads", [1, _HEADS])
    @pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, heads: int, double: bool, extras: bool
    ) -> None:
        rng = np.random.default_rng(1)
        weights, target = random_weights(rng, _shapes(heads)), random_weights(rng, _shapes(heads))
        model = self.model(lambda backend: _make(backend, heads), weights, precision)
        algorithm = self.algorithm("OfflineQ", model, gamma=_GAMMA, lr=_LR, heads=heads, double=double, huber=0.5)
        algorithm.target_model.set_weights(target, portable=True)
        agent = self.backend.Agent(algorithm)
        adam = Adam(_LR)
        for _ in range(3):
            obs, next_obs = rng.normal(size=(2, _BATCH, OBS_DIM))
            action, reward = rng.integers(ACT_DIM, size=_BATCH), rng.normal(size=_BATCH)
            terminal = (rng.random(_BATCH) < 0.3).astype(float)
            importance = rng.uniform(0.2, 1.0, _BATCH) if extras else np.ones(_BATCH)
            discount = _GAMMA ** rng.integers(1, 4, _BATCH) if extras else np.full(_BATCH, _GAMMA)
            share = rng.random((heads, 1))
            share /= share.sum()
            algorithm._mixture = lambda _, drawn=share: algorithm._tensor(drawn.astype(precision.dtype))

            next_q = _q(target, next_obs, share)
            best = (_q(weights, next_obs, share) if double else next_q).argmax(axis=1)
            goal = reward + discount * (1.0 - terminal) * next_q[np.arange(_BATCH), best]

            def loss(
                w: Weights, o: Any = obs, a: Any = action, g: Any = goal, s: Any = share, i: Any = importance
            ) -> Any:
                size = absolute(g - _q(w, o, s)[np.arange(_BATCH), a])
                return (i * np.where(size.real <= 0.5, 0.5 * size**2, 0.5 * (size - 0.25))).mean()

            expected = loss(weights)
            error = goal - _q(weights, obs, share)[np.arange(_BATCH), action]
            weights = adam.update(weights, gradient(loss, weights, ("fc",)))
            options = {"weights": importance, "discount": discount} if extras else {}
            columns = [part.astype(precision.dtype) for part in (reward, next_obs, terminal)]
            found = agent.learn(
                obs.astype(precision.dtype),
                action,
                *columns,
                **{name: array.astype(precision.dtype) for name, array in options.items()},
            )
            if extras:
                found, td_error = found
                np.testing.assert_allclose(td_error, error, atol=precision.tolerance)
            assert found == pytest.approx(expected.real, abs=precision.tolerance)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)

    def test_shares_of_the_heads_are_positive_and_sum_to_one(self) -> None:
        algorithm = self.algorithm("OfflineQ", _make(self.backend, _HEADS), heads=_HEADS)
        drawn = [algorithm._array(algorithm._mixture(algorithm._tensor(np.zeros(1, np.float32)))) for _ in range(50)]
        assert {share.shape for share in drawn} == {(_HEADS, 1)}
        assert min(share.min() for share in drawn) >= 0.0
        np.testing.assert_allclose([share.sum() for share in drawn], 1.0, rtol=1e-5)
        assert np.ptp([share[0, 0] for share in drawn]) > 0.1

    def test_it_acts_by_the_mean_of_the_heads(self) -> None:
        weights = random_weights(np.random.default_rng(1), _shapes(_HEADS))
        algorithm = self.algorithm("OfflineQ", self.model(lambda b: _make(b, _HEADS), weights), heads=_HEADS)
        obs = np.random.default_rng(2).normal(size=(50, OBS_DIM)).astype(np.float32)
        mean = _q(weights, obs, np.full((_HEADS, 1), 1.0 / _HEADS))
        np.testing.assert_array_equal(self.backend.Agent(algorithm).predict(obs), mean.argmax(axis=1))

    @pytest.mark.parametrize("heads", [1, _HEADS])
    def test_it_learns_the_identity_environment_from_the_data_of_a_random_policy(self, heads: int) -> None:
        rng = np.random.default_rng(8)
        agent = self.backend.Agent(
            self.algorithm("OfflineQ", _make(self.backend, heads), gamma=0.9, lr=0.02, heads=heads, sync_every=10)
        )
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = rng.integers(ACT_DIM, size=64)
            agent.learn(obs, action, (action == state).astype(np.float32), obs, np.ones(64))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95

    @pytest.mark.parametrize(("flag", "value"), [("truncated", 2.0), ("terminal", 1.0)])
    def test_a_time_limit_in_the_data_bootstraps_and_an_end_does_not(self, flag: str, value: float) -> None:
        # One state, reward 1, every step the last one of an episode: 1 + 0.5 * 1 + 0.25 * 1 + ... = 2, or 1 alone.
        obs, ones = np.ones((64, OBS_DIM), np.float32), np.ones(64)
        columns = {"obs": obs, "action": np.zeros(64, int), "reward": ones, "next_obs": obs, "terminal": np.zeros(64)}
        algorithm = self.algorithm("OfflineQ", _make(self.backend, 1), gamma=0.5, lr=0.02, sync_every=5)
        agent = self.backend.Agent(algorithm)
        settings = OfflineSettings(updates=200, batch_size=8)
        train_offline(agent, OfflineDataset.from_arrays(columns | {flag: ones}), settings, seed=1)
        values = agent.run(algorithm.predict, obs[:1])
        assert values[0, 0] == pytest.approx(value, abs=0.05)

    @pytest.mark.parametrize(("name", "value"), [("heads", 0), ("huber", 0.0), ("sync_every", 0), ("gamma", 2.0)])
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("OfflineQ", _make(self.backend, 1), **{name: value})

    def test_its_target_is_copied_every_2000_updates_and_its_rate_is_the_papers_unless_told_otherwise(self) -> None:
        algorithm = self.algorithm("OfflineQ", _make(self.backend, 1))
        assert (algorithm.sync_every, algorithm.lr, algorithm.gamma) == (2000, 5e-5, 0.99)

    def test_a_dictionary_in_the_place_of_gamma_is_parls(self) -> None:
        algorithm = self.backend.algorithms.OfflineQ(_make(self.backend, 1), {"gamma": 0.9, "lr": 1e-3}, device="cpu")
        assert (algorithm.gamma, algorithm.lr) == (0.9, 1e-3)

    @pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
    def test_a_reward_that_is_not_finite_is_refused(self, wrong: float) -> None:
        agent = self.backend.Agent(self.algorithm("OfflineQ", _make(self.backend, 1)))
        obs = np.zeros((2, OBS_DIM), np.float32)
        with pytest.raises(ValueError, match=rf"reward must be finite, got {wrong} in row 1"):
            agent.learn(obs, [0, 1], [0.0, wrong], obs, [0, 0])


def _q(weights: Weights, obs: Any, share: Any) -> Any:
    values = layers(weights, ("fc1", "fc2"), obs).reshape(len(obs), -1, ACT_DIM)
    return (values * share).sum(axis=1)
