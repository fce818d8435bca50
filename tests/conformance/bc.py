"""Tests of behaviour cloning that every backend must pass."""

import numpy as np
import pytest

from conformance.adapter import Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import gradient, layers, logsumexp
from conformance.identity import discrete_identity
from conformance.models import ACT_DIM, GAUSSIAN_SHAPES, OBS_DIM, actor_critic, gaussian_actor_critic
from conformance.reference import Adam
from conformance.reference_policies import CONTINUOUS, PolicyReference
from parl_core.errors import HyperparameterError
from parl_core.model import Weights
from parl_core.offline import OfflineDataset
from parl_core.training.offline import OfflineSettings, train_offline

__all__ = ["BCConformance"]

_BATCH, _LR = 16, 0.01
_SHAPES = {name: shape for name, shape in GAUSSIAN_SHAPES.items() if not name.startswith("spread")}


class BCConformance(Conformance):
    """Suite of BC."""

    def test_three_updates_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(1)
        weights = random_weights(rng, _SHAPES)
        agent = self.backend.Agent(self.algorithm("BC", self.model(actor_critic, weights, precision), lr=_LR))
        adam = Adam(_LR)
        for _ in range(3):
            obs, action = rng.normal(size=(_BATCH, OBS_DIM)), rng.integers(ACT_DIM, size=_BATCH)

            def loss(w: Weights, o: np.ndarray = obs, a: np.ndarray = action) -> complex:
                logits = layers(w, ("pi1", "pi2"), o)
                return complex((logsumexp(logits, axis=1) - logits[np.arange(_BATCH), a]).mean())

            expected = loss(weights).real
            weights = adam.update(weights, gradient(loss, weights, ("pi",)))
            found = agent.learn(*self._rows(obs, action, precision))
            assert found == pytest.approx(expected, abs=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_updates_of_a_gaussian_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(2)
        weights = random_weights(rng, GAUSSIAN_SHAPES)
        model = self.model(gaussian_actor_critic, weights, precision)
        agent, adam = self.backend.Agent(self.algorithm("BC", model, lr=_LR, continuous_action=True)), Adam(_LR)
        for _ in range(3):
            obs, action = rng.normal(size=(_BATCH, OBS_DIM)), rng.uniform(-1.0, 1.0, (_BATCH, ACT_DIM))
            policy = PolicyReference(CONTINUOUS, weights, obs, action)
            weights = adam.update(weights, policy.backward(np.full(_BATCH, -1.0 / _BATCH), np.zeros(_BATCH)))
            found = agent.learn(*self._rows(obs, action, precision))
            assert abs(found + policy.log_prob.mean()) < precision.tolerance
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        mean = layers(weights, ("pi1", "pi2"), obs)
        found = agent.predict(obs.astype(precision.dtype))
        np.testing.assert_allclose(found, np.clip(mean, -1.0, 1.0), atol=20 * precision.tolerance)
        assert np.abs(agent.sample(np.zeros((500, OBS_DIM), precision.dtype))).max() <= 1.0

    def test_it_does_what_the_log_does_whatever_that_was_worth(self) -> None:
        rng = np.random.default_rng(3)
        obs, state = discrete_identity(rng, 500)
        log = OfflineDataset.from_arrays(
            {
                "obs": obs,
                "action": (state + 1) % ACT_DIM,
                "reward": -np.ones(500),
                "next_obs": obs,
                "terminal": np.ones(500),
            }
        )
        agent = self.backend.Agent(self.algorithm("BC", actor_critic(self.backend), lr=0.02))
        train_offline(agent, log, OfflineSettings(updates=150, batch_size=64, report_every=50), seed=4)
        assert (agent.predict(obs) == log.action).mean() > 0.95

    def test_actions_that_the_policy_does_not_have_are_refused(self) -> None:
        obs, ones = np.zeros((2, OBS_DIM), np.float32), np.ones(2)
        discrete = self.backend.Agent(self.algorithm("BC", actor_critic(self.backend)))
        with pytest.raises(ValueError, match=rf"action must be in 0..{ACT_DIM - 1}, got 0..{ACT_DIM}"):
            discrete.learn(obs, [0, ACT_DIM], ones, obs, ones)
        model = gaussian_actor_critic(self.backend)
        continuous = self.backend.Agent(self.algorithm("BC", model, continuous_action=True))
        with pytest.raises(ValueError, match=r"action must lie in \[-1, 1\]"):
            continuous.learn(obs, np.full((2, ACT_DIM), 2.0), ones, obs, ones)

    def test_a_learning_rate_out_of_range_is_refused(self) -> None:
        with pytest.raises(HyperparameterError, match="lr"):
            self.algorithm("BC", actor_critic(self.backend), lr=0.0)

    @staticmethod
    def _rows(obs: np.ndarray, action: np.ndarray, precision: Precision) -> tuple[np.ndarray, ...]:
        seen, flags = obs.astype(precision.dtype), np.ones(len(obs), precision.dtype)
        return seen, action.astype(precision.dtype) if action.ndim == 2 else action, flags, seen, flags
