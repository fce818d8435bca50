"""Tests of IMPALA and V-trace that every backend must pass."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.identity import discrete_identity
from conformance.models import (
    ACT_DIM,
    GAUSSIAN_SHAPES,
    OBS_DIM,
    actor_critic,
    gaussian_actor_critic,
    multi_discrete_actor_critic,
    of_dictionaries,
    q_values,
    shared_trunk,
)
from conformance.reference import Adam, Array, Dense, clip_by_global_norm, log_softmax
from conformance.reference_actors import gaussian_of, log_density
from conformance.reference_policies import CONTINUOUS, DISCRETE, MASKED, PolicyReference
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.impala import VTraceLoss
from parl_core.errors import HyperparameterError, ModelContractError, SpoiledBatchError
from parl_core.model import Weights
from parl_core.returns import VTrace, n_step_returns, vtrace

__all__ = ["IMPALAConformance", "VTraceConformance"]

_POLICY, _VALUE = Dense(("pi1", "pi2")), Dense(("v1", "v2"))
_GAMMA, _VF, _LR, _ENT, _NORM, _RHO, _PG_RHO = 0.9, 0.5, 0.01, -0.02, 5.0, 1.2, 1.1
_T, _N = 5, 3
_SETTINGS = {
    "sample_batch_steps": _T,
    "gamma": _GAMMA,
    "vf_loss_coeff": _VF,
    "clip_rho_threshold": _RHO,
    "clip_pg_rho_threshold": _PG_RHO,
    "learning_rate": _LR,
    "entropy_coeff": _ENT,
    "max_grad_norm": _NORM,
}


class VTraceConformance(Conformance):
    """Suite of `losses.vtrace`."""

    def test_targets_and_advantages_are_those_of_the_numpy_function(self, precision: Precision) -> None:
        rng = np.random.default_rng(1)
        behaviour, target, r, v, v_next = rng.normal(size=(5, 7, 4))
        terminated, truncated = rng.random((7, 4)) < 0.2, rng.random((7, 4)) < 0.2
        ends = (terminated, truncated)
        expected = vtrace(behaviour, target, r, v, v_next, *ends, gamma=_GAMMA, rho_bar=_RHO, pg_rho_bar=_PG_RHO)
        found = self._run(
            "vtrace",
            target - behaviour,
            r,
            _GAMMA * ~terminated,
            v,
            v_next,
            (~(terminated | truncated)).astype(float),
            precision=precision,
            bounds=(_RHO, _PG_RHO),
        )
        self._assert_close(found, expected, precision)

    def test_with_the_policy_that_acted_targets_are_n_step_returns(self, precision: Precision) -> None:
        rng = np.random.default_rng(2)
        log_prob, rewards, values = rng.normal(size=(3, 6, 2))
        bootstrap = rng.normal(size=2)
        never = np.zeros((6, 2), np.bool_)
        following = np.append(values[1:], bootstrap[None], axis=0)
        returns = n_step_returns(rewards, following, never, never, gamma=_GAMMA, n=6)
        discounts = np.full((6, 2), _GAMMA)
        found = self._run(
            "from_importance_weights", log_prob, log_prob, discounts, rewards, values, bootstrap, precision=precision
        )
        later = np.append(returns[1:], bootstrap[None], axis=0)
        self._assert_close(found, VTrace(returns, rewards + _GAMMA * later - values), precision)

    def test_two_steps_by_hand(self, precision: Precision) -> None:
        # Ratios 2 and 1/2, gamma 1/2, rewards 1 and 2, values 4 and 6, 8 after the last step.
        # delta_0 = 1 (1 + 3 - 4) = 0; delta_1 = 1/2 (2 + 4 - 6) = 0 with reward 2; with reward 4 it is 1.
        # vs_1 = 6 + 1 = 7; vs_0 = 4 + 0 + 1/2 * 1 * (7 - 6) = 4.5
        # A_1 = 1/2 (4 + 4 - 6) = 1; A_0 = 1 (1 + 3.5 - 4) = 0.5
        columns = [[0.0, 0.0], np.log([2.0, 0.5]), [0.5, 0.5], [1.0, 4.0], [4.0, 6.0]]
        found = self._run(
            "from_importance_weights",
            *(np.array(column).reshape(2, 1) for column in columns),
            np.array([8.0]),
            precision=precision,
        )
        self._assert_close(found, VTrace(np.array([[4.5], [7.0]]), np.array([[0.5], [1.0]])), precision)

    def _run(
        self, name: str, *columns: NDArray[Any], precision: Precision, bounds: tuple[float, ...] = ()
    ) -> tuple[Any, Any]:
        algorithm = self.algorithm("IMPALA", self.model(actor_critic, _weights(1), precision), sample_batch_steps=2)
        function = getattr(import_module(f"parl_{self.backend.name}.losses.vtrace"), name)
        result = function(*(algorithm._tensor(column.astype(precision.dtype)) for column in columns), *bounds)
        return algorithm._array(result.vs), algorithm._array(result.pg_advantages)

    def _assert_close(self, found: tuple[Any, Any], expected: VTrace, precision: Precision) -> None:
        for array, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=precision.tolerance, atol=precision.tolerance)


class IMPALAConformance(Conformance):
    """Suite of IMPALA."""

    @pytest.mark.parametrize("ends", ["last_step_unlearned", "last_obs", "truncated"])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, ends: str) -> None:
        rng = np.random.default_rng(3)
        weights = _weights(4)
        agent = self.backend.Agent(self.algorithm("IMPALA", self.model(actor_critic, weights, precision), **_SETTINGS))
        adam = Adam(_LR)
        for call in ({}, {}, {"learning_rate": 0.003, "entropy_coeff": 0.1}):
            batch = _batch(rng, precision, ends)
            losses, kl, gradients = _reference(weights, batch, call.get("entropy_coeff", _ENT))
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM), call.get("learning_rate"))
            optional = {name: batch[name] for name in ("last_obs", "final_rows", "final_obs") if name in batch}
            found, found_kl = agent.learn(*(batch[name] for name in _COLUMNS), **call, **optional)
            assert isinstance(found, VTraceLoss)
            np.testing.assert_allclose(found, losses, rtol=precision.tolerance, atol=precision.tolerance)
            assert abs(found_kl - kl) < precision.tolerance
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    @pytest.mark.parametrize("ends", ["last_step_unlearned", "last_obs", "truncated"])
    def test_updates_of_a_gaussian_agree_with_the_reference(self, precision: Precision, ends: str) -> None:
        rng = np.random.default_rng(3)
        weights = random_weights(np.random.default_rng(4), GAUSSIAN_SHAPES)
        model = self.model(gaussian_actor_critic, weights, precision)
        agent = self.backend.Agent(self.algorithm("IMPALA", model, continuous_action=True, **_SETTINGS))
        adam = Adam(_LR)
        for _ in range(3):
            batch = _batch(rng, precision, ends)
            batch["actions"] = rng.normal(size=(_T * _N, ACT_DIM)).astype(precision.dtype)
            batch["behaviour_logits"] = rng.normal(scale=0.5, size=(_T * _N, 2 * ACT_DIM)).astype(precision.dtype)
            losses, kl, gradients = _reference(weights, batch, _ENT, continuous=True)
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM))
            optional = {name: batch[name] for name in ("last_obs", "final_rows", "final_obs") if name in batch}
            found, found_kl = agent.learn(*(batch[name] for name in _COLUMNS), **optional)
            np.testing.assert_allclose(found, losses, rtol=precision.tolerance, atol=precision.tolerance)
            np.testing.assert_allclose(found_kl, kl, rtol=precision.tolerance, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_samples_of_a_gaussian_come_with_mean_and_log_std_side_by_side(self, precision: Precision) -> None:
        weights = random_weights(np.random.default_rng(6), GAUSSIAN_SHAPES)
        model = self.model(gaussian_actor_critic, weights, precision)
        agent = self.backend.Agent(self.algorithm("IMPALA", model, continuous_action=True, **_SETTINGS))
        obs = np.random.default_rng(5).normal(size=(20, OBS_DIM)).astype(precision.dtype)
        action, numbers = agent.sample(obs)
        mean, log_std = gaussian_of(weights, obs)
        assert action.shape == (20, ACT_DIM)
        for found in (numbers, agent.logits(obs)):
            np.testing.assert_allclose(found, np.concatenate([mean, log_std], axis=1), atol=precision.tolerance)
        np.testing.assert_allclose(agent.predict(obs), mean, atol=precision.tolerance)
        drawn = np.stack([agent.sample(obs[:1])[0] for _ in range(400)])
        np.testing.assert_allclose(drawn.mean(axis=(0, 1)), mean[0], atol=0.25 * np.exp(log_std[0]).max())

    def test_numbers_that_do_not_fit_the_actions_of_a_gaussian_are_refused(self) -> None:
        model = gaussian_actor_critic(self.backend)
        agent = self.backend.Agent(self.algorithm("IMPALA", model, continuous_action=True, **_SETTINGS))
        batch = _batch(np.random.default_rng(3), FLOAT32, "last_obs")
        batch["actions"] = np.zeros((_T * _N, ACT_DIM), np.float32)
        with pytest.raises(ValueError, match=rf"concatenated mean and log std, {2 * ACT_DIM} columns .* got {ACT_DIM}"):
            agent.learn(*(batch[name] for name in _COLUMNS), last_obs=batch["last_obs"])

    def test_actions_in_several_parts_are_refused(self) -> None:
        model = multi_discrete_actor_critic(self.backend)
        model.action_kind = ActionKind(nvec=(2, 2))
        with pytest.raises(HyperparameterError, match="IMPALA chooses one action, or numbers"):
            self.algorithm("IMPALA", model, sample_batch_steps=5)

    def test_a_truncated_step_bootstraps_from_its_final_observation_and_a_terminated_one_does_not(self) -> None:
        # One fragment of two steps, rewards 1; the first one ends an episode. On-policy, all weights of the trunk 0, so
        # that every value is the bias, 10: a termination is an error of 1 - 10 = -9, a truncation one of
        # 1 + 0.9 * 10 - 10 = 0; the second step goes on to 10 and has 0, too. Value loss = 0.5 * error**2.
        weights = {name: np.zeros_like(array) for name, array in _weights(1).items()}
        weights["v2.bias"] = np.array([10.0])
        obs, one = np.zeros((2, OBS_DIM), np.float32), np.zeros((1, OBS_DIM), np.float32)
        batch = (obs, np.array([0, 0]), np.zeros((2, ACT_DIM), np.float32), np.ones(2), np.array([True, False]))
        found = []
        for truncation in ({}, {"final_rows": [0], "final_obs": one}):
            agent = self.backend.Agent(
                self.algorithm("IMPALA", self.model(actor_critic, weights), sample_batch_steps=2, gamma=0.9)
            )
            losses, _ = agent.learn(*batch, last_obs=one, **truncation)
            found.append(losses.vf_loss)
        np.testing.assert_allclose(found, [0.5 * 81.0, 0.0], atol=1e-4)

    def test_samples_come_with_the_logits_that_learning_takes(self, precision: Precision) -> None:
        rng = np.random.default_rng(5)
        weights = _weights(6)
        agent = self.backend.Agent(self.algorithm("IMPALA", self.model(actor_critic, weights, precision), **_SETTINGS))
        obs = rng.normal(size=(20, OBS_DIM)).astype(precision.dtype)
        action, logits = agent.sample(obs)
        expected = _POLICY.forward(weights, obs)[-1]
        np.testing.assert_allclose(logits, expected, atol=precision.tolerance)
        assert action.shape == (20,)
        np.testing.assert_allclose(agent.logits(obs), expected, atol=precision.tolerance)
        np.testing.assert_array_equal(agent.predict(obs), expected.argmax(axis=1))
        np.testing.assert_allclose(agent.value(obs), _VALUE.forward(weights, obs)[-1][:, 0], atol=precision.tolerance)

    def test_a_mask_among_the_observations_keeps_actions_from_being_taken_and_learned(self) -> None:
        rng = np.random.default_rng(5)
        inner = self.model(actor_critic, _weights(6))
        agent = self.backend.Agent(
            self.algorithm("IMPALA", of_dictionaries(self.backend, inner, "state"), **_SETTINGS), obs_ndim=1
        )
        rows, mask = np.arange(300), MASKED.mask(rng, 300)
        assert mask is not None
        obs = {"state": rng.normal(size=(300, OBS_DIM)).astype(np.float32), "action_mask": mask.astype(np.int8)}
        action, logits = agent.sample(obs)
        assert mask[rows, action].all()
        assert mask[rows, agent.predict(obs)].all()
        np.testing.assert_array_equal(agent.logits(obs), logits)
        losses, kl = agent.learn(obs, action, logits, np.ones(300), np.zeros(300, np.bool_))
        assert kl == pytest.approx(0.0, abs=1e-6)
        assert np.isfinite(losses).all()
        expected = PolicyReference(MASKED, _weights(6), np.asarray(obs["state"]), action, mask).entropy
        assert losses.entropy == pytest.approx(expected.reshape(-1, _T)[:, :-1].sum(), rel=1e-4)
        wrong = (~mask).argmax(axis=1)
        with pytest.raises(ValueError, match="is one that action_mask does not allow"):
            agent.learn(obs, wrong, logits, np.ones(300), np.zeros(300, np.bool_))

    def test_one_pass_through_a_shared_trunk_trains_both_heads(self) -> None:
        agent = self.backend.Agent(self.algorithm("IMPALA", shared_trunk(self.backend), **_SETTINGS))
        batch = _batch(np.random.default_rng(7), FLOAT32, "last_step_unlearned")
        agent.learn(*(batch[name] for name in _COLUMNS))
        before = agent.get_weights()
        agent.learn(*(batch[name] for name in _COLUMNS))
        assert not any(np.array_equal(array, before[name]) for name, array in agent.get_weights().items())

    @pytest.mark.parametrize(
        ("arguments", "settings"),
        [
            ((4, 0.9), {}),
            (({"sample_batch_steps": 4, "gamma": 0.9},), {}),
            ((), {"sample_batch_steps": 4, "gamma": 0.9}),
        ],
        ids=["positions", "hyperparas", "keywords"],
    )
    def test_every_documented_form_of_the_constructor(self, arguments: Any, settings: Any) -> None:
        algorithm = self.backend.algorithms.IMPALA(actor_critic(self.backend), *arguments, device="cpu", **settings)
        assert (algorithm.sample_batch_steps, algorithm.gamma, algorithm.clip_rho_threshold) == (4, 0.9, 1.0)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "needs sample_batch_steps"),
            ({"sample_batch_steps": 0}, "sample_batch_steps must be at least 1, got 0"),
            ({"sample_batch_steps": 2, "gamma": 1.5}, "gamma must lie in"),
            ({"sample_batch_steps": 2, "clip_rho_threshold": -math.inf}, "clip_rho_threshold must be finite"),
            ({"sample_batch_steps": 2, "clip_pg_rho_threshold": 0}, "clip_pg_rho_threshold must be above 0"),
            ({"hyperparas": {"sample_batch_steps": 2, "lr": 0.1}}, "no hyper-parameter lr"),
        ],
    )
    def test_settings_that_mean_nothing_are_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(HyperparameterError, match=message):
            self.algorithm("IMPALA", actor_critic(self.backend), **settings)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"obs": np.zeros((14, OBS_DIM))}, "same number of rows"),
            ({"actions": np.full(15, ACT_DIM)}, r"actions must be in 0\.\.2, got 3\.\.3"),
            ({"behaviour_logits": np.zeros(15)}, r"behaviour_logits must be floats of shape \[n, act_dim\]"),
            ({"last_obs": np.zeros((2, OBS_DIM))}, "last_obs must have one row per fragment, 3, got 2"),
            ({"final_rows": [3]}, "final_rows and final_obs belong together"),
            ({"final_rows": [15], "final_obs": np.zeros((1, OBS_DIM))}, r"final_rows must be in 0\.\.14"),
            ({"final_rows": [1, 2], "final_obs": np.zeros((1, OBS_DIM))}, "same number of rows"),
        ],
    )
    def test_a_batch_that_does_not_fit_is_refused_before_anything_is_learned(
        self, change: dict[str, Any], message: str
    ) -> None:
        agent = self.backend.Agent(self.algorithm("IMPALA", self.model(actor_critic, _weights(8)), **_SETTINGS))
        before = agent.get_weights()
        batch = _batch(np.random.default_rng(9), FLOAT32, "last_step_unlearned") | change
        optional = {name: batch[name] for name in ("last_obs", "final_rows", "final_obs") if name in batch}
        with pytest.raises(ValueError, match=message):
            agent.learn(*(batch[name] for name in _COLUMNS), **optional)
        assert_weights_close(agent.get_weights(), before, 0.0)

    def test_a_loss_that_is_not_finite_names_the_row_of_the_reward(self) -> None:
        agent = self.backend.Agent(self.algorithm("IMPALA", self.model(actor_critic, _weights(8)), **_SETTINGS))
        batch = _batch(np.random.default_rng(9), FLOAT32, "last_step_unlearned")
        batch["rewards"][2] = -np.inf
        with pytest.raises(SpoiledBatchError, match="rewards must be finite, got -inf in row 2"):
            agent.learn(*(batch[name] for name in _COLUMNS))

    def test_a_model_without_a_value_is_refused_by_name(self) -> None:
        with pytest.raises(ModelContractError, match="`policy_and_value` or `policy` method; QValues does not"):
            self.algorithm("IMPALA", q_values(self.backend), sample_batch_steps=2)

    def test_fragments_that_do_not_divide_the_batch_are_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("IMPALA", actor_critic(self.backend), sample_batch_steps=4))
        batch = _batch(np.random.default_rng(9), FLOAT32, "last_step_unlearned")
        with pytest.raises(ValueError, match="fragments of sample_batch_steps=4 steps each, got 15 rows"):
            agent.learn(*(batch[name] for name in _COLUMNS))

    def test_it_learns_the_identity_environment_from_an_older_policy(self) -> None:
        rng = np.random.default_rng(10)
        agent, actor = (
            self.backend.Agent(self.algorithm("IMPALA", actor_critic(self.backend), sample_batch_steps=1))
            for _ in range(2)
        )
        agent.predict(np.zeros((1, OBS_DIM), np.float32))
        for i in range(100):
            if i % 4 == 0:
                actor.set_weights(agent.get_weights())
            obs, right = discrete_identity(rng, 64)
            action, logits = actor.sample(obs)
            reward = (action == right).astype(np.float32)
            agent.learn(obs, action, logits, reward, np.ones(64), 0.02, -0.01, last_obs=obs)
        obs, right = discrete_identity(rng, 200)
        assert (agent.predict(obs) == right).mean() > 0.95


_COLUMNS = ("obs", "actions", "behaviour_logits", "rewards", "dones")


def _weights(seed: int) -> Weights:
    return random_weights(np.random.default_rng(seed), DISCRETE.shapes)


def _batch(rng: np.random.Generator, precision: Precision, ends: str) -> dict[str, Any]:
    batch = {
        "obs": rng.normal(size=(_T * _N, OBS_DIM)),
        "actions": rng.integers(ACT_DIM, size=_T * _N),
        "behaviour_logits": rng.normal(size=(_T * _N, ACT_DIM)),
        "rewards": rng.normal(size=_T * _N),
        "dones": (rng.random(_T * _N) < 0.3).astype(float),
    }
    if ends != "last_step_unlearned":
        batch["last_obs"] = rng.normal(size=(_N, OBS_DIM))
    if ends == "truncated":
        batch["final_rows"] = np.array([2, _T, _T * _N - 1])
        batch["dones"][batch["final_rows"]] = 1.0
        batch["final_obs"] = rng.normal(size=(3, OBS_DIM))
    return {name: array.astype(precision.dtype) if array.dtype.kind == "f" else array for name, array in batch.items()}


def _reference(
    weights: Weights, batch: dict[str, Any], entropy_coeff: float, *, continuous: bool = False
) -> tuple[list[float], float, dict[str, Array]]:
    """(total, policy loss, value loss, entropy), sums over the learned rows; KL; and the gradients of the total."""
    obs, action, logits, reward, done = (batch[name] for name in _COLUMNS)
    policy = PolicyReference(CONTINUOUS if continuous else DISCRETE, weights, obs, action)
    outputs = _VALUE.forward(weights, obs)
    log_mu, kl = (_of_gaussians if continuous else _of_logits)(weights, obs, action, logits.astype(np.float64))

    def value_of(observations: NDArray[Any]) -> Array:
        return _VALUE.forward(weights, observations)[-1][:, 0]

    value = outputs[-1][:, 0]
    truncated = np.zeros(len(action), np.bool_)
    last = value_of(batch["last_obs"]) if "last_obs" in batch else value.reshape(_N, _T)[:, -1]
    following = np.append(value.reshape(_N, _T)[:, 1:], last[:, None], axis=1).reshape(-1)
    if "final_rows" in batch:
        truncated[batch["final_rows"]] = True
        following[batch["final_rows"]] = value_of(batch["final_obs"])
    learned = slice(None) if "last_obs" in batch else slice(-1)

    def by_time(column: NDArray[Any]) -> NDArray[Any]:
        return column.reshape(_N, _T).T[learned]

    columns = (log_mu, policy.log_prob, reward.astype(np.float64), value, following, (done > 0) & ~truncated, truncated)
    targets = vtrace(*map(by_time, columns), gamma=_GAMMA, rho_bar=_RHO, pg_rho_bar=_PG_RHO)
    weight, error = np.zeros((_T, _N)), np.zeros((_T, _N))
    weight[learned], error[learned] = targets.pg_advantages, by_time(value) - targets.vs
    counted = np.zeros((_T, _N))
    counted[learned] = 1.0

    def by_row(column: Array) -> Array:
        return column.T.reshape(-1)

    gradients = policy.backward(-by_row(weight), entropy_coeff * by_row(counted))
    gradients |= _VALUE.backward(weights, outputs, _VF * by_row(error)[:, None])[0]
    pi_loss = float(-(policy.log_prob * by_row(weight)).sum())
    vf_loss, entropy = float(0.5 * (error**2).sum()), float((policy.entropy * by_row(counted)).sum())
    return [pi_loss + _VF * vf_loss + entropy_coeff * entropy, pi_loss, vf_loss, entropy], kl, gradients


def _of_logits(weights: Weights, obs: Any, action: Any, logits: Any) -> tuple[Array, float]:
    """Log-probabilities of the actions under the policy that acted, and its mean KL divergence."""
    behaviour = log_softmax(logits)
    log_pi = log_softmax(_POLICY.forward(weights, obs)[-1])
    kl = float((np.exp(behaviour) * (behaviour - log_pi)).sum(axis=1).mean())
    return behaviour[np.arange(len(action)), action], kl


def _of_gaussians(weights: Weights, obs: Any, action: Any, numbers: Any) -> tuple[Array, float]:
    """Return the same of Gaussians, whose divergence is log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2."""
    mean, log_std = np.split(numbers, 2, axis=1)
    own_mean, own_log_std = gaussian_of(weights, obs)
    shift = (np.exp(2.0 * log_std) + (mean - own_mean) ** 2) / (2.0 * np.exp(2.0 * own_log_std))
    kl = float((own_log_std - log_std + shift - 0.5).sum(axis=1).mean())
    return log_density(action, mean, log_std), kl
