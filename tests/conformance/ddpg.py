"""Tests of DDPG that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import Precision, assert_weights_close, random_weights
from conformance.continuous import GAMMA, LR, TAU, ContinuousConformance, some_batch
from conformance.continuous_models import DETERMINISTIC_SHAPES, deterministic
from conformance.models import OBS_DIM
from conformance.reference_continuous import ACTOR, Learner
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError

__all__ = ["DDPGConformance"]


class DDPGConformance(ContinuousConformance):
    """Suite of DDPG."""

    NAME = "DDPG"
    SHAPES = DETERMINISTIC_SHAPES

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return deterministic(backend, deep=deep)

    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, extras: bool) -> None:
        rng = np.random.default_rng(1)
        learner = Learner(random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES), LR, ("qa",))
        agent = self.agent(precision)
        for rate in (None, None, 0.003):
            batch = some_batch(rng, extras=extras)
            next_action = np.tanh(ACTOR.forward(learner.target, batch.next_obs)[-1])
            v_t = learner.values(learner.target, batch.next_obs, next_action)[0]
            critic_loss, error = learner.critic_step(batch, v_t, rate)
            actor_loss = learner.deterministic_step(batch.obs, rate)
            learner.move_target(TAU)

            found = self.learn(agent, batch, precision, extras=extras, actor_lr=rate, critic_lr=rate)
            np.testing.assert_allclose(found[:2], (critic_loss, actor_loss), atol=precision.tolerance)
            if extras:
                np.testing.assert_allclose(found[2], error, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), learner.weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), learner.target, precision.tolerance)

    def test_predict_is_the_actor_and_noise_has_the_deviation_asked_for(self) -> None:
        agent = self.agent(gamma=GAMMA)
        obs = 0.1 * np.random.default_rng(4).normal(size=(1, OBS_DIM)).astype(np.float32)
        weights = random_weights(np.random.default_rng(1), self.SHAPES)
        expected = np.tanh(ACTOR.forward(weights, obs)[-1])
        np.testing.assert_allclose(agent.predict(obs), expected, atol=1e-6)
        drawn = agent.sample(np.repeat(obs, 20_000, axis=0), noise=0.01)
        np.testing.assert_allclose(drawn.std(axis=0), 0.01, rtol=0.05)
        np.testing.assert_allclose(drawn.mean(axis=0), expected[0], atol=0.001)
        np.testing.assert_array_equal(agent.sample(obs, noise=0.0), agent.predict(obs))

    def test_negative_noise_is_refused(self) -> None:
        with pytest.raises(HyperparameterError, match=r"noise must be at least 0, got -0.1"):
            self.agent().sample(np.zeros(OBS_DIM, np.float32), noise=-0.1)
