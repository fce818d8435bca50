"""What PolicyGradient must do on every backend."""

import numpy as np
import pytest

from parl_core.contracts.rollout_batch import RolloutBatch
from parl_core.errors import HyperparameterError
from parl_core.model import Weights
from parl_core.testing.adapter import Conformance, Precision, assert_weights_close, random_weights
from parl_core.testing.identity import discrete_identity
from parl_core.testing.models import (
    ACT_DIM,
    GAUSSIAN_SHAPES,
    OBS_DIM,
    Q_SHAPES,
    gaussian_actor_critic,
    probabilities,
)
from parl_core.testing.reference import Adam, Dense, log_softmax
from parl_core.testing.reference_losses import policy_gradient
from parl_core.testing.reference_policies import CONTINUOUS, PolicyReference

__all__ = ["PolicyGradientConformance"]

_NETWORK = Dense(("fc1", "fc2"))


class PolicyGradientConformance(Conformance):
    """Suite of PolicyGradient."""

    def test_three_updates_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(1)
        weights: Weights = random_weights(rng, Q_SHAPES)
        agent = self.backend.Agent(
            self.algorithm("PolicyGradient", self.model(probabilities, weights, precision), lr=0.01)
        )
        adam = Adam(lr=0.01)
        for lr in (None, None, 0.003):
            obs, reward = rng.normal(size=(16, OBS_DIM)), rng.normal(size=16)
            action = rng.integers(ACT_DIM, size=16)
            outputs = _NETWORK.forward(weights, obs)
            loss, gradient = policy_gradient(outputs[-1], action, reward)
            weights = adam.update(weights, _NETWORK.backward(weights, outputs, gradient)[0], lr)
            found = agent.learn(obs.astype(precision.dtype), action, reward.astype(precision.dtype), lr=lr)
            assert abs(found - loss) < precision.tolerance
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_actions_of_shape_n_1_mean_the_same_as_of_shape_n(self) -> None:
        rng = np.random.default_rng(2)
        weights = random_weights(rng, Q_SHAPES)
        obs, reward = rng.normal(size=(8, OBS_DIM)).astype(np.float32), rng.normal(size=8).astype(np.float32)
        action = rng.integers(ACT_DIM, size=8)
        losses = [
            self.backend.Agent(self.algorithm("PolicyGradient", self.model(probabilities, weights), lr=0.01)).learn(
                obs, action.reshape(shape), reward.reshape(shape)
            )
            for shape in ((8,), (8, 1))
        ]
        assert losses[0] == losses[1]

    def test_predict_takes_the_most_probable_action(self) -> None:
        rng = np.random.default_rng(3)
        weights = random_weights(rng, Q_SHAPES)
        agent = self.backend.Agent(self.algorithm("PolicyGradient", self.model(probabilities, weights)))
        obs = rng.normal(size=(16, OBS_DIM)).astype(np.float32)
        np.testing.assert_array_equal(agent.predict(obs), _NETWORK.forward(weights, obs)[-1].argmax(axis=1))

    def test_sample_draws_actions_as_often_as_they_are_probable(self) -> None:
        rng = np.random.default_rng(4)
        weights = random_weights(rng, Q_SHAPES)
        agent = self.backend.Agent(self.algorithm("PolicyGradient", self.model(probabilities, weights)), seed=5)
        obs = rng.normal(size=(1, OBS_DIM)).astype(np.float32)
        drawn = agent.sample(np.repeat(obs, 20_000, axis=0))
        expected = np.exp(log_softmax(_NETWORK.forward(weights, obs)[-1]))[0]
        # Standard deviation of a share is at most 0.5 / sqrt(20000) = 0.0035.
        np.testing.assert_allclose(np.bincount(drawn, minlength=ACT_DIM) / 20_000, expected, atol=0.02)

    def test_updates_of_a_gaussian_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(7)
        weights = random_weights(rng, GAUSSIAN_SHAPES)
        algorithm = self.algorithm(
            "PolicyGradient", self.model(gaussian_actor_critic, weights, precision), lr=0.01, continuous_action=True
        )
        agent, adam = self.backend.Agent(algorithm, seed=8), Adam(lr=0.01)
        for _ in range(3):
            obs, action, reward = (rng.normal(size=(16, *shape)) for shape in ((OBS_DIM,), (ACT_DIM,), ()))
            policy = PolicyReference(CONTINUOUS, weights, obs, action)
            weights = adam.update(weights, policy.backward(-reward / 16, np.zeros(16)))
            found = agent.learn(*(array.astype(precision.dtype) for array in (obs, action, reward)))
            assert abs(found + (policy.log_prob * reward).mean()) < precision.tolerance
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        mean = Dense(("pi1", "pi2")).forward(weights, obs)[-1]
        np.testing.assert_allclose(agent.predict(obs.astype(precision.dtype)), mean, atol=20 * precision.tolerance)

    def test_a_gaussian_draws_with_its_mean_and_deviation(self) -> None:
        rng = np.random.default_rng(9)
        weights = random_weights(rng, GAUSSIAN_SHAPES)
        model = self.model(gaussian_actor_critic, weights)
        agent = self.backend.Agent(self.algorithm("PolicyGradient", model, continuous_action=True), seed=10)
        obs = np.repeat(rng.normal(size=(1, OBS_DIM)).astype(np.float32), 20_000, axis=0)
        mean = Dense(("pi1", "pi2")).forward(weights, obs[:1])[-1][0]
        std = np.exp(Dense(("pi1", "spread")).forward(weights, obs[:1])[-1][0])
        for action in (agent.sample(obs), agent.explore(obs)[1]):
            assert (np.abs(action.mean(axis=0) - mean) < 0.04 * std).all()
            np.testing.assert_allclose(action.std(axis=0), std, rtol=0.03)

    def test_a_rollout_is_one_step_weighted_by_its_normalised_advantages(self) -> None:
        rng = np.random.default_rng(11)
        weights = random_weights(rng, Q_SHAPES)
        one, other = (
            self.backend.Agent(self.algorithm("PolicyGradient", self.model(probabilities, weights))) for _ in range(2)
        )
        obs, advantage = rng.normal(size=(16, OBS_DIM)).astype(np.float32), rng.normal(size=16).astype(np.float32)
        action, zeros = rng.integers(ACT_DIM, size=16), np.zeros(16, np.float32)
        rollout = RolloutBatch(obs, action, zeros, advantage, zeros, advantage)
        found = one.learn_rollout(rollout, rng=rng, lr=0.02)
        loss = other.learn(obs, action, (advantage - advantage.mean()) / (advantage.std() + 1e-8), lr=0.02)
        assert found == pytest.approx({"policy_loss": loss, "steps": 1.0})
        assert_weights_close(one.get_weights(), other.get_weights(), 0.0)
        with pytest.raises(HyperparameterError, match=r"PolicyGradient takes one step .* no use for clip=0.2"):
            one.learn_rollout(rollout, rng=rng, clip=0.2)

    @pytest.mark.parametrize(
        ("action", "reward", "message"),
        [
            ([0, 1], [0.0, np.inf], "reward must be finite, got inf in row 1.*clip or drop"),
            ([0.5, 1.0], [0.0, 1.0], "action must hold whole numbers"),
            ([0], [0.0, 1.0], "same number of rows"),
            ([], [], "at least one"),
        ],
    )
    def test_a_batch_that_does_not_fit_is_refused(self, action: object, reward: object, message: str) -> None:
        agent = self.backend.Agent(self.algorithm("PolicyGradient", probabilities(self.backend)))
        action = np.array(action, int) if action == [] else np.array(action)
        with pytest.raises(ValueError, match=message):
            agent.learn(np.zeros((len(np.array(reward)), OBS_DIM), np.float32), action, reward)

    def test_a_negative_learning_rate_of_a_call_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("PolicyGradient", probabilities(self.backend)))
        with pytest.raises(HyperparameterError, match="lr must be at least 0, got -1"):
            agent.learn(np.zeros((2, OBS_DIM), np.float32), [0, 1], [0.0, 1.0], lr=-1.0)

    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(5)
        agent = self.backend.Agent(self.algorithm("PolicyGradient", probabilities(self.backend), lr=0.02), seed=6)
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = agent.sample(obs)
            agent.learn(obs, action, (action == state) - 1.0 / ACT_DIM)
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95
