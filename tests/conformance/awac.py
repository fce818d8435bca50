"""Tests of AWAC that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, random_weights
from conformance.complex_step import gradient
from conformance.continuous import BATCH, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import SQUASHED_SHAPES, squashed
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference import Adam
from conformance.reference_actors import gaussian_of, log_density, q_of
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError
from parl_core.model import Weights

__all__ = ["AWACConformance"]

_LAM = 0.2  # so small that some weights meet their limit
_CRITICS = ("qa", "qb")


class AWACConformance(ContinuousConformance):
    """Suite of AWAC."""

    NAME = "AWAC"
    SHAPES = SQUASHED_SHAPES

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return squashed(backend, deep=deep)

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "lam": 0.05, "actor_lr": 0.0045, "critic_lr": 0.01}

    @pytest.mark.parametrize("extras", [False, True], ids=["one_step", "n_step_prioritised"])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, extras: bool) -> None:
        rng = np.random.default_rng(1)
        weights, target = random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES)
        agent = self.agent(precision, lam=_LAM)
        agent.alg.model.set_weights(weights, portable=True)
        agent.alg.target_model.set_weights(target, portable=True)
        actor, critics = Adam(LR), Adam(LR)
        limited = 0
        for _ in range(3):
            batch = some_batch(rng, extras=extras)
            noises = [rng.normal(size=(BATCH, ACT_DIM)) for _ in range(2)]
            self.draws(agent, precision, *noises)
            following = _drawn(weights, batch.next_obs, noises[0])
            v_t = np.minimum(*(q_of(target, name, batch.next_obs, following) for name in _CRITICS))
            goal = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal) -> Any:
                errors = [q_of(w, name, b.obs, b.action) - g for name in _CRITICS]
                return sum((b.weights * error**2).mean() for error in errors)

            losses = [critic_loss(weights)]
            errors = [goal - q_of(weights, name, batch.obs, batch.action) for name in _CRITICS]
            weights = critics.update(weights, gradient(critic_loss, weights, _CRITICS))
            chosen = _drawn(weights, batch.obs, noises[1])
            advantage = np.minimum(*(q_of(weights, name, batch.obs, batch.action) for name in _CRITICS))
            advantage -= np.minimum(*(q_of(weights, name, batch.obs, chosen) for name in _CRITICS))
            share = np.minimum(np.exp(advantage / _LAM), 100.0)
            limited += int((share == 100.0).sum())

            def actor_loss(w: Weights, b: Any = batch, s: Any = share) -> Any:
                return -(s * log_density(b.action, *gaussian_of(w, b.obs))).mean()

            losses.append(actor_loss(weights))
            weights = actor.update(weights, gradient(actor_loss, weights, ("pi", "spread")))
            target = {name: (1.0 - TAU) * array + TAU * weights[name] for name, array in target.items()}
            found = self.learn(agent, batch, precision, extras=extras)
            np.testing.assert_allclose(found[:2], np.real(losses), rtol=precision.tolerance, atol=precision.tolerance)
            if extras:
                np.testing.assert_allclose(found[2], np.mean(errors, axis=0), atol=precision.tolerance)
        assert 0 < limited < 3 * BATCH
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    def test_the_policy_prefers_the_better_actions_of_the_data(self) -> None:
        rng = np.random.default_rng(3)
        obs = rng.normal(size=(256, OBS_DIM)).astype(np.float32)
        action = np.full((256, ACT_DIM), -0.5, np.float32)
        action[::2] = 0.5
        agent = self.agent(lam=0.1)
        for _ in range(300):
            agent.learn(obs, action, action[:, 0], obs, np.ones(256))
        assert agent.predict(obs).mean() > 0.35

    def test_predict_is_the_mean_kept_inside(self) -> None:
        weights = random_weights(np.random.default_rng(1), self.SHAPES)
        obs = 5.0 * np.random.default_rng(4).normal(size=(10, OBS_DIM)).astype(np.float32)
        expected = np.clip(gaussian_of(weights, obs)[0], -1.0, 1.0)
        np.testing.assert_allclose(self.agent(FLOAT32).predict(obs), expected, atol=1e-6)

    def test_lam_of_nothing_is_refused(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        self.agent(lam=1e-3).learn(*columns)  # weights stay finite
        with pytest.raises(HyperparameterError, match="lam"):
            self.algorithm("AWAC", squashed(self.backend), lam=0.0)


def _drawn(weights: Weights, obs: Any, noise: Any) -> Any:
    mean, log_std = gaussian_of(weights, obs)
    return np.clip(mean + np.exp(log_std) * noise, -1.0, 1.0)
