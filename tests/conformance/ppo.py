"""Tests of PPO in PARL 2.x's form that every backend must pass."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.identity import continuous_identity, discrete_identity
from conformance.models import ACT_DIM, OBS_DIM, actor_critic, gaussian_actor_critic, of_dictionaries, q_values
from conformance.reference import Adam, Dense, clip_by_global_norm, log_softmax
from conformance.reference_losses import clipped_surrogate, clipped_value
from conformance.reference_policies import (
    CONTINUOUS,
    DISCRETE,
    KINDS,
    MASKED,
    MULTI_DISCRETE,
    Kind,
    PolicyReference,
)
from parl_core.contracts.batches import RolloutBatch
from parl_core.errors import DivergedError, HyperparameterError, ModelContractError, SpoiledBatchError
from parl_core.model import Weights
from parl_core.schedules import constant, piecewise

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

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    @pytest.mark.parametrize("clip_value", [True, False], ids=["clipped_value", "plain_value"])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, kind: Kind, clip_value: bool) -> None:
        rng = np.random.default_rng(1)
        agent, weights = self._agent(rng, kind, precision, use_clipped_value_loss=clip_value)
        adam = Adam(_LR, _EPS)
        for lr in (None, None, 0.003):
            batch = _rollout(rng, 16, kind)
            expected, gradients = _reference(weights, batch, kind, clip_value)
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM), lr)
            found = agent.learn(*_columns(batch, precision), lr=lr, action_mask=batch.action_mask)
            np.testing.assert_allclose(found, expected[:3], rtol=0, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    def test_a_rollout_is_learned_in_permuted_minibatches(self, precision: Precision, kind: Kind) -> None:
        rng = np.random.default_rng(2)
        agent, weights = self._agent(rng, kind, precision)
        drawn = _rollout(rng, 20, kind)
        batch = replace(RolloutBatch(*_columns(drawn, precision)), action_mask=drawn.action_mask)
        adam, figures = Adam(_LR, _EPS), []
        order = np.random.default_rng(3)
        for _ in range(2):
            permuted = order.permutation(20)
            for rows in (permuted[:8], permuted[8:16], permuted[16:]):
                given: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
                part = RolloutBatch(**{name: column[rows] for name, column in given.items() if column is not None})
                expected, gradients = _reference(weights, part, kind, True)
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
        batch = RolloutBatch(*_columns(_rollout(rng, 16, DISCRETE), FLOAT32))
        steps = []
        for target_kl in (None, 1e9, 1e-9):
            agent, _ = self._agent(np.random.default_rng(5), DISCRETE, FLOAT32)
            options: dict[str, Any] = {"epochs": 5, "minibatch_size": 8, "rng": np.random.default_rng(6)}
            steps.append(agent.learn_rollout(batch, target_kl=target_kl, **options)["steps"])
        assert steps == [10, 10, 2]

    def test_minibatches_of_one_row_are_refused_where_advantages_are_normalised(self) -> None:
        rng = np.random.default_rng(4)
        batch = RolloutBatch(*_columns(_rollout(rng, 4, DISCRETE), FLOAT32))
        agent, weights = self._agent(rng, DISCRETE, FLOAT32)
        with pytest.raises(HyperparameterError, match=r"make minibatch_size larger, or .* norm_adv=False"):
            agent.learn_rollout(batch, epochs=1, minibatch_size=1, rng=rng)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, FLOAT32.tolerance)
        short = RolloutBatch(*_columns(_rollout(rng, 1, DISCRETE), FLOAT32))
        with pytest.raises(HyperparameterError, match=r"make the rollout larger, or .* norm_adv=False"):
            agent.learn_rollout(short, epochs=1, minibatch_size=4, rng=rng)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, FLOAT32.tolerance)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32, norm_adv=False)
        assert agent.learn_rollout(batch, epochs=1, minibatch_size=1, rng=rng)["steps"] == 4
        assert agent.learn_rollout(short, epochs=1, minibatch_size=4, rng=rng)["steps"] == 1
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        assert agent.learn_rollout(batch, epochs=1, minibatch_size=3, rng=rng)["steps"] == 2

    @pytest.mark.parametrize("name", ["lr", "clip", "entropy_coef", "target_kl"])
    def test_negative_values_of_a_call_are_refused_by_name(self, name: str) -> None:
        rng = np.random.default_rng(4)
        columns = _columns(_rollout(rng, 16, DISCRETE), FLOAT32)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
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
            agent, _ = self._agent(rng, DISCRETE, FLOAT32, **settings)
            agent.learn(*_columns(_rollout(rng, 16, DISCRETE), FLOAT32), **call)
            results.append(agent.get_weights())
        for name, array in results[0].items():
            np.testing.assert_array_equal(array, results[1][name], err_msg=name)

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    def test_sample_agrees_with_the_reference_on_its_own_actions(self, precision: Precision, kind: Kind) -> None:
        rng = np.random.default_rng(8)
        agent, weights = self._agent(rng, kind, precision)
        obs = rng.normal(size=(50, OBS_DIM)).astype(precision.dtype)
        mask = kind.mask(rng, 50)
        value, action, log_prob, entropy = agent.sample(obs, **({} if mask is None else {"action_mask": mask}))
        assert value.shape == log_prob.shape == entropy.shape == (50,)
        assert action.shape == kind.actions(rng, mask, 50).shape
        policy = PolicyReference(kind, weights, obs, action, mask)
        np.testing.assert_allclose(value, _VALUE.forward(weights, obs)[-1][:, 0], atol=precision.tolerance)
        np.testing.assert_allclose(log_prob, policy.log_prob, atol=20 * precision.tolerance)
        np.testing.assert_allclose(entropy, policy.entropy, atol=precision.tolerance)
        np.testing.assert_allclose(agent.value(obs), value, atol=precision.tolerance)

    @pytest.mark.parametrize("kind", [DISCRETE, MULTI_DISCRETE, CONTINUOUS], ids=lambda kind: kind.name)
    def test_predict_gives_the_mode_and_one_observation_its_row(self, kind: Kind) -> None:
        rng = np.random.default_rng(9)
        agent, weights = self._agent(rng, kind, FLOAT32)
        obs = rng.normal(size=(10, OBS_DIM)).astype(np.float32)
        output = _POLICY.forward(weights, obs)[-1]
        if kind.sizes:
            parts = np.split(output, np.cumsum(kind.sizes)[:-1], axis=1)
            output = np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(10, *kind.shape)
        np.testing.assert_allclose(agent.predict(obs), output, atol=1e-5)
        np.testing.assert_allclose(agent.predict(obs[3]), output[3], atol=1e-5)
        assert [np.shape(part) for part in agent.sample(obs[3])] == [(), kind.shape, (), ()]
        assert isinstance(agent.value(obs[3]), float)

    def test_masked_actions_are_never_taken_and_an_impossible_mask_is_refused(self) -> None:
        rng = np.random.default_rng(18)
        agent, _ = self._agent(rng, MASKED, FLOAT32)
        obs, mask = rng.normal(size=(300, OBS_DIM)).astype(np.float32), MASKED.mask(rng, 300)
        assert mask is not None
        for action in (agent.sample(obs, action_mask=mask)[1], agent.predict(obs, action_mask=mask)):
            assert mask[np.arange(300), action].all()
        mask[7] = False
        with pytest.raises(ValueError, match="leaves no action in row 7"):
            agent.sample(obs, action_mask=mask)

    def test_dictionaries_of_observations_reach_the_model_and_their_mask_the_policy(self) -> None:
        rng = np.random.default_rng(19)
        weights = random_weights(rng, MASKED.shapes)
        drawn = _rollout(rng, 16, MASKED)
        assert drawn.action_mask is not None
        columns, half = _columns(drawn, FLOAT32), rng.normal(size=(16, OBS_DIM)).astype(np.float32)
        plain, split = (
            self.backend.Agent(self.algorithm("PPO", model, **_SETTINGS), obs_ndim=1)
            for model in (
                self.model(actor_critic, weights),
                of_dictionaries(self.backend, self.model(actor_critic, weights), "one", "other"),
            )
        )
        obs = {"one": half, "other": columns[0] - half, "action_mask": drawn.action_mask.astype(np.int8)}
        options: dict[str, Any] = {"epochs": 2, "minibatch_size": 8}
        for agent, seen, mask in ((plain, columns[0], drawn.action_mask), (split, obs, None)):
            batch = replace(RolloutBatch(seen, *columns[1:]), action_mask=mask)
            agent.learn_rollout(batch, rng=np.random.default_rng(1), **options)
            agent.learn(seen, *columns[1:], action_mask=mask)
        found = {name.removeprefix("inner."): array for name, array in split.get_weights().items()}
        assert_weights_close(found, plain.get_weights(), 1e-5)
        one = {name: array[0] for name, array in obs.items()}
        assert split.predict(one) == plain.predict(columns[0][0], action_mask=drawn.action_mask[0])

    def test_columns_of_shape_n_1_mean_the_same_to_the_algorithm_as_of_shape_n(self) -> None:
        plain, wide = (self._agent(np.random.default_rng(3), DISCRETE, FLOAT32)[0] for _ in range(2))
        columns = _columns(_rollout(np.random.default_rng(4), 16, DISCRETE), FLOAT32)
        tensors = [plain.alg._tensor(column) for column in columns]
        plain.alg.learn(*tensors)
        wide.alg.learn(*tensors[:2], *(column.reshape((-1, 1)) for column in tensors[2:]))
        assert_weights_close(wide.get_weights(), plain.get_weights(), 0.0)

    def test_schedules_of_the_constructor_count_gradient_steps(self) -> None:
        weights = random_weights(np.random.default_rng(20), DISCRETE.shapes)
        stages: dict[str, list[tuple[float, float]]] = {
            "initial_lr": [(0, 0.02), (1, 0.001)],
            "clip_param": [(0, 0.3), (2, 0.05)],
            "entropy_coef": [(0, 0.0), (1, 0.5)],
        }
        scheduled, told = (
            self.backend.Agent(self.algorithm("PPO", self.model(actor_critic, weights), **settings))
            for settings in ({name: piecewise(steps) for name, steps in stages.items()}, {})
        )
        rng = np.random.default_rng(21)
        for step in range(3):
            columns = _columns(_rollout(rng, 16, DISCRETE), FLOAT32)
            now = {name: piecewise(steps)(step) for name, steps in stages.items()}
            scheduled.learn(*columns)
            told.learn(*columns, now["initial_lr"], clip=now["clip_param"], entropy_coef=now["entropy_coef"])
        assert_weights_close(scheduled.get_weights(), told.get_weights(), 0.0)

    @pytest.mark.parametrize("name", ["clip_param", "entropy_coef", "initial_lr"])
    def test_schedules_below_zero_are_refused(self, name: str) -> None:
        rng = np.random.default_rng(22)
        with pytest.raises(HyperparameterError, match=rf"{name} of piecewise.* must be at least 0, got -0\.2"):
            self._agent(rng, DISCRETE, FLOAT32, **{name: piecewise([(0, 0.1), (1, -0.2)])})
        agent, _ = self._agent(rng, DISCRETE, FLOAT32, **{name: lambda step: -0.2 if step else 0.1})
        columns = _columns(_rollout(rng, 16, DISCRETE), FLOAT32)
        agent.learn(*columns)
        with pytest.raises(HyperparameterError, match=rf"{name} of .* at step 1 must be at least 0, got -0\.2"):
            agent.learn(*columns)

    def test_a_clip_range_that_was_lowered_to_zero_learns_on(self) -> None:
        rng = np.random.default_rng(23)
        rollout = _columns(_rollout(rng, 16, DISCRETE), FLOAT32)
        clipped = []
        for settings, call in (({}, {"clip": 0.0}), ({"clip_param": piecewise([(0, 0.1), (1, 0.0)])}, {})):
            agent, _ = self._agent(rng, DISCRETE, FLOAT32, **settings)
            options = {"epochs": 1, "minibatch_size": 16, "rng": rng, **call}
            clipped.append([agent.learn_rollout(RolloutBatch(*rollout), **options)["clip_fraction"] for _ in range(2)])
        assert clipped[0] == [1.0, 1.0]
        assert clipped[1][1] == 1.0

    def test_samples_come_as_often_as_they_are_probable(self) -> None:
        rng = np.random.default_rng(10)
        agent, weights = self._agent(rng, DISCRETE, FLOAT32)
        obs = rng.normal(size=(1, OBS_DIM)).astype(np.float32)
        action = agent.sample(np.repeat(obs, 20_000, axis=0))[1]
        expected = np.exp(log_softmax(_POLICY.forward(weights, obs)[-1]))[0]
        # Standard deviation of a share is at most 0.5 / sqrt(20000) = 0.0035.
        np.testing.assert_allclose(np.bincount(action, minlength=ACT_DIM) / 20_000, expected, atol=0.02)

    def test_gaussian_samples_have_the_mean_and_deviation_of_the_policy(self) -> None:
        rng = np.random.default_rng(11)
        agent, weights = self._agent(rng, CONTINUOUS, FLOAT32)
        obs = rng.normal(size=(1, OBS_DIM)).astype(np.float32)
        action = agent.sample(np.repeat(obs, 20_000, axis=0))[1]
        std = np.exp(_SPREAD.forward(weights, obs)[-1])[0]
        assert (np.abs(action.mean(axis=0) - _POLICY.forward(weights, obs)[-1][0]) < 0.04 * std).all()
        np.testing.assert_allclose(action.std(axis=0), std, rtol=0.03)

    def test_a_missing_column_is_named(self) -> None:
        agent = self.backend.Agent(self.algorithm("PPO", actor_critic(self.backend)))
        obs, numbers = np.zeros((4, OBS_DIM), np.float32), np.zeros(4, np.float32)
        batch = RolloutBatch(obs, np.zeros(4, int), value=numbers, return_=numbers, advantage=numbers)
        with pytest.raises(ValueError, match="PPO learns from return_, log_prob and advantage; got no log_prob"):
            agent.learn_rollout(batch, epochs=1, minibatch_size=4, rng=np.random.default_rng(1))

    def test_a_nan_in_the_rollout_is_an_error(self) -> None:
        rng = np.random.default_rng(12)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        columns = _columns(_rollout(rng, 16, DISCRETE), FLOAT32)
        columns[5][3] = np.nan
        with pytest.raises(
            DivergedError, match=r"PPO\.learn_rollout: .*policy_loss is nan|advantage must be finite, got nan in row 3"
        ):
            agent.learn_rollout(RolloutBatch(*columns), epochs=1, minibatch_size=8, rng=rng)

    def test_a_rollout_with_columns_of_different_length_is_refused(self) -> None:
        columns = _columns(_rollout(np.random.default_rng(13), 16, DISCRETE), FLOAT32)
        with pytest.raises(ValueError, match="same number of rows"):
            RolloutBatch(columns[0][:15], *columns[1:])

    def test_actions_of_the_wrong_shape_are_refused(self) -> None:
        columns = _columns(_rollout(np.random.default_rng(13), 16, CONTINUOUS), FLOAT32)
        for kind, action in ((CONTINUOUS, columns[1][:, 0]), (DISCRETE, columns[1]), (MULTI_DISCRETE, columns[1])):
            agent, _ = self._agent(np.random.default_rng(5), kind, FLOAT32)
            batch = RolloutBatch(columns[0], action, *columns[2:])
            with pytest.raises(ValueError, match=r"^action must have shape"):
                agent.learn_rollout(batch, epochs=1, minibatch_size=8, rng=np.random.default_rng(1))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({0: np.zeros((15, OBS_DIM), np.float32)}, "same number of rows"),
            ({1: np.full(16, 0.5)}, "batch_action must hold whole numbers"),
            ({2: np.full(16, "a")}, "batch_value must hold numbers"),
        ],
    )
    def test_a_batch_that_does_not_fit_is_refused_before_anything_is_learned(
        self, change: dict[int, Any], message: str
    ) -> None:
        rng = np.random.default_rng(22)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        before = agent.get_weights()
        columns = [change.get(i, column) for i, column in enumerate(_columns(_rollout(rng, 16, DISCRETE), FLOAT32))]
        with pytest.raises(ValueError, match=message):
            agent.learn(*columns)
        assert_weights_close(agent.get_weights(), before, 0.0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({3: np.full(16, np.inf)}, "batch_return must be finite, got inf in row 0.*clip or drop"),
            ({5: np.array([0.0] * 15 + [np.nan])}, "batch_adv must be finite, got nan in row 15"),
        ],
    )
    def test_figures_that_are_not_finite_name_the_row(self, change: dict[int, Any], message: str) -> None:
        rng = np.random.default_rng(22)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        columns = [change.get(i, column) for i, column in enumerate(_columns(_rollout(rng, 16, DISCRETE), FLOAT32))]
        with pytest.raises(SpoiledBatchError, match=message):
            agent.learn(*columns)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"clip_param": 0.0}, "clip_param must be above 0, got 0"),
            ({"entropy_coef": -0.1}, "entropy_coef must be at least 0, got -0.1"),
            ({"initial_lr": math.nan}, "initial_lr must be finite, got nan"),
            ({"initial_lr": constant(0.0)}, "initial_lr at the start of its schedule must be above 0"),
            ({"max_grad_norm": -1}, "max_grad_norm must be above 0"),
            ({"nvec": []}, "nvec must have at least one"),
            ({"continuous_action": True, "nvec": [2]}, "continuous or multi-discrete"),
        ],
    )
    def test_settings_that_mean_nothing_are_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(HyperparameterError, match=message):
            self.algorithm("PPO", actor_critic(self.backend), **settings)

    def test_a_model_without_a_policy_is_refused_by_name(self) -> None:
        with pytest.raises(ModelContractError, match=r"`PPO`'s model needs .*`policy` method; QValues"):
            self.algorithm("PPO", q_values(self.backend))

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
        algorithm = self.algorithm("PPO", model, initial_lr=0.02, clip_param=0.2, continuous_action=continuous)
        agent = self.backend.Agent(algorithm, seed=15)
        play = continuous_identity if continuous else discrete_identity
        for _ in range(30 if continuous else 20):
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
        self, rng: np.random.Generator, kind: Kind, precision: Precision, **settings: Any
    ) -> tuple[Any, Weights]:
        weights = random_weights(rng, kind.shapes)
        model = self.model(kind.model, weights, precision)
        return self.backend.Agent(self.algorithm("PPO", model, **{**_SETTINGS, **kind.settings, **settings})), weights


def _rollout(rng: np.random.Generator, rows: int, kind: Kind) -> RolloutBatch:
    """A rollout whose numbers reach both sides of every clip."""
    mask = kind.mask(rng, rows)
    return RolloutBatch(
        obs=rng.normal(size=(rows, OBS_DIM)),
        action=kind.actions(rng, mask, rows),
        value=rng.normal(size=rows),
        return_=rng.normal(size=rows),
        log_prob=rng.normal(-4.0 if kind is CONTINUOUS else -1.1, 0.4, size=rows),
        advantage=rng.normal(size=rows),
        action_mask=mask,
    )


def _columns(batch: RolloutBatch, precision: Precision) -> list[Any]:
    arrays = [getattr(batch, field.name) for field in fields(batch)[:6]]
    return [array.astype(precision.dtype) if array.dtype.kind == "f" else array for array in arrays]


def _reference(weights: Weights, batch: RolloutBatch, kind: Kind, clip_value: bool) -> tuple[list[float], Weights]:
    """(value loss, policy loss, entropy, approx_kl, clip fraction) and the gradients of the whole loss."""
    rows = len(batch)
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    policy = PolicyReference(kind, weights, batch.obs, batch.action, batch.action_mask)
    surrogate = clipped_surrogate(policy.log_prob, batch.log_prob, advantage, _CLIP)
    gradients = policy.backward(surrogate.gradient, np.full(rows, -_ENT / rows))

    value = _VALUE.forward(weights, batch.obs)
    if clip_value:
        value_loss, by_value = clipped_value(value[-1][:, 0], batch.value, batch.return_, _CLIP)
    else:
        error = value[-1][:, 0] - batch.return_
        value_loss, by_value = float(0.5 * (error**2).mean()), error / rows
    gradients |= _VALUE.backward(weights, value, _VF * by_value[:, None])[0]
    figures = [value_loss, surrogate.loss, policy.entropy.mean(), surrogate.approx_kl, surrogate.clip_fraction]
    return figures, gradients
