"""Tests of PPO in PARL 1.x's form that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.identity import continuous_identity
from conformance.models import ACT_DIM, GAUSSIAN_SHAPES, OBS_DIM, actor_critic, separate_actor_critic
from conformance.reference import Adam, Array, Dense, summed
from conformance.reference_losses import clipped_surrogate, gaussian_kl, gaussian_log_prob
from parl_core.contracts.separate_ppo import adapt_kl_penalty
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights
from parl_core.schedules import piecewise

__all__ = ["SeparatePPOConformance"]

_POLICY, _SPREAD, _VALUE = Dense(("pi1", "pi2")), Dense(("pi1", "spread")), Dense(("v1", "v2"))
_POLICY_LR, _VALUE_LR = 0.01, 0.02


class SeparatePPOConformance(Conformance):
    """Suite of PPO with `policy_lr` and `value_lr`."""

    @pytest.mark.parametrize("beta", [None, 0.7], ids=["clip", "kl_penalty"])
    def test_three_policy_updates_agree_with_the_reference(self, precision: Precision, beta: float | None) -> None:
        rng = np.random.default_rng(1)
        agent, weights = self._agent(rng, precision, epsilon=0.2)
        old = {name: array + rng.normal(scale=0.05, size=array.shape) for name, array in weights.items()}
        agent.alg.old_policy_model.set_weights(old, portable=True)
        adam = Adam(_POLICY_LR)
        for _ in range(3):
            obs, actions = rng.normal(size=(16, OBS_DIM)), rng.normal(size=(16, ACT_DIM))
            advantages = rng.normal(size=16)
            expected, gradients = _policy_reference(weights, old, (obs, actions, advantages), beta)
            weights = adam.update(weights, gradients)
            arrays = [array.astype(precision.dtype) for array in (obs, actions, advantages)]
            found = agent.run(agent.alg.policy_learn, *arrays, beta)
            np.testing.assert_allclose(found, expected, rtol=0, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_three_value_updates_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(2)
        agent, weights = self._agent(rng, precision)
        adam = Adam(_VALUE_LR)
        for _ in range(3):
            obs, target = rng.normal(size=(16, OBS_DIM)), rng.normal(size=16)
            outputs = _VALUE.forward(weights, obs)
            error = outputs[-1][:, 0] - target
            weights = adam.update(weights, _VALUE.backward(weights, outputs, 2.0 * error[:, None] / 16)[0])
            found = agent.run(agent.alg.value_learn, obs.astype(precision.dtype), target.astype(precision.dtype))
            assert abs(found - (error**2).mean()) < precision.tolerance
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_schedules_count_the_steps_of_the_policy(self) -> None:
        stages: dict[str, list[tuple[float, float]]] = {
            "policy_lr": [(0, 0.02), (1, 0.001)],
            "value_lr": [(0, 0.1), (2, 0.01)],
            "epsilon": [(0, 0.3), (2, 0.01)],
        }
        scheduled, _ = self._agent(
            np.random.default_rng(8), FLOAT32, **{name: piecewise(steps) for name, steps in stages.items()}
        )
        told, _ = self._agent(np.random.default_rng(8), FLOAT32)
        rng = np.random.default_rng(9)
        for step in range(3):
            batch = [rng.normal(size=(16, *width)).astype(np.float32) for width in ((OBS_DIM,), (ACT_DIM,), ())]
            now = {name: piecewise(steps)(step) for name, steps in stages.items()}
            for agent, rate in ((scheduled, {}), (told, {"lr": now["value_lr"]})):
                agent.run(agent.alg.value_learn, batch[0], batch[2], **rate)
            scheduled.run(scheduled.alg.policy_learn, *batch)
            told.run(told.alg.policy_learn, *batch, lr=now["policy_lr"], epsilon=now["epsilon"])
        assert_weights_close(scheduled.get_weights(), told.get_weights(), 0.0)

    def test_values_of_a_call_below_their_range_are_refused_by_name(self) -> None:
        agent, _ = self._agent(np.random.default_rng(8), FLOAT32)
        batch = [np.zeros((2, width), np.float32) for width in (OBS_DIM, ACT_DIM)]
        for name in ("lr", "epsilon"):
            with pytest.raises(HyperparameterError, match=rf"{name} must be at least 0, got -0\.1"):
                agent.run(agent.alg.policy_learn, *batch, np.zeros(2, np.float32), **{name: -0.1})
        with pytest.raises(HyperparameterError, match=r"lr must be at least 0, got -0\.1"):
            agent.run(agent.alg.value_learn, batch[0], np.zeros(2, np.float32), lr=-0.1)
        for beta in (-1.0, 0.0):
            with pytest.raises(HyperparameterError, match=f"beta must be above 0, got {beta}"):
                agent.run(agent.alg.policy_learn, *batch, np.zeros(2, np.float32), beta)

    def test_a_model_of_another_width_than_act_dim_is_refused(self) -> None:
        agent, _ = self._agent(np.random.default_rng(8), FLOAT32, act_dim=ACT_DIM + 2)
        obs, advantages = np.zeros((2, OBS_DIM), np.float32), np.zeros(2, np.float32)
        message = "made with act_dim=5, .*policy returns means of 3 dimensions"
        with pytest.raises(ModelContractError, match=message):
            agent.run(agent.alg.policy_learn, obs, np.zeros((2, ACT_DIM), np.float32), advantages)
        for act in (agent.predict, agent.sample):
            with pytest.raises(ModelContractError, match=message):
                act(obs)

    @pytest.mark.parametrize("settings", [{"compile": True}, {"compute_dtype": "bfloat16"}])
    def test_what_this_form_does_not_have_is_refused_with_what_does(self, settings: dict[str, Any]) -> None:
        (name,) = settings
        with pytest.raises(HyperparameterError, match=f"PARL 1.x's form has no {name}=.*clip_param"):
            self._wrapped(separate_actor_critic(self.backend), **settings)

    def test_predict_gives_means_and_logvars_and_the_agent_acts_with_the_means(self, precision: Precision) -> None:
        rng = np.random.default_rng(3)
        agent, weights = self._agent(rng, precision)
        obs = rng.normal(size=(10, OBS_DIM)).astype(precision.dtype)
        means, logvars = agent.run(agent.alg.predict, obs)
        np.testing.assert_allclose(means, _POLICY.forward(weights, obs)[-1], atol=precision.tolerance)
        np.testing.assert_allclose(logvars, _SPREAD.forward(weights, obs)[-1], atol=precision.tolerance)
        np.testing.assert_array_equal(agent.predict(obs), means)
        np.testing.assert_allclose(agent.value(obs), _VALUE.forward(weights, obs)[-1][:, 0], atol=precision.tolerance)

    def test_samples_have_the_mean_and_variance_of_the_policy(self) -> None:
        rng = np.random.default_rng(4)
        weights = random_weights(rng, GAUSSIAN_SHAPES)
        agent = self._wrapped(self.model(separate_actor_critic, weights))
        obs = rng.normal(size=(1, OBS_DIM)).astype(np.float32)
        action = agent.sample(np.repeat(obs, 20_000, axis=0))
        std = np.exp(0.5 * _SPREAD.forward(weights, obs)[-1])[0]
        assert (np.abs(action.mean(axis=0) - _POLICY.forward(weights, obs)[-1][0]) < 0.04 * std).all()
        np.testing.assert_allclose(action.std(axis=0), std, rtol=0.03)

    def test_after_syncing_the_old_policy_the_divergence_is_zero(self, precision: Precision) -> None:
        rng = np.random.default_rng(5)
        agent, _ = self._agent(rng, precision)
        batch = [rng.normal(size=(16, width)).astype(precision.dtype) for width in (OBS_DIM, ACT_DIM)]
        advantages = rng.normal(size=16).astype(precision.dtype)
        agent.run(agent.alg.policy_learn, *batch, advantages)
        assert agent.run(agent.alg.policy_learn, *batch, advantages)[1] > 1e-5
        agent.alg.sync_old_policy()
        assert abs(agent.run(agent.alg.policy_learn, *batch, advantages)[1]) < 1e-6

    def test_learn_says_which_methods_this_form_has(self) -> None:
        agent = self._wrapped(separate_actor_critic(self.backend))
        with pytest.raises(NotImplementedError, match="call policy_learn and value_learn"):
            agent.learn(np.zeros((2, OBS_DIM), np.float32))

    def test_a_missing_learning_rate_is_named(self) -> None:
        with pytest.raises(HyperparameterError, match="needs value_lr"):
            self.algorithm("PPO", actor_critic(self.backend), policy_lr=1e-3)

    def test_a_dictionary_of_settings_selects_this_form(self) -> None:
        settings = {"act_dim": ACT_DIM, "policy_lr": 1e-3, "value_lr": 2e-3, "epsilon": 0.3}
        algorithm = self.algorithm("PPO", separate_actor_critic(self.backend), hyperparas=settings)
        assert (algorithm.policy_lr, algorithm.value_lr, algorithm.epsilon) == (1e-3, 2e-3, 0.3)
        assert isinstance(algorithm, self.backend.algorithms.PPO)

    def test_the_penalty_follows_the_divergence(self) -> None:
        assert [adapt_kl_penalty(2.0, kl, 0.01) for kl in (0.001, 0.01, 0.1)] == [1.0, 2.0, 4.0]

    @pytest.mark.parametrize("penalised", [False, True], ids=["clip", "kl_penalty"])
    def test_it_learns_the_identity_environment(self, penalised: bool) -> None:
        rng = np.random.default_rng(6)
        agent = self._wrapped(separate_actor_critic(self.backend))
        beta = 1.0
        for _ in range(30):  # later the deviation shrinks to nothing, and nothing is left to explore
            obs, right = continuous_identity(rng, 128)
            action = agent.sample(obs)
            reward = -((action - right) ** 2).sum(axis=1)
            advantage = reward - agent.value(obs)
            advantage = (advantage - advantage.mean()) / advantage.std()
            agent.alg.sync_old_policy()
            for _ in range(10):
                _, kl = agent.run(agent.alg.policy_learn, obs, action, advantage, beta if penalised else None)
                agent.run(agent.alg.value_learn, obs, reward)
            beta = adapt_kl_penalty(beta, kl, 0.02)
        obs, right = continuous_identity(rng, 200)
        assert np.abs(agent.predict(obs) - right).mean() < 0.15

    def _agent(self, rng: np.random.Generator, precision: Precision, **settings: Any) -> tuple[Any, Weights]:
        weights = random_weights(rng, GAUSSIAN_SHAPES)
        return self._wrapped(self.model(separate_actor_critic, weights, precision), **settings), weights

    def _wrapped(self, model: Any, **settings: Any) -> Any:
        given = {"policy_lr": _POLICY_LR, "value_lr": _VALUE_LR, "act_dim": ACT_DIM, **settings}
        return self.backend.Agent(self.algorithm("PPO", model, **given))


def _policy_reference(
    weights: Weights, old: Weights, batch: tuple[Array, Array, Array], beta: float | None
) -> tuple[list[float], Weights]:
    """(loss, mean KL) and the gradients of the loss."""
    obs, actions, advantages = batch
    policy, spread = _POLICY.forward(weights, obs), _SPREAD.forward(weights, obs)
    mean_old, log_std_old = _POLICY.forward(old, obs)[-1], 0.5 * _SPREAD.forward(old, obs)[-1]
    mean, log_std = policy[-1], 0.5 * spread[-1]
    log_prob, by_mean, by_log_std = gaussian_log_prob(mean, log_std, actions)
    log_prob_old = gaussian_log_prob(mean_old, log_std_old, actions)[0]
    kl, kl_by_mean, kl_by_log_std = gaussian_kl(mean_old, log_std_old, mean, log_std)
    if beta is None:
        surrogate = clipped_surrogate(log_prob, log_prob_old, advantages, 0.2)
        loss, by_log_prob = surrogate.loss, surrogate.gradient[:, None]
        mean_gradient, log_std_gradient = by_log_prob * by_mean, by_log_prob * by_log_std
    else:
        ratio = np.exp(log_prob - log_prob_old)
        loss = float(-(ratio * advantages).mean() + beta * kl.mean())
        by_log_prob = -(ratio * advantages)[:, None] / len(obs)
        mean_gradient = by_log_prob * by_mean + beta * kl_by_mean / len(obs)
        log_std_gradient = by_log_prob * by_log_std + beta * kl_by_log_std / len(obs)
    gradients, _ = _POLICY.backward(weights, policy, mean_gradient)
    more, _ = _SPREAD.backward(weights, spread, 0.5 * log_std_gradient)  # log std is half the log-variance
    return [loss, float(kl.mean())], summed(gradients, more)
