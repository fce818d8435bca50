"""What PPO in PARL 2.x's form must do on every backend."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from parl_core.contracts.rollout_batch import RolloutBatch
from parl_core.errors import DivergedError, HyperparameterError
from parl_core.model import Weights
from parl_core.testing.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from parl_core.testing.identity import continuous_identity, discrete_identity
from parl_core.testing.models import (
    ACT_DIM,
    ACTOR_CRITIC_SHAPES,
    GAUSSIAN_SHAPES,
    OBS_DIM,
    actor_critic,
    gaussian_actor_critic,
)
from parl_core.testing.reference import Adam, Array, Dense, clip_by_global_norm, log_softmax, summed
from parl_core.testing.reference_losses import (
    clipped_surrogate,
    clipped_value,
    gaussian_entropy,
    gaussian_log_prob,
)

__all__ = ["PPOConformance"]

_POLICY, _SPREAD, _VALUE = Dense(("pi1", "pi2")), Dense(("pi1", "spread")), Dense(("v1", "v2"))
_CLIP, _VF, _ENT, _LR, _EPS, _NORM = 0.2, 0.5, 0.01, 0.01, 1e-5, 0.5
_SETTINGS = {
    "clip_param": _CLIP,
    "value_loss_coef": _VF,
    "entropy_coef": _ENT,
    "initial_lr": _LR,
    "eps": _EPS,
    "max_grad_norm": _NORM,
}


class PPOConformance(Conformance):
    """Suite of PPO with one optimizer."""

    @pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
    @pytest.mark.parametrize("clip_value", [True, False], ids=["clipped_value", "plain_value"])
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, continuous: bool, clip_value: bool
    ) -> None:
        rng = np.random.default_rng(1)
        agent, weights = self._agent(rng, continuous, precision, use_clipped_value_loss=clip_value)
        adam = Adam(_LR, _EPS)
        for lr in (None, None, 0.003):
            batch = _rollout(rng, 16, continuous)
            expected, gradients = _reference(weights, batch, continuous, clip_value)
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM), lr)
            found = agent.learn(*_columns(batch, precision), lr=lr)
            np.testing.assert_allclose(found, expected[:3], rtol=0, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    @pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
    def test_a_rollout_is_learned_in_permuted_minibatches(self, precision: Precision, continuous: bool) -> None:
        rng = np.random.default_rng(2)
        agent, weights = self._agent(rng, continuous, precision)
        batch = RolloutBatch(*_columns(_rollout(rng, 20, continuous), precision))
        adam, figures = Adam(_LR, _EPS), []
        order = np.random.default_rng(3)
        for _ in range(2):
            permuted = order.permutation(20)
            for rows in (permuted[:8], permuted[8:16], permuted[16:]):
                part = RolloutBatch(*(getattr(batch, field.name)[rows] for field in fields(batch)[:6]))
                expected, gradients = _reference(weights, part, continuous, True)
                weights = adam.update(weights, clip_by_global_norm(gradients, _NORM))
                figures.append(expected)
        found = agent.learn_rollout(batch, epochs=2, minibatch_size=8, rng=np.random.default_rng(3))
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        names = ("value_loss", "policy_loss", "entropy", "approx_kl", "clip_fraction")
        expected_means = dict(zip(names, np.mean(figures, axis=0), strict=True))
        assert found.pop("steps") == 6
        assert found == pytest.approx(expected_means, abs=precision.tolerance)

    def test_target_kl_ends_after_the_epoch_that_passes_it(self) -> None:
        rng = np.random.default_rng(4)
        batch = RolloutBatch(*_columns(_rollout(rng, 16, False), FLOAT32))
        steps = []
        for target_kl in (None, 1e9, 1e-9):
            agent, _ = self._agent(np.random.default_rng(5), False, FLOAT32)
            options: dict[str, Any] = {"epochs": 5, "minibatch_size": 8, "rng": np.random.default_rng(6)}
            steps.append(agent.learn_rollout(batch, target_kl=target_kl, **options)["steps"])
        assert steps == [10, 10, 2]

    @pytest.mark.parametrize("name", ["lr", "clip", "entropy_coef", "target_kl"])
    def test_negative_values_of_a_call_are_refused_by_name(self, name: str) -> None:
        rng = np.random.default_rng(4)
        columns = _columns(_rollout(rng, 16, False), FLOAT32)
        agent, _ = self._agent(rng, False, FLOAT32)
        with pytest.raises(HyperparameterError, match=f"{name} must be"):
            agent.learn_rollout(RolloutBatch(*columns), epochs=1, minibatch_size=8, rng=rng, **{name: -0.1})
        if name != "target_kl":
            with pytest.raises(HyperparameterError, match=f"{name} must be"):
                agent.learn(*columns, **{name: -0.1})

    def test_scheduled_values_of_a_call_replace_those_of_the_constructor(self) -> None:
        results = []
        for settings, call in (
            ({"clip_param": 0.05, "entropy_coef": 0.2, "initial_lr": 0.02}, {}),
            ({}, {"clip": 0.05, "entropy_coef": 0.2, "lr": 0.02}),
        ):
            rng = np.random.default_rng(7)
            agent, _ = self._agent(rng, False, FLOAT32, **settings)
            agent.learn(*_columns(_rollout(rng, 16, False), FLOAT32), **call)
            results.append(agent.get_weights())
        for name, array in results[0].items():
            np.testing.assert_array_equal(array, results[1][name], err_msg=name)

    @pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
    def test_sample_agrees_with_the_reference_on_its_own_actions(self, precision: Precision, continuous: bool) -> None:
        rng = np.random.default_rng(8)
        agent, weights = self._agent(rng, continuous, precision)
        obs = rng.normal(size=(50, OBS_DIM)).astype(precision.dtype)
        value, action, log_prob, entropy = agent.sample(obs)
        assert value.shape == log_prob.shape == entropy.shape == (50,)
        assert action.shape == ((50, ACT_DIM) if continuous else (50,))
        expected_log_prob, expected_entropy = _log_prob_and_entropy(weights, obs, action, continuous)
        np.testing.assert_allclose(value, _VALUE.forward(weights, obs)[-1][:, 0], atol=precision.tolerance)
        np.testing.assert_allclose(log_prob, expected_log_prob, atol=20 * precision.tolerance)
        np.testing.assert_allclose(entropy, expected_entropy, atol=precision.tolerance)
        np.testing.assert_allclose(agent.value(obs), value, atol=precision.tolerance)

    @pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
    def test_predict_gives_the_mode_and_one_observation_its_row(self, continuous: bool) -> None:
        rng = np.random.default_rng(9)
        agent, weights = self._agent(rng, continuous, FLOAT32)
        obs = rng.normal(size=(10, OBS_DIM)).astype(np.float32)
        output = _POLICY.forward(weights, obs)[-1]
        expected = output if continuous else output.argmax(axis=1)
        np.testing.assert_allclose(agent.predict(obs), expected, atol=1e-5)
        np.testing.assert_allclose(agent.predict(obs[3]), expected[3], atol=1e-5)
        assert [np.shape(part) for part in agent.sample(obs[3])] == [(), (ACT_DIM,) if continuous else (), (), ()]
        assert isinstance(agent.value(obs[3]), float)

    def test_samples_come_as_often_as_they_are_probable(self) -> None:
        rng = np.random.default_rng(10)
        agent, weights = self._agent(rng, False, FLOAT32)
        obs = rng.normal(size=(1, OBS_DIM)).astype(np.float32)
        action = agent.sample(np.repeat(obs, 20_000, axis=0))[1]
        expected = np.exp(log_softmax(_POLICY.forward(weights, obs)[-1]))[0]
        # Standard deviation of a share is at most 0.5 / sqrt(20000) = 0.0035.
        np.testing.assert_allclose(np.bincount(action, minlength=ACT_DIM) / 20_000, expected, atol=0.02)

    def test_gaussian_samples_have_the_mean_and_deviation_of_the_policy(self) -> None:
        rng = np.random.default_rng(11)
        agent, weights = self._agent(rng, True, FLOAT32)
        obs = rng.normal(size=(1, OBS_DIM)).astype(np.float32)
        action = agent.sample(np.repeat(obs, 20_000, axis=0))[1]
        std = np.exp(_SPREAD.forward(weights, obs)[-1])[0]
        assert (np.abs(action.mean(axis=0) - _POLICY.forward(weights, obs)[-1][0]) < 0.04 * std).all()
        np.testing.assert_allclose(action.std(axis=0), std, rtol=0.03)

    def test_a_nan_in_the_rollout_is_an_error(self) -> None:
        rng = np.random.default_rng(12)
        agent, _ = self._agent(rng, False, FLOAT32)
        columns = _columns(_rollout(rng, 16, False), FLOAT32)
        columns[5][3] = np.nan
        with pytest.raises(DivergedError, match=r"PPO\.learn_rollout: .*policy_loss is nan"):
            agent.learn_rollout(RolloutBatch(*columns), epochs=1, minibatch_size=8, rng=rng)

    def test_a_rollout_with_columns_of_different_length_is_refused(self) -> None:
        columns = _columns(_rollout(np.random.default_rng(13), 16, False), FLOAT32)
        with pytest.raises(ValueError, match="same number of rows"):
            RolloutBatch(columns[0][:15], *columns[1:])

    def test_actions_of_the_wrong_shape_are_refused(self) -> None:
        columns = _columns(_rollout(np.random.default_rng(13), 16, True), FLOAT32)
        for continuous, action in ((True, columns[1][:, 0]), (False, columns[1])):
            agent, _ = self._agent(np.random.default_rng(5), continuous, FLOAT32)
            batch = RolloutBatch(columns[0], action, *columns[2:])
            with pytest.raises(ValueError, match=r"RolloutBatch.action must have shape"):
                agent.learn_rollout(batch, epochs=1, minibatch_size=8, rng=np.random.default_rng(1))

    def test_settings_of_both_forms_together_are_refused(self) -> None:
        with pytest.raises(HyperparameterError, match=r"policy_lr, value_lr of PARL 1.x's .*with clip_param"):
            self.algorithm("PPO", actor_critic(self.backend), policy_lr=1e-3, value_lr=1e-3, clip_param=0.2)

    @pytest.mark.parametrize(
        ("method", "arguments"),
        [("policy_learn", 3), ("value_learn", 2), ("value_predict", 1), ("sync_old_policy", 0)],
    )
    def test_methods_of_the_other_form_say_how_to_get_it(self, method: str, arguments: int) -> None:
        algorithm = self.algorithm("PPO", actor_critic(self.backend))
        with pytest.raises(NotImplementedError, match="make it with policy_lr and value_lr"):
            getattr(algorithm, method)(*range(arguments))

    @pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
    def test_it_learns_the_identity_environment(self, continuous: bool) -> None:
        rng = np.random.default_rng(14)
        model = (gaussian_actor_critic if continuous else actor_critic)(self.backend)
        algorithm = self.algorithm("PPO", model, initial_lr=0.01, clip_param=0.2, continuous_action=continuous)
        agent = self.backend.Agent(algorithm, seed=15)
        play = continuous_identity if continuous else discrete_identity
        for _ in range(60):
            obs, right = play(rng, 128)
            value, action, log_prob, _ = agent.sample(obs)
            reward = -((action - right) ** 2).sum(axis=1) if continuous else (action == right).astype(np.float32)
            batch = RolloutBatch(obs, action, value, reward, log_prob, reward - value)
            agent.learn_rollout(batch, epochs=5, minibatch_size=64, rng=rng)
        obs, right = play(rng, 200)
        action = agent.predict(obs)
        score = 1.0 - np.abs(action - right).mean() if continuous else (action == right).mean()
        assert score > (0.85 if continuous else 0.95)

    def _agent(
        self, rng: np.random.Generator, continuous: bool, precision: Precision, **settings: Any
    ) -> tuple[Any, Weights]:
        weights = random_weights(rng, GAUSSIAN_SHAPES if continuous else ACTOR_CRITIC_SHAPES)
        model = self.model(gaussian_actor_critic if continuous else actor_critic, weights, precision)
        settings = {**_SETTINGS, "continuous_action": continuous, **settings}
        return self.backend.Agent(self.algorithm("PPO", model, **settings)), weights


def _rollout(rng: np.random.Generator, rows: int, continuous: bool) -> RolloutBatch:
    """A rollout whose numbers reach both sides of every clip."""
    return RolloutBatch(
        obs=rng.normal(size=(rows, OBS_DIM)),
        action=rng.normal(size=(rows, ACT_DIM)) if continuous else rng.integers(ACT_DIM, size=rows),
        value=rng.normal(size=rows),
        return_=rng.normal(size=rows),
        log_prob=rng.normal(-4.0 if continuous else -1.1, 0.4, size=rows),
        advantage=rng.normal(size=rows),
    )


def _columns(batch: RolloutBatch, precision: Precision) -> list[Any]:
    arrays = [getattr(batch, field.name) for field in fields(batch)[:6]]
    return [array.astype(precision.dtype) if array.dtype.kind == "f" else array for array in arrays]


def _log_prob_and_entropy(weights: Weights, obs: Array, action: Any, continuous: bool) -> tuple[Array, Array]:
    output = _POLICY.forward(weights, obs)[-1]
    if continuous:
        log_std = _SPREAD.forward(weights, obs)[-1]
        return gaussian_log_prob(output, log_std, action)[0], gaussian_entropy(log_std)
    log_p = log_softmax(output)
    return log_p[np.arange(len(obs)), action], -(np.exp(log_p) * log_p).sum(axis=1)


def _reference(
    weights: Weights, batch: RolloutBatch, continuous: bool, clip_value: bool
) -> tuple[list[float], Weights]:
    """(value loss, policy loss, entropy, approx_kl, clip fraction) and the gradients of the whole loss."""
    rows = len(batch)
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    policy, value = _POLICY.forward(weights, batch.obs), _VALUE.forward(weights, batch.obs)
    log_prob, entropy = _log_prob_and_entropy(weights, batch.obs, batch.action, continuous)
    surrogate = clipped_surrogate(log_prob, batch.log_prob, advantage, _CLIP)
    by_log_prob = surrogate.gradient[:, None]

    if continuous:
        spread = _SPREAD.forward(weights, batch.obs)
        _, by_mean, by_log_std = gaussian_log_prob(policy[-1], spread[-1], batch.action)
        gradients, _ = _POLICY.backward(weights, policy, by_log_prob * by_mean)
        more, _ = _SPREAD.backward(weights, spread, by_log_prob * by_log_std - _ENT / rows)
        gradients = summed(gradients, more)
    else:
        log_p = log_softmax(policy[-1])
        chosen = np.eye(ACT_DIM)[batch.action]
        by_logits = by_log_prob * (chosen - np.exp(log_p))
        by_logits += _ENT / rows * np.exp(log_p) * (log_p + entropy[:, None])  # d entropy / d z = -p (log p + H)
        gradients, _ = _POLICY.backward(weights, policy, by_logits)

    if clip_value:
        value_loss, by_value = clipped_value(value[-1][:, 0], batch.value, batch.return_, _CLIP)
    else:
        error = value[-1][:, 0] - batch.return_
        value_loss, by_value = float(0.5 * (error**2).mean()), error / rows
    gradients |= _VALUE.backward(weights, value, _VF * by_value[:, None])[0]
    return [value_loss, surrogate.loss, entropy.mean(), surrogate.approx_kl, surrogate.clip_fraction], gradients
