"""Tests of A2C and A3C that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.models import ACT_DIM, OBS_DIM, actor_critic, of_dictionaries, q_values, shared_trunk
from conformance.reference import Adam, Array, Dense, clip_by_global_norm, log_softmax
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

__all__ = ["A2CConformance"]

_VALUE = Dense(("v1", "v2"))
_VF, _LR, _ENT, _NORM = 0.5, 0.01, -0.02, 5.0
_ROWS = 16


class A2CConformance(Conformance):
    """Suite of A2C and A3C."""

    @pytest.mark.parametrize("name", ["A2C", "A3C"])
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    def test_three_updates_agree_with_the_reference(self, precision: Precision, kind: Kind, name: str) -> None:
        rng = np.random.default_rng(1)
        agent, weights = self._agent(rng, kind, precision, name)
        adam = Adam(_LR)
        for call in ({}, {}, {"learning_rate": 0.003, "entropy_coeff": 0.1}):
            batch = _batch(rng, kind)
            expected, gradients = _reference(weights, batch, kind, call.get("entropy_coeff", _ENT))
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM), call.get("learning_rate"))
            *columns, mask = _cast(batch, precision)
            found = agent.learn(*columns, **call, action_mask=mask)
            np.testing.assert_allclose(found, expected, rtol=precision.tolerance, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_draws_from_a_stream_of_their_own_repeat_and_leave_the_global_one_alone(self) -> None:
        rng = np.random.default_rng(3)
        agent, _ = self._agent(rng, CONTINUOUS, FLOAT32)
        obs = np.asarray(_cast(_batch(rng, CONTINUOUS), FLOAT32)[0])
        self.adapter.seed(1)
        undisturbed = [agent.explore(obs)[1] for _ in range(2)]
        self.adapter.seed(1)
        first = agent.explore(obs)[1]
        streams = []
        for _ in range(2):
            with agent.drawing_from(5):
                streams.append(agent.explore(obs)[1])
        with agent.drawing_from(2**70):  # more than a framework's own generator takes
            agent.explore(obs)
        np.testing.assert_array_equal(streams[0], streams[1])
        np.testing.assert_array_equal([first, agent.explore(obs)[1]], undisturbed)
        assert not np.array_equal(streams[0], first)

    @pytest.mark.parametrize("kind", [MASKED, CONTINUOUS], ids=lambda kind: kind.name)
    def test_a_rollout_is_one_step_and_its_entropy_coefficient_a_bonus(self, kind: Kind) -> None:
        rng = np.random.default_rng(2)
        agent, weights = self._agent(rng, kind, FLOAT32)
        obs, action, advantage, target, mask = _cast(_batch(rng, kind), FLOAT32)
        expected, gradients = _reference(weights, (obs, action, advantage, target, mask), kind, -0.3)
        weights = Adam(_LR).update(weights, clip_by_global_norm(gradients, _NORM))
        rollout = RolloutBatch(obs, action, target, target, target, advantage, mask)
        found = agent.learn_rollout(rollout, rng=rng, entropy_coef=0.3)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, FLOAT32.tolerance)
        means = np.array(expected) / _ROWS
        assert found == pytest.approx(
            {"policy_loss": means[1], "value_loss": means[2], "entropy": means[3], "steps": 1.0}, abs=1e-5
        )

    @pytest.mark.parametrize(
        "setting", [{"epochs": 4}, {"minibatch_size": 8}, {"clip": 0.2}, {"target_kl": 0.01}], ids=str
    )
    def test_settings_of_a_rollout_that_only_ppo_has_are_refused(self, setting: dict[str, Any]) -> None:
        rng = np.random.default_rng(3)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        obs, action, advantage, target, _ = _cast(_batch(rng, DISCRETE), FLOAT32)
        with pytest.raises(HyperparameterError, match=f"A2C takes one step .* no use for {next(iter(setting))}="):
            agent.learn_rollout(RolloutBatch(obs, action, target, target, target, advantage), rng=rng, **setting)

    def test_one_pass_through_a_shared_trunk_trains_both_heads(self) -> None:
        agent = self.backend.Agent(self.algorithm("A2C", shared_trunk(self.backend)))
        rng = np.random.default_rng(4)
        columns = _cast(_batch(rng, DISCRETE), FLOAT32)[:4]
        agent.learn(*columns)
        before = agent.get_weights()
        agent.learn(*columns)
        assert [name for name, array in agent.get_weights().items() if np.array_equal(array, before[name])] == []
        value, action, _ = agent.explore(columns[0])
        assert value.shape == action.shape == (_ROWS,)
        np.testing.assert_allclose(agent.value(columns[0]), value, rtol=1e-6)

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    def test_explored_actions_have_the_log_probability_of_the_reference(self, kind: Kind) -> None:
        rng = np.random.default_rng(5)
        agent, weights = self._agent(rng, kind, FLOAT32)
        obs = rng.normal(size=(50, OBS_DIM)).astype(np.float32)
        mask = kind.mask(rng, 50)
        value, action, log_prob = agent.explore(obs, **({} if mask is None else {"action_mask": mask}))
        policy = PolicyReference(kind, weights, obs, action, mask)
        np.testing.assert_allclose(log_prob, policy.log_prob, atol=2e-4)
        np.testing.assert_allclose(value, _VALUE.forward(weights, obs)[-1][:, 0], atol=1e-5)

    def test_masked_actions_are_never_taken_wherever_the_mask_comes_from(self) -> None:
        rng = np.random.default_rng(6)
        obs = rng.normal(size=(300, OBS_DIM)).astype(np.float32)
        mask = MASKED.mask(rng, 300)
        assert mask is not None
        rows = np.arange(300)
        plain, _ = self._agent(rng, MASKED, FLOAT32)
        inner = self.model(actor_critic, random_weights(rng, MASKED.shapes))
        of_dictionary = self.backend.Agent(
            self.algorithm("A2C", of_dictionaries(self.backend, inner, "state")), obs_ndim=1
        )
        for agent, given, told in (
            (plain, obs, {"action_mask": mask}),
            (of_dictionary, {"state": obs, "action_mask": mask.astype(np.int8)}, {}),
        ):
            assert mask[rows, agent.explore(given, **told)[1]].all()
            assert mask[rows, agent.sample(given, **told)[0]].all()
            assert mask[rows, agent.predict(given, **told)].all()
        one = mask[0]
        assert one[plain.predict(obs[0], action_mask=one)]
        assert one[of_dictionary.predict({"state": obs[0], "action_mask": one})]

    def test_a_mask_that_leaves_nothing_of_one_part_is_refused_with_its_row(self) -> None:
        agent, _ = self._agent(np.random.default_rng(7), MULTI_DISCRETE, FLOAT32)
        mask = np.ones((4, sum(MULTI_DISCRETE.sizes)), np.bool_)
        mask[3, : MULTI_DISCRETE.sizes[0]] = False
        for act in (agent.predict, agent.explore):
            with pytest.raises(ValueError, match="leaves no action in row 3"):
                act(np.zeros((4, OBS_DIM), np.float32), action_mask=mask)

    def test_a_mask_that_leaves_no_action_is_refused_with_its_row(self) -> None:
        agent, _ = self._agent(np.random.default_rng(7), MASKED, FLOAT32)
        mask = np.ones((4, ACT_DIM), np.bool_)
        mask[2] = False
        obs = np.zeros((4, OBS_DIM), np.float32)
        with pytest.raises(ValueError, match="leaves no action in row 2"):
            agent.predict(obs, action_mask=mask)
        with pytest.raises(ValueError, match="leaves no action in row 2"):
            agent.learn(obs, np.zeros(4, np.int64), np.ones(4), np.ones(4), action_mask=mask)
        with pytest.raises(ValueError, match="Gaussian's cannot be masked"):
            self._agent(np.random.default_rng(7), CONTINUOUS, FLOAT32)[0].learn(
                obs, np.zeros((4, ACT_DIM)), np.ones(4), np.ones(4), action_mask=mask | True
            )

    def test_an_action_that_its_mask_does_not_allow_is_not_learned_from(self) -> None:
        agent, _ = self._agent(np.random.default_rng(7), MASKED, FLOAT32)
        before, mask = agent.get_weights(), np.ones((4, ACT_DIM), np.bool_)
        mask[2, 1] = False
        batch = np.zeros((4, OBS_DIM), np.float32), np.ones(4, np.int64), np.ones(4), np.ones(4)
        with pytest.raises(ValueError, match="action 1 in row 2 is one that action_mask does not allow"):
            agent.learn(*batch, action_mask=mask)
        assert_weights_close(agent.get_weights(), before, 0.0)

    def test_a_mask_among_observations_that_leaves_no_action_is_not_learned_from(self) -> None:
        inner = self.model(actor_critic, random_weights(np.random.default_rng(7), MASKED.shapes))
        agent = self.backend.Agent(self.algorithm("A2C", of_dictionaries(self.backend, inner, "state")))
        mask = np.ones((4, ACT_DIM), np.int8)
        mask[2] = 0
        obs = {"state": np.zeros((4, OBS_DIM), np.float32), "action_mask": mask}
        with pytest.raises(ValueError, match="leaves no action in row 2"):
            agent.learn(obs, np.zeros(4, np.int64), np.ones(4), np.ones(4))

    def test_prob_and_value_are_those_of_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(8)
        agent, weights = self._agent(rng, DISCRETE, precision)
        obs = rng.normal(size=(10, OBS_DIM)).astype(precision.dtype)
        logits = Dense(("pi1", "pi2")).forward(weights, obs)[-1]
        prob, value = agent.run(agent.alg.prob_and_value, obs)
        np.testing.assert_allclose(prob, np.exp(log_softmax(logits)), atol=precision.tolerance)
        np.testing.assert_allclose(value, _VALUE.forward(weights, obs)[-1][:, 0], atol=precision.tolerance)
        np.testing.assert_array_equal(agent.predict(obs), logits.argmax(axis=1))

    def test_schedules_of_the_constructor_count_updates_and_go_on_after_a_restore(self, tmp_path: Any) -> None:
        rng = np.random.default_rng(9)
        batches = [_cast(_batch(rng, DISCRETE), FLOAT32)[:4] for _ in range(3)]
        weights = random_weights(rng, DISCRETE.shapes)
        rates, coeffs = [(0, 0.1), (1, 0.02), (2, 0.001)], [(0, 0.0), (2, -0.5)]
        settings = {"learning_rate": piecewise(rates), "entropy_coeff": piecewise(coeffs)}
        scheduled, restored, told = (
            self.backend.Agent(self.algorithm("A2C", self.model(actor_critic, weights), **given))
            for given in (settings, settings, {})
        )
        for i, batch in enumerate(batches):
            if i == 2:
                scheduled.save(tmp_path / "agent")
                restored.restore(tmp_path / "agent")
                restored.learn(*batch)
            scheduled.learn(*batch)
            told.learn(*batch, learning_rate=piecewise(rates)(i), entropy_coeff=piecewise(coeffs)(i))
        for agent in (scheduled, restored):
            assert_weights_close(agent.get_weights(), told.get_weights(), 0.0)

    @pytest.mark.parametrize(
        ("arguments", "settings"),
        [
            ((), {"hyperparas": {"vf_loss_coeff": 0.3}}),
            (({"vf_loss_coeff": 0.3, "learning_rate": 0.001, "env_num": 5, "gamma": 0.99},), {}),
            ((), {"config": {"vf_loss_coeff": 0.3}}),
            ((0.3,), {}),
            ((), {"vf_loss_coeff": 0.3}),
        ],
        ids=["hyperparas", "dictionary", "config", "position", "keyword"],
    )
    def test_every_documented_form_of_the_constructor(self, arguments: Any, settings: Any) -> None:
        for name in ("A2C", "A3C"):
            made = getattr(self.backend.algorithms, name)
            algorithm = made(actor_critic(self.backend), *arguments, device="cpu", **settings)
            assert (algorithm.vf_loss_coeff, algorithm.lr) == (0.3, 0.001)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"hyperparas": {"vf_loss_coeff": 0.5}, "learning_rate": 0.1}, "1.x's form .* learning_rate of PARL 2.x"),
            ({"hyperparas": {"gamma": 0.5}}, "no hyper-parameter gamma"),
            ({"hyperparas": {"vf_loss_coeff": 0.5}, "config": {}}, "config of PARL 2.x"),
            ({"config": {"vf_loss_coeff": 0.5}, "vf_loss_coeff": 0.5}, "vf_loss_coeff both"),
            ({"vf_loss_coeff": -1.0}, "vf_loss_coeff must be at least 0, got -1"),
            ({"learning_rate": 0.0}, "learning_rate must be above 0"),
            ({"learning_rate": constant(-1.0)}, "learning_rate at the start of its schedule must be above 0"),
            ({"entropy_coeff": "a"}, "entropy_coeff must be a number, got 'a'"),
            ({"max_grad_norm": 0}, "max_grad_norm must be above 0"),
            ({"nvec": [2, 0]}, r"nvec\[1\] must be at least 1, got 0"),
            ({"nvec": [2], "continuous_action": True}, "continuous or multi-discrete"),
        ],
    )
    def test_settings_that_mean_nothing_are_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(HyperparameterError, match=message):
            self.algorithm("A2C", actor_critic(self.backend), **settings)

    def test_a_model_without_a_policy_is_refused_by_name(self) -> None:
        with pytest.raises(ModelContractError, match="`policy_and_value` or `policy` method; QValues does not"):
            self.algorithm("A2C", q_values(self.backend))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({0: np.zeros((_ROWS - 1, OBS_DIM), np.float32)}, "same number of rows"),
            ({0: np.zeros((0, OBS_DIM)), 1: np.zeros(0, int), 2: np.zeros(0), 3: np.zeros(0)}, "at least one"),
            ({1: np.full(_ROWS, 0.5)}, "actions must hold whole numbers"),
            ({1: np.full(_ROWS, -1)}, r"actions must be in 0\.\.2, got -1"),
            ({2: np.zeros((_ROWS, 2))}, r"advantages must have shape \[n\] or \[n, 1\], got \(16, 2\)"),
        ],
    )
    def test_a_batch_that_does_not_fit_is_refused_before_anything_is_learned(
        self, change: dict[int, Any], message: str
    ) -> None:
        rng = np.random.default_rng(10)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        before = agent.get_weights()
        columns = [change.get(i, column) for i, column in enumerate(_cast(_batch(rng, DISCRETE), FLOAT32)[:4])]
        with pytest.raises(ValueError, match=message):
            agent.learn(*columns)
        assert_weights_close(agent.get_weights(), before, 0.0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({2: np.full(_ROWS, np.inf)}, "advantages must be finite, got inf in row 0.*clip or drop"),
            ({3: np.full(_ROWS, np.nan)}, "target_values must be finite, got nan in row 0"),
        ],
    )
    def test_figures_that_are_not_finite_name_the_row(self, change: dict[int, Any], message: str) -> None:
        rng = np.random.default_rng(10)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        columns = [change.get(i, column) for i, column in enumerate(_cast(_batch(rng, DISCRETE), FLOAT32)[:4])]
        with pytest.raises(SpoiledBatchError, match=message):
            agent.learn(*columns)

    def test_a_nan_in_the_observations_is_an_error_that_names_the_loss(self) -> None:
        rng = np.random.default_rng(11)
        agent, _ = self._agent(rng, DISCRETE, FLOAT32)
        columns = _cast(_batch(rng, DISCRETE), FLOAT32)[:4]
        columns[0][3, 1] = np.nan
        with pytest.raises(DivergedError, match=r"A2C\.learn: .*nan|obs\[1\] must be finite, got nan in row 3"):
            agent.learn(*columns)

    def _agent(
        self, rng: np.random.Generator, kind: Kind, precision: Precision, name: str = "A2C"
    ) -> tuple[Any, Weights]:
        weights = random_weights(rng, kind.shapes)
        settings = {"vf_loss_coeff": _VF, "learning_rate": _LR, "entropy_coeff": _ENT, "max_grad_norm": _NORM}
        algorithm = self.algorithm(name, self.model(kind.model, weights, precision), **settings, **kind.settings)
        return self.backend.Agent(algorithm), weights


def _batch(rng: np.random.Generator, kind: Kind) -> tuple[Any, ...]:
    """Observations, actions, advantages, targets and mask."""
    mask = kind.mask(rng, _ROWS)
    obs, action = rng.normal(size=(_ROWS, OBS_DIM)), kind.actions(rng, mask, _ROWS)
    return obs, action, rng.normal(size=_ROWS), rng.normal(size=_ROWS), mask


def _cast(batch: tuple[Any, ...], precision: Precision) -> list[Any]:
    return [
        array.astype(precision.dtype) if array is not None and array.dtype.kind == "f" else array for array in batch
    ]


def _reference(
    weights: Weights, batch: tuple[Any, ...], kind: Kind, entropy_coeff: float
) -> tuple[list[float], dict[str, Array]]:
    """(total, policy loss, value loss, entropy), sums over the rows, and the gradients of the total."""
    obs, action, advantage, target, mask = batch
    policy, outputs = PolicyReference(kind, weights, obs, action, mask), _VALUE.forward(weights, obs)
    error = outputs[-1][:, 0] - target
    pi_loss, vf_loss = float(-(policy.log_prob * advantage).sum()), float(0.5 * (error**2).sum())
    entropy = float(policy.entropy.sum())
    gradients = policy.backward(-advantage.astype(np.float64), np.full(len(obs), entropy_coeff))
    gradients |= _VALUE.backward(weights, outputs, _VF * error[:, None])[0]
    return [pi_loss + _VF * vf_loss + entropy_coeff * entropy, pi_loss, vf_loss, entropy], gradients
