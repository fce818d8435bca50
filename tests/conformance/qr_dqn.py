"""Tests of QR-DQN that every backend must pass."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.adapter import Conformance, Precision, assert_weights_close, in_pairs, random_weights
from conformance.complex_step import absolute, gradient, layers
from conformance.identity import discrete_identity
from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from conformance.reference import Adam
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["QRDQNConformance"]

_COUNT, _BATCH, _LR, _GAMMA, _KAPPA = 5, 16, 0.01, 0.9, 0.7
_SHAPES = {
    "fc1.weight": (HIDDEN, OBS_DIM),
    "fc1.bias": (HIDDEN,),
    "fc2.weight": (_COUNT * ACT_DIM, HIDDEN),
    "fc2.bias": (_COUNT * ACT_DIM,),
}
_TAU = (np.arange(_COUNT) + 0.5) / _COUNT


def _make(backend: Backend) -> Any:
    parl_layers: Any = backend.layers

    class Quantiles(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = parl_layers.fc(size=HIDDEN, act="tanh")
            self.fc2 = parl_layers.fc(size=_COUNT * ACT_DIM)

        def quantiles(self, obs: Any) -> Any:
            return parl_layers.reshape(self.fc2(self.fc1(obs)), [-1, _COUNT, ACT_DIM])

    return Quantiles()


def _theta(weights: Weights, obs: Any) -> Any:
    return layers(weights, ("fc1", "fc2"), obs).reshape(-1, _COUNT, ACT_DIM)


def _loss(theta: Any, target: NDArray[Any], importance: NDArray[Any]) -> Any:
    """Equation 10 of arXiv:1710.10044, a quantile at a time; `theta` may be complex."""
    total: Any = 0.0
    for i in range(_COUNT):
        error = target - theta[:, i, None]
        size = absolute(error)
        huber = np.where(size.real <= _KAPPA, 0.5 * error**2, _KAPPA * (size - 0.5 * _KAPPA))
        total = total + (np.abs(_TAU[i] - (error.real < 0.0)) * huber).mean(axis=1)
    return (importance * total).mean()


class QRDQNConformance(Conformance):
    """Suite of QRDQN."""

    @in_pairs(double={"plain": False, "double": True}, extras={"one_step": False, "n_step_prioritised_masked": True})
    def test_three_updates_agree_with_the_reference(self, precision: Precision, double: bool, extras: bool) -> None:
        rng = np.random.default_rng(1)
        weights, target_weights = random_weights(rng, _SHAPES), random_weights(rng, _SHAPES)
        model = self.model(_make, weights, precision)
        algorithm = self.algorithm("QRDQN", model, gamma=_GAMMA, lr=_LR, double=double, kappa=_KAPPA, eps=1e-8)
        algorithm.target_model.set_weights(target_weights, portable=True)
        agent, adam = self.backend.Agent(algorithm), Adam(_LR)
        rows = np.arange(_BATCH)
        for _ in range(3):
            obs, next_obs = rng.normal(size=(2, _BATCH, OBS_DIM))
            action, reward = rng.integers(ACT_DIM, size=_BATCH), rng.normal(size=_BATCH)
            terminal = (rng.random(_BATCH) < 0.3).astype(float)
            importance = rng.uniform(0.2, 1.0, _BATCH) if extras else np.ones(_BATCH)
            discount = _GAMMA ** rng.integers(1, 4, _BATCH) if extras else np.full(_BATCH, _GAMMA)
            possible = rng.random((_BATCH, ACT_DIM)) < 0.5 if extras else np.ones((_BATCH, ACT_DIM), bool)
            possible[rows, rng.integers(ACT_DIM, size=_BATCH)] = True

            following = _theta(target_weights, next_obs)
            values = (_theta(weights, next_obs) if double else following).mean(axis=1)
            best = np.where(possible, values, -np.inf).argmax(axis=1)
            goal = reward[:, None] + (discount * (1.0 - terminal))[:, None] * following[rows, :, best]

            def loss(w: Weights, o: Any = obs, a: Any = action, g: Any = goal, i: Any = importance) -> Any:
                return _loss(_theta(w, o)[np.arange(_BATCH), :, a], g, i)

            expected = loss(weights)
            error = goal.mean(axis=1) - _theta(weights, obs)[rows, :, action].mean(axis=1)
            weights = adam.update(weights, gradient(loss, weights, ("fc",)))
            options = {"weights": importance, "discount": discount} if extras else {}
            given = {name: array.astype(precision.dtype) for name, array in options.items()}
            if extras:
                given["next_action_mask"] = possible
            columns = [part.astype(precision.dtype) for part in (reward, next_obs, terminal)]
            found = agent.learn(obs.astype(precision.dtype), action, *columns, **given)
            if extras:
                found, td_error = found
                np.testing.assert_allclose(td_error, error, atol=precision.tolerance)
            assert found == pytest.approx(np.real(expected), abs=precision.tolerance)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)

    def test_it_acts_by_the_mean_of_the_quantiles(self) -> None:
        weights = random_weights(np.random.default_rng(1), _SHAPES)
        agent = self.backend.Agent(self.algorithm("QRDQN", self.model(_make, weights)))
        obs = np.random.default_rng(2).normal(size=(50, OBS_DIM)).astype(np.float32)
        np.testing.assert_array_equal(agent.predict(obs), _theta(weights, obs).mean(axis=1).argmax(axis=1))

    def test_quantiles_of_a_random_reward_are_learned(self) -> None:
        """Rewards are 0 or 1 with equal chance: of five quantiles the outer ones go to 0 and 1, and the mean to a half.

        With a small kappa the loss is that of quantiles, not of expectiles.
        """
        rng = np.random.default_rng(3)
        algorithm = self.algorithm("QRDQN", _make(self.backend), lr=0.02, kappa=0.01)
        agent = self.backend.Agent(algorithm)
        obs, ones = np.zeros((64, OBS_DIM), np.float32), np.ones(64)
        for _ in range(300):
            agent.learn(obs, np.zeros(64, int), rng.integers(2, size=64), obs, ones)
        theta = agent.run(algorithm.model.quantiles, obs[:1])[0, :, 0]
        np.testing.assert_allclose(np.sort(theta)[[0, 1, 3, 4]], [0.0, 0.0, 1.0, 1.0], atol=0.15)

    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(8)
        model = self.backend.networks.QuantileNetwork(ACT_DIM, 11, (32,))
        agent = self.backend.Agent(self.algorithm("QRDQN", model, gamma=0.9, lr=0.02, sync_every=10), seed=9)
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = agent.sample(obs, epsilon=0.3)
            agent.learn(obs, action, action == state, obs, np.ones(64))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95

    @pytest.mark.parametrize(("name", "value"), [("kappa", 0.0), ("gamma", 2.0), ("sync_every", 0), ("tau", 0.0)])
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("QRDQN", _make(self.backend), **{name: value})

    def test_an_action_that_the_model_has_no_quantiles_for_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("QRDQN", _make(self.backend)))
        obs = np.zeros((4, OBS_DIM), np.float32)
        with pytest.raises(ValueError, match=r"action must be in 0\.\.2, got 3\.\.3"):
            agent.learn(obs, np.full(4, ACT_DIM), np.zeros(4), obs, np.zeros(4))

    def test_a_model_without_quantiles_is_refused(self) -> None:
        with pytest.raises(ModelContractError, match="`QRDQN`'s model needs to implement `quantiles` method"):
            self.algorithm("QRDQN", self.backend.networks.QNetwork(ACT_DIM))

    def test_without_settings_it_has_those_of_the_paper(self) -> None:
        algorithm = self.algorithm("QRDQN", _make(self.backend))
        assert (algorithm.gamma, algorithm.lr, algorithm.kappa) == (0.99, 5e-5, 1.0)
