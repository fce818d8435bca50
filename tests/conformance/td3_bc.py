"""Tests of TD3+BC that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, random_weights
from conformance.complex_step import absolute, gradient
from conformance.continuous import BATCH, LR, TAU, columns_of, some_batch
from conformance.continuous_models import TWIN_SHAPES, twin
from conformance.models import ACT_DIM
from conformance.reference import Adam
from conformance.reference_actors import action_of, clipped, q_of
from conformance.td3 import TD3Conformance
from parl_core.errors import HyperparameterError
from parl_core.model import Weights

__all__ = ["TD3BCConformance"]

_ALPHA, _NOISE, _LIMIT = 1.7, 0.4, 0.3


class TD3BCConformance(TD3Conformance):
    """Suite of TD3BC, with that of TD3 but for the updates' numbers and the identity environment."""

    NAME = "TD3BC"

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "alpha": 1e4}  # behind which the imitation of random actions is nothing

    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "weighted"])
    def test_four_updates_agree_with_the_reference(self, precision: Precision, extras: bool) -> None:
        rng = np.random.default_rng(1)
        weights, target = random_weights(rng, TWIN_SHAPES), random_weights(rng, TWIN_SHAPES)
        model = self.model(twin, weights, precision)
        rates = {"gamma": 0.9, "tau": TAU, "actor_lr": LR, "critic_lr": LR}
        algorithm = self.algorithm("TD3BC", model, alpha=_ALPHA, policy_noise=_NOISE, noise_clip=_LIMIT, **rates)
        algorithm.target_model.set_weights(target, portable=True)
        agent, actor, critics = self.backend.Agent(algorithm), Adam(LR), Adam(LR)
        for update in range(1, 5):
            batch = some_batch(rng, extras=extras)
            noise = rng.normal(size=(BATCH, ACT_DIM))
            self.draws(agent, precision, noise)
            following = np.clip(action_of(target, batch.next_obs) + clipped(noise, _NOISE, _LIMIT), -1.0, 1.0)
            v_t = np.minimum(*(q_of(target, name, batch.next_obs, following) for name in ("qa", "qb")))
            goal = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal) -> Any:
                errors = [q_of(w, name, b.obs, b.action) - g for name in ("qa", "qb")]
                return sum((b.weights * error**2).mean() for error in errors)

            losses = [critic_loss(weights), None]
            weights = critics.update(weights, gradient(critic_loss, weights, ("qa", "qb")))
            if update % 2 == 0:
                scale = _ALPHA / absolute(q_of(weights, "qa", batch.obs, action_of(weights, batch.obs))).mean()

                def actor_loss(w: Weights, b: Any = batch, s: Any = scale) -> Any:
                    action = action_of(w, b.obs)
                    return ((action - b.action) ** 2).mean() - s * q_of(w, "qa", b.obs, action).mean()

                losses[1] = actor_loss(weights)
                weights = actor.update(weights, gradient(actor_loss, weights, ("pi",)))
                target = {name: (1.0 - TAU) * array + TAU * weights[name] for name, array in target.items()}
            found = self.learn(agent, batch, precision, extras=extras)
            assert found[0] == pytest.approx(losses[0], abs=precision.tolerance)
            assert found[1] == (None if losses[1] is None else pytest.approx(losses[1], abs=precision.tolerance))
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    def test_the_smaller_alpha_the_nearer_to_the_data(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(5)), FLOAT32)
        columns[1][:] = 0.5
        missed = []
        for alpha in (1e-4, 100.0):
            agent = self.agent(alpha=alpha, policy_freq=1)
            for _ in range(150):
                agent.learn(*columns)
            missed.append(np.abs(agent.predict(columns[0]) - 0.5).mean())
        assert missed[0] < 0.05 < missed[1]

    def test_alpha_of_nothing_is_refused(self) -> None:
        with pytest.raises(HyperparameterError, match="alpha"):
            self.algorithm("TD3BC", twin(self.backend), alpha=0.0)
