"""Tests of SAC that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, random_weights
from conformance.continuous import BATCH, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import SQUASHED_SHAPES, squashed
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference import Adam
from conformance.reference_continuous import Learner, policy
from conformance.reference_continuous import squashed as squashed_reference
from parl_core.backends import Backend
from parl_core.errors import CheckpointError, HyperparameterError

__all__ = ["SACConformance"]


class SACConformance(ContinuousConformance):
    """Suite of SAC; OAC inherits it, because it differs only in how it explores."""

    NAME = "SAC"
    SHAPES = SQUASHED_SHAPES

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return squashed(backend, deep=deep)

    def temperature_settings(self, rate: Any) -> dict[str, Any]:
        return {"alpha_lr": rate}

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "alpha": 0.01}

    def test_a_given_temperature_can_be_set_and_a_learned_one_cannot(self) -> None:
        given, learned = self.agent(FLOAT32, alpha=0.3), self.agent(FLOAT32)
        given.alg.alpha = 0.1
        assert given.alg.alpha == 0.1
        with pytest.raises(HyperparameterError, match="alpha must be"):
            given.alg.alpha = -1.0
        with pytest.raises(HyperparameterError, match=r"learns its temperature; pass alpha=0.1 to the constructor"):
            learned.alg.alpha = 0.1

    @pytest.mark.parametrize("alpha", [None, 0.3], ids=["learned", "fixed"])
    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, alpha: float | None, extras: bool
    ) -> None:
        rng = np.random.default_rng(1)
        learner = Learner(random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES), LR, ("qa", "qb"))
        agent = self.agent(precision, alpha=alpha)
        temperature, log_alpha = Adam(LR), {"": np.zeros(())}
        for _ in range(3):
            batch = some_batch(rng, extras=extras)
            noises = [rng.normal(size=(BATCH, ACT_DIM)) for _ in range(2)]
            self.draws(agent, precision, *noises)
            now = float(np.exp(log_alpha[""])) if alpha is None else alpha
            next_action, log_prob = squashed_reference(*policy(learner.weights, batch.next_obs), noises[0])
            v_t = learner.values(learner.target, batch.next_obs, next_action).min(axis=0) - now * log_prob
            critic_loss, error = learner.critic_step(batch, v_t)
            actor_loss, log_prob = learner.soft_step(batch.obs, now, noises[1])
            if alpha is None:
                log_alpha = temperature.update(log_alpha, {"": -(log_prob.mean() - ACT_DIM)})
            learner.move_target(TAU)

            found = self.learn(agent, batch, precision, extras=extras)
            small = precision.tolerance
            np.testing.assert_allclose(found[:2], (critic_loss, actor_loss), rtol=small, atol=small)
            if extras:
                np.testing.assert_allclose(found[2], error, rtol=small, atol=small)
        assert_weights_close(agent.alg.model.get_weights(portable=True), learner.weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), learner.target, precision.tolerance)
        expected = float(np.exp(log_alpha[""])) if alpha is None else alpha
        assert float(agent.alg.alpha) == pytest.approx(expected, abs=precision.tolerance)

    def test_sample_gives_actions_and_their_log_density(self, precision: Precision) -> None:
        agent = self.agent(precision)
        rng = np.random.default_rng(4)
        obs, noise = rng.normal(size=(50, OBS_DIM)).astype(precision.dtype), rng.normal(size=(50, ACT_DIM))
        self.draws(agent, precision, noise)
        action, log_prob = (agent.alg._array(part) for part in agent.alg.sample(agent.alg._tensor(obs)))
        weights = random_weights(np.random.default_rng(1), self.SHAPES)
        expected = squashed_reference(*policy(weights, obs), noise)
        np.testing.assert_allclose(action, expected[0], atol=precision.tolerance)
        assert log_prob.shape == (50, 1)
        # The reference's log(1 - tanh(u)**2) loses digits where tanh(u) is near 1.
        np.testing.assert_allclose(log_prob[:, 0], expected[1], rtol=1e-4, atol=1e-4)

    def test_the_log_density_stays_finite_where_tanh_rounds_to_one(self) -> None:
        agent = self.agent()
        agent.alg._noise = lambda like: like * 0.0 + 60.0
        action, log_prob = agent.run(agent.alg.sample, np.ones((2, OBS_DIM), np.float32))
        assert np.abs(action).max() == 1.0
        assert np.isfinite(log_prob).all()

    def test_predict_is_the_squashed_mean(self) -> None:
        weights = random_weights(np.random.default_rng(1), self.SHAPES)
        obs = np.random.default_rng(4).normal(size=(10, OBS_DIM)).astype(np.float32)
        np.testing.assert_allclose(self.agent().predict(obs), np.tanh(policy(weights, obs)[0]), atol=1e-6)

    def test_the_temperature_falls_while_the_entropy_is_above_its_target(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        found = []
        for target in (-100.0, 100.0):
            agent = self.agent(target_entropy=target)
            agent.learn(*columns)
            found.append(float(agent.alg.alpha))
        assert found[0] < 1.0 < found[1]

    @pytest.mark.parametrize("name", ["alpha_lr", "target_entropy"])
    def test_settings_of_a_learned_temperature_are_refused_with_a_fixed_one(self, name: str) -> None:
        with pytest.raises(HyperparameterError, match=f"{name} is for a learned temperature"):
            self.algorithm(self.NAME, self.make(self.backend), alpha=0.2, **{name: 0.1})

    @pytest.mark.parametrize(("name", "value"), [("alpha", -0.1), ("alpha_lr", 0.0), ("target_entropy", "auto")])
    def test_its_own_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm(self.NAME, self.make(self.backend), **{name: value})

    def test_a_fixed_temperature_does_not_take_up_the_state_of_a_learned_one(self, tmp_path: Any) -> None:
        learned, fixed = self.agent(), self.agent(alpha=0.2)
        learned.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))
        learned.save(tmp_path / "agent.ckpt")
        with pytest.raises(CheckpointError, match="unknown temperature"):
            fixed.restore(tmp_path / "agent.ckpt")
