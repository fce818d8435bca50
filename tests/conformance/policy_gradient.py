"""Tests of PolicyGradient that every backend must pass."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.identity import discrete_identity
from conformance.models import (
    ACT_DIM,
    GAUSSIAN_SHAPES,
    HIDDEN,
    OBS_DIM,
    Q_SHAPES,
    gaussian_actor_critic,
    probabilities,
)
from conformance.reference import Adam, Dense, log_softmax
from conformance.reference_losses import policy_gradient
from conformance.reference_policies import CONTINUOUS, MASKED, MULTI_DISCRETE, Kind, PolicyReference
from parl_core.backends import Backend
from parl_core.contracts.batches import RolloutBatch
from parl_core.errors import DivergedError, HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["PolicyGradientConformance"]

_NETWORK, _LOGITS = Dense(("fc1", "fc2")), Dense(("pi1", "pi2"))
_SEVERAL = (MULTI_DISCRETE, MASKED, replace(MULTI_DISCRETE, name="masked_parts", masks=True))


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
        assert_weights_close(one.get_weights(), other.get_weights(), 1e-6)
        with pytest.raises(HyperparameterError, match=r"PolicyGradient takes one step .* no use for clip=0.2"):
            one.learn_rollout(rollout, rng=rng, clip=0.2)

    @pytest.mark.parametrize("kind", _SEVERAL, ids=lambda kind: kind.name)
    def test_updates_with_several_parts_and_masks_agree_with_the_reference(
        self, precision: Precision, kind: Kind
    ) -> None:
        rng = np.random.default_rng(12)
        agent, weights = self._agent_for(kind, rng, precision)
        adam = Adam(lr=0.01)
        for _ in range(3):
            mask = kind.mask(rng, 16)
            obs, reward, action = rng.normal(size=(16, OBS_DIM)), rng.normal(size=16), kind.actions(rng, mask, 16)
            policy = PolicyReference(kind, weights, obs, action, mask)
            weights = adam.update(weights, policy.backward(-reward / 16, np.zeros(16)))
            found = agent.learn(obs.astype(precision.dtype), action, reward.astype(precision.dtype), action_mask=mask)
            assert abs(found + (policy.log_prob * reward).mean()) < precision.tolerance
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    @pytest.mark.parametrize("kind", _SEVERAL, ids=lambda kind: kind.name)
    def test_what_is_possible_is_drawn_as_often_as_it_is_probable(self, kind: Kind) -> None:
        rng = np.random.default_rng(13)
        agent, weights = self._agent_for(kind, rng)
        rows, mask = 20_000, kind.mask(rng, 1)
        obs = np.repeat(rng.normal(size=(1, OBS_DIM)).astype(np.float32), rows, axis=0)
        told = {} if mask is None else {"action_mask": np.repeat(mask, rows, axis=0)}
        sampled = agent.sample(obs, **told)
        _, explored, log_prob = agent.explore(obs, **told)
        for drawn in (sampled, explored):
            assert drawn.shape == (rows, *kind.shape)
            for choices in np.unique(drawn, axis=0):
                action = np.tile(choices, (1, 1)) if kind.shape else choices[None]
                expected = np.exp(PolicyReference(kind, weights, obs[:1], action, mask).log_prob[0])
                share = (drawn.reshape(rows, -1) == choices).all(axis=1).mean()
                assert abs(share - expected) < 0.02  # standard deviation at most 0.0035
        masks = told["action_mask"][:50] if told else None
        reference = PolicyReference(kind, weights, obs[:50], explored[:50], masks)
        np.testing.assert_allclose(log_prob[:50], reference.log_prob, atol=1e-4)

    @pytest.mark.parametrize("kind", _SEVERAL, ids=lambda kind: kind.name)
    def test_the_best_possible_action_is_predicted_also_for_one_observation(self, kind: Kind) -> None:
        rng = np.random.default_rng(14)
        agent, weights = self._agent_for(kind, rng)
        obs, mask = rng.normal(size=(40, OBS_DIM)).astype(np.float32), kind.mask(rng, 40)
        logits = _LOGITS.forward(weights, obs)[-1]
        logits = logits if mask is None else np.where(mask, logits, -np.inf)
        parts = np.split(logits, np.cumsum(kind.sizes)[:-1], axis=1)
        expected = np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(40, *kind.shape)
        told = [{} if mask is None else {"action_mask": given} for given in (mask, None if mask is None else mask[0])]
        np.testing.assert_array_equal(agent.predict(obs, **told[0]), expected)
        np.testing.assert_array_equal(agent.predict(obs[0], **told[1]), expected[0])

    def test_a_possible_action_is_found_where_the_policy_is_sure_of_an_impossible_one(self) -> None:
        agent = self.backend.Agent(self.algorithm("PolicyGradient", probabilities(self.backend)), seed=1)
        sure = np.array([[1.0, 0.0, 0.0]], np.float32)
        mask = np.array([[False, False, True]])
        for rng in (None, np.random.default_rng(1)):
            assert agent.alg.choose(sure, rng=rng, action_mask=mask).tolist() == [2]

    def test_masks_may_come_with_the_observations_in_every_call_and_in_rollouts(self) -> None:
        rng = np.random.default_rng(15)
        agents = []
        for _ in range(2):
            inner = self.model(_of_sizes((ACT_DIM,)), random_weights(np.random.default_rng(16), _shapes(MASKED)))
            agents.append(self.backend.Agent(self.algorithm("PolicyGradient", _of_dictionary(self.backend, inner))))
        one, other = agents
        obs, advantage = rng.normal(size=(64, OBS_DIM)).astype(np.float32), rng.normal(size=64).astype(np.float32)
        mask = MASKED.mask(rng, 64)
        assert mask is not None
        parts = {"state": obs, "action_mask": mask.astype(np.int8)}
        for action in (one.explore(parts)[1], one.sample(parts), one.predict(parts)):
            assert mask[np.arange(64), action].all()
        zeros = np.zeros(64, np.float32)
        one.learn_rollout(RolloutBatch(parts, action, zeros, advantage, zeros, advantage), rng=rng)
        same = RolloutBatch({"state": obs}, action, zeros, advantage, zeros, advantage, mask)
        other.learn_rollout(same, rng=rng)
        assert_weights_close(one.get_weights(), other.get_weights(), 1e-6)

    def test_what_could_not_be_done_is_not_learned_from(self) -> None:
        agent = self.backend.Agent(self.algorithm("PolicyGradient", probabilities(self.backend)))
        mask = np.array([[True, True, True], [True, False, True]])
        with pytest.raises(ValueError, match="action 1 in row 1 is one that action_mask does not allow"):
            agent.learn(np.zeros((2, OBS_DIM), np.float32), [0, 1], [0.0, 1.0], action_mask=mask)

    @pytest.mark.parametrize(
        ("output", "error", "message"),
        [
            ([[0.2, 0.9, -0.1]], ModelContractError, "must return probabilities, got numbers from -0.1 .*softmax"),
            ([[1.5, 2.0, 0.5]], ModelContractError, "with sums from 4 to 4: let it end with a softmax"),
            ([[0.5, float("nan"), 0.5]], DivergedError, "NaN or infinite; go back to the last checkpoint"),
        ],
        ids=["negative", "sum", "nan"],
    )
    def test_what_is_no_probabilities_is_not_drawn_from(
        self, output: list[list[float]], error: type[Exception], message: str
    ) -> None:
        algorithm = self.algorithm("PolicyGradient", probabilities(self.backend))
        for rng in (None, np.random.default_rng(1)):
            with pytest.raises(error, match=message):
                algorithm.choose(np.array(output, np.float32), rng=rng)

    @pytest.mark.parametrize(
        ("settings", "mask", "message"),
        [
            ({}, np.ones((2, ACT_DIM + 1)), r"action_mask must have shape \(2, 3\), got \(2, 4\)"),
            ({}, np.array([[1, 1, 1], [0, 0, 0]]), "leaves no action in row 1"),
            ({"nvec": (1, 2)}, np.array([[1, 1, 1], [1, 0, 0]]), "leaves no action in row 1"),
            ({"nvec": (2, 2)}, None, r"must return \[batch, 4\], got \(2, 3\)"),
            ({"nvec": (2, 0)}, None, r"nvec\[1\] must be at least 1, got 0"),
        ],
    )
    def test_masks_and_sizes_that_do_not_fit_are_refused(self, settings: Any, mask: Any, message: str) -> None:
        def act() -> None:
            agent = self.backend.Agent(self.algorithm("PolicyGradient", probabilities(self.backend), **settings))
            agent.predict(np.zeros((2, OBS_DIM), np.float32), **({} if mask is None else {"action_mask": mask}))

        with pytest.raises((ValueError, ModelContractError), match=message):
            act()

    def test_a_gaussian_cannot_be_masked(self) -> None:
        model = gaussian_actor_critic(self.backend)
        agent = self.backend.Agent(self.algorithm("PolicyGradient", model, continuous_action=True))
        with pytest.raises(ValueError, match="Gaussian's cannot be masked"):
            agent.predict(np.zeros((2, OBS_DIM), np.float32), action_mask=np.ones((2, ACT_DIM)))

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

    def _agent_for(self, kind: Kind, rng: np.random.Generator, precision: Precision = FLOAT32) -> tuple[Any, Weights]:
        weights = random_weights(rng, _shapes(kind))
        model = self.model(_of_sizes(kind.sizes), weights, precision)
        return self.backend.Agent(self.algorithm("PolicyGradient", model, lr=0.01, **kind.settings), seed=3), weights


def _shapes(kind: Kind) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in kind.shapes.items() if name.startswith("pi")}


def _of_sizes(sizes: tuple[int, ...]) -> Callable[[Backend], Any]:
    """`forward(obs)`: the probabilities of each part side by side, over one hidden layer (tanh)."""

    def make(backend: Backend) -> Any:
        layers: Any = backend.layers

        class Parts(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.pi1, self.pi2 = layers.fc(size=HIDDEN, act="tanh"), layers.fc(size=sum(sizes))

            def forward(self, obs: Any) -> Any:
                logits, edges = self.pi2(self.pi1(obs)), np.cumsum((0, *sizes)).tolist()
                parts = [logits[:, begin:end] for begin, end in itertools.pairwise(edges)]
                return layers.concat([layers.softmax(part) for part in parts], axis=1)

        return Parts()

    return make


def _of_dictionary(backend: Backend, inner: Any) -> Any:
    class OfDictionary(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.inner = inner

        def forward(self, obs: Any) -> Any:
            return self.inner(obs["state"])

    return OfDictionary()
