"""Tests of TD3 that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, random_weights
from conformance.continuous import BATCH, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import TWIN_SHAPES, twin
from conformance.models import ACT_DIM
from conformance.reference_continuous import ACTOR, Learner, clipped_normal
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError

__all__ = ["TD3Conformance"]

_NOISE, _LIMIT = 0.4, 0.3


class TD3Conformance(ContinuousConformance):
    """Suite of TD3."""

    NAME = "TD3"
    SHAPES = TWIN_SHAPES
    METHODS = ("policy", "value", "Q1", "get_actor_params")

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return twin(backend, deep=deep)

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "policy_freq": 1}

    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    def test_four_updates_agree_with_the_reference(self, precision: Precision, extras: bool) -> None:
        rng = np.random.default_rng(1)
        learner = Learner(random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES), LR, ("qa", "qb"))
        agent = self.agent(precision, policy_noise=_NOISE, noise_clip=_LIMIT, policy_freq=2)
        for update in range(1, 5):
            batch = some_batch(rng, extras=extras)
            noise = rng.normal(size=(BATCH, ACT_DIM))
            self.draws(agent, precision, noise)
            mu = np.tanh(ACTOR.forward(learner.target, batch.next_obs)[-1])
            next_action = np.clip(mu + clipped_normal(noise, _NOISE, _LIMIT), -1.0, 1.0)
            v_t = learner.values(learner.target, batch.next_obs, next_action).min(axis=0)
            critic_loss, error = learner.critic_step(batch, v_t)
            actor_loss = None
            if update % 2 == 0:
                actor_loss = learner.deterministic_step(batch.obs)
                learner.move_target(TAU)

            found = self.learn(agent, batch, precision, extras=extras)
            assert found[0] == pytest.approx(critic_loss, abs=precision.tolerance)
            assert found[1] == (None if actor_loss is None else pytest.approx(actor_loss, abs=precision.tolerance))
            if extras:
                np.testing.assert_allclose(found[2], error, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), learner.weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), learner.target, precision.tolerance)

    def test_actor_and_target_stay_between_the_delayed_steps(self) -> None:
        agent = self.agent(policy_freq=3)
        for update in range(1, 4):
            before = agent.alg.target_model.get_weights()
            found = agent.learn(*columns_of(some_batch(np.random.default_rng(update)), FLOAT32))
            same = all((array == before[name]).all() for name, array in agent.alg.target_model.get_weights().items())
            assert same == (found[1] is None) == (update < 3)

    @pytest.mark.parametrize(("name", "value"), [("policy_noise", -0.1), ("noise_clip", -1), ("policy_freq", 0)])
    def test_its_own_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("TD3", twin(self.backend), **{name: value})
