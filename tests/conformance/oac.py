"""Tests of OAC that every backend must pass: it learns as SAC, and explores where an upper bound of Q rises."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import Precision, random_weights
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference_continuous import Learner, policy
from conformance.sac import SACConformance
from parl_core.errors import HyperparameterError

__all__ = ["OACConformance"]


class OACConformance(SACConformance):
    """Suite of OAC."""

    NAME = "OAC"

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "delta": 0.1}

    def test_exploration_is_shifted_along_the_gradient_of_the_upper_bound(self, precision: Precision) -> None:
        beta, delta = 2.0, 0.7
        agent = self.agent(precision, beta=beta, delta=delta)
        rng = np.random.default_rng(4)
        obs, noise = rng.normal(size=(20, OBS_DIM)), rng.normal(size=(20, ACT_DIM))
        self.draws(agent, precision, noise)

        learner = Learner(random_weights(np.random.default_rng(1), self.SHAPES), {}, 1.0, ("qa", "qb"))
        mean, log_std = policy(learner.weights, obs)
        action, std = np.tanh(mean), np.exp(log_std)
        first, second = learner.values(learner.weights, obs, action)
        sign = np.sign(first - second)
        share = np.stack([0.5 + 0.5 * beta * sign, 0.5 - 0.5 * beta * sign])
        gradient = learner.slope_of_values(obs, action, share) * (1.0 - action**2)
        norm = np.sqrt((std**2 * gradient**2).sum(axis=1, keepdims=True)) + 1e-5
        expected = np.tanh(mean + np.sqrt(2.0 * delta) * std**2 * gradient / norm + std * noise)

        found = agent.sample(obs.astype(precision.dtype))
        np.testing.assert_allclose(found, expected, atol=10 * precision.tolerance)

    def test_without_delta_it_explores_as_the_policy_does(self) -> None:
        obs = np.random.default_rng(4).normal(size=(20, OBS_DIM)).astype(np.float32)
        agent = self.without_noise(self.agent(delta=0.0))
        policy_action = agent.run(agent.alg.sample, obs)[0]
        np.testing.assert_allclose(agent.sample(obs), policy_action, atol=1e-6)

    def test_exploring_leaves_no_gradients_behind(self) -> None:
        agent = self.agent()
        before = agent.get_weights()
        for _ in range(3):
            agent.sample(np.ones((4, OBS_DIM), np.float32))
        for name, array in agent.get_weights().items():
            np.testing.assert_array_equal(array, before[name])
        assert all(parameter.grad is None for parameter in agent.alg.model.parameters())

    @pytest.mark.parametrize("name", ["beta", "delta"])
    def test_negative_settings_of_its_own_are_refused_by_name(self, name: str) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("OAC", self.make(self.backend), **{name: -1.0})
