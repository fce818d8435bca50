"""Tests of TQC that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, in_pairs, random_weights
from conformance.complex_step import absolute, gradient, layers
from conformance.continuous import BATCH, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import QUANTILE_SHAPES, QUANTILES, quantiles
from conformance.models import ACT_DIM
from conformance.reference import Adam
from conformance.reference_actors import drawn_of
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["TQCConformance"]

_CRITICS, _DROP = ("qa", "qb"), 1
_TAUS = (np.arange(QUANTILES) + 0.5) / QUANTILES


class TQCConformance(ContinuousConformance):
    """Suite of TQC; what it shares with SAC is tested as with SAC."""

    NAME = "TQC"
    SHAPES = QUANTILE_SHAPES
    METHODS = ("policy", "quantiles", "get_actor_params")

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return quantiles(backend, deep=deep)

    def temperature_settings(self, rate: Any) -> dict[str, Any]:
        return {"alpha_lr": rate}

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "alpha": 0.01, "drop": 1}

    @in_pairs(alpha={"learned": None, "fixed": 0.3}, extras={"one_step": False, "n_step_prioritised": True})
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, alpha: float | None, extras: bool
    ) -> None:
        rng = np.random.default_rng(1)
        weights, target = random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES)
        agent = self.agent(precision, alpha=alpha, drop=_DROP)
        actor, critics, temperature, log_alpha = Adam(LR), Adam(LR), Adam(LR), {"": np.zeros(())}
        for _ in range(3):
            batch = some_batch(rng, extras=extras)
            noises = [rng.normal(size=(BATCH, ACT_DIM)) for _ in range(2)]
            self.draws(agent, precision, *noises)
            now = float(np.exp(log_alpha[""])) if alpha is None else alpha
            following, log_prob = drawn_of(weights, batch.next_obs, noises[0])
            atoms = np.concatenate([_theta(target, name, batch.next_obs, following) for name in _CRITICS], axis=1)
            kept = np.sort(atoms, axis=1)[:, : len(_CRITICS) * (QUANTILES - _DROP)] - now * log_prob[:, None]
            goal = batch.reward[:, None] + (batch.discount * (1.0 - batch.terminal))[:, None] * kept

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal) -> Any:
                losses = [_huber(_theta(w, name, b.obs, b.action), g) for name in _CRITICS]
                return (b.weights * np.mean(losses, axis=0)).mean()

            losses = [critic_loss(weights)]
            seen = np.mean([_theta(weights, name, batch.obs, batch.action) for name in _CRITICS], axis=(0, 2))
            error = goal.mean(axis=1) - seen
            weights = critics.update(weights, gradient(critic_loss, weights, _CRITICS))

            def actor_loss(w: Weights, b: Any = batch, a: float = now, n: Any = noises[1]) -> Any:
                action, log_prob = drawn_of(w, b.obs, n)
                values = [_theta(w, name, b.obs, action).mean(axis=1) for name in _CRITICS]
                return (a * log_prob - np.mean(values, axis=0)).mean()

            losses.append(actor_loss(weights))
            log_prob = drawn_of(weights, batch.obs, noises[1])[1]
            weights = actor.update(weights, gradient(actor_loss, weights, ("pi", "spread")))
            if alpha is None:
                log_alpha = temperature.update(log_alpha, {"": -(log_prob.mean() - ACT_DIM)})
            target = {name: (1.0 - TAU) * array + TAU * weights[name] for name, array in target.items()}

            found = self.learn(agent, batch, precision, extras=extras)
            close = precision.tolerance
            np.testing.assert_allclose(found[:2], np.real(losses), rtol=close, atol=close)
            if extras:
                np.testing.assert_allclose(found[2], error, rtol=close, atol=close)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    def test_the_more_quantiles_are_left_out_the_lower_the_values(self) -> None:
        rng = np.random.default_rng(3)
        batches = [some_batch(rng) for _ in range(100)]
        means = []
        for drop in (0, QUANTILES - 1):
            agent = self.agent(alpha=0.0, drop=drop, gamma=0.99)
            for batch in batches:
                agent.learn(*columns_of(batch, FLOAT32))
            obs, action = (part.astype(np.float32) for part in (batches[0].obs, batches[0].action))
            means.append(float(np.mean(agent.run(agent.alg.model.quantiles, obs, action))))
        assert means[1] < means[0] - 0.2

    def test_as_many_dropped_as_there_are_is_refused(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        self.agent(drop=QUANTILES - 1).learn(*columns)
        with pytest.raises(HyperparameterError, match=f"drop must be below the {QUANTILES} quantiles"):
            self.agent(drop=QUANTILES).learn(*columns)
        with pytest.raises(HyperparameterError, match="drop"):
            self.algorithm("TQC", self.make(self.backend), drop=-1)

    def test_quantiles_of_another_shape_are_refused_by_name(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        agent = self.agent()
        own = agent.alg.model.quantiles
        agent.alg.model.quantiles = lambda obs, action: own(obs, action).mean(-1)
        with pytest.raises(ModelContractError, match=r"quantiles has to return \[batch, critics, quantiles\] for TQC"):
            agent.learn(*columns)


def _theta(weights: Weights, name: str, obs: Any, action: Any) -> Any:
    return layers(weights, (f"{name}1", f"{name}2"), np.concatenate([obs, action], axis=1))


def _huber(theta: Any, goal: Any) -> Any:
    """Equation 14 of arXiv:2005.04269 for one critic, `[batch]`."""
    error = goal[:, None, :] - theta[:, :, None]
    size = absolute(error)
    huber = np.where(size.real <= 1.0, 0.5 * error**2, size - 0.5)
    return (np.abs(_TAUS[None, :, None] - (error.real < 0.0)) * huber).mean(axis=(1, 2))
