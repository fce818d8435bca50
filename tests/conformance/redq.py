"""Tests of REDQ and DroQ that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Precision, assert_weights_close, in_pairs, random_weights
from conformance.complex_step import gradient
from conformance.continuous import BATCH, LR, TAU, ContinuousConformance, columns_of, some_batch
from conformance.continuous_models import ENSEMBLE_SHAPES, ensemble, squashed
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference import Adam
from conformance.reference_actors import drawn_of, q_of
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["DroQConformance", "REDQConformance"]

_CRITICS = ("qa", "qb", "qc")


class REDQConformance(ContinuousConformance):
    """Suite of REDQ; what it shares with SAC is tested as with SAC."""

    NAME = "REDQ"
    SHAPES = ENSEMBLE_SHAPES

    def make(self, backend: Backend, *, deep: bool = False) -> Any:
        return ensemble(backend, deep=deep)

    def agent(self, precision: Precision = FLOAT32, seed: int = 1, **settings: Any) -> Any:
        return super().agent(precision, seed, **{"policy_freq": 1, **settings})

    def temperature_settings(self, rate: Any) -> dict[str, Any]:
        return {"alpha_lr": rate}

    def identity_settings(self) -> dict[str, Any]:
        return {**super().identity_settings(), "alpha": 0.01, "policy_freq": 1}

    @in_pairs(alpha={"learned": None, "fixed": 0.3}, extras={"one_step": False, "n_step_prioritised": True})
    def test_four_updates_agree_with_the_reference(
        self, precision: Precision, alpha: float | None, extras: bool
    ) -> None:
        rng = np.random.default_rng(1)
        weights, target = random_weights(rng, self.SHAPES), random_weights(rng, self.SHAPES)
        agent = self.agent(precision, alpha=alpha, subset=2, policy_freq=2)
        actor, critics, temperature, log_alpha = Adam(LR), Adam(LR), Adam(LR), {"": np.zeros(())}
        for update in range(1, 5):
            batch = some_batch(rng, extras=extras)
            noises = [rng.normal(size=(BATCH, ACT_DIM)), rng.normal(size=3), rng.normal(size=(BATCH, ACT_DIM))]
            self.draws(agent, precision, *noises)
            now = float(np.exp(log_alpha[""])) if alpha is None else alpha
            chosen = [_CRITICS[i] for i in np.argsort(noises[1])[:2]]
            following, log_prob = drawn_of(weights, batch.next_obs, noises[0])
            v_t = np.minimum(*(q_of(target, name, batch.next_obs, following) for name in chosen)) - now * log_prob
            goal = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal) -> Any:
                return sum((b.weights * (q_of(w, name, b.obs, b.action) - g) ** 2).mean() for name in _CRITICS)

            losses = [critic_loss(weights), None]
            error = goal - np.mean([q_of(weights, name, batch.obs, batch.action) for name in _CRITICS], axis=0)
            weights = critics.update(weights, gradient(critic_loss, weights, ("q",)))
            if update % 2 == 0:

                def actor_loss(w: Weights, b: Any = batch, a: float = now, n: Any = noises[2]) -> Any:
                    action, log_prob = drawn_of(w, b.obs, n)
                    value = np.mean([q_of(w, name, b.obs, action) for name in _CRITICS], axis=0)
                    return (a * log_prob - value).mean()

                losses[1] = actor_loss(weights)
                log_prob = drawn_of(weights, batch.obs, noises[2])[1]
                weights = actor.update(weights, gradient(actor_loss, weights, ("pi", "spread")))
                if alpha is None:
                    log_alpha = temperature.update(log_alpha, {"": -(log_prob.mean() - ACT_DIM)})
            target = {name: (1.0 - TAU) * array + TAU * weights[name] for name, array in target.items()}

            found = self.learn(agent, batch, precision, extras=extras)
            close = precision.tolerance
            np.testing.assert_allclose(found[0], losses[0], rtol=close, atol=close)
            assert found[1] == (None if losses[1] is None else pytest.approx(losses[1], rel=close, abs=close))
            if extras:
                np.testing.assert_allclose(found[2], error, rtol=close, atol=close)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    @pytest.mark.slow
    def test_every_pair_of_critics_is_drawn_equally_often(self) -> None:
        agent = self.agent(subset=2)
        drawn, own = [], agent.alg._noise

        def seen(like: Any) -> Any:
            found = own(like)
            if len(found.shape) == 1:
                drawn.append(frozenset(np.argsort(agent.alg._array(found))[:2].tolist()))
            return found

        agent.alg._noise = seen
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        for _ in range(300):
            agent.learn(*columns)
        shares = [drawn.count(pair) / len(drawn) for pair in set(drawn)]
        assert len(shares) == 3
        np.testing.assert_allclose(shares, 1 / 3, atol=0.12)

    def test_the_actor_learns_at_the_last_of_so_many_updates(self) -> None:
        agent = self.agent(policy_freq=3)
        for update in range(1, 7):
            found = agent.learn(*columns_of(some_batch(np.random.default_rng(update)), FLOAT32))
            assert (found[1] is not None) == (update % 3 == 0)

    def test_values_that_are_no_row_a_state_are_refused_by_name(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        agent = self.backend.Agent(self.algorithm(self.NAME, squashed(self.backend)))
        with pytest.raises(ModelContractError, match=rf"all critics \[batch, critics\] for {self.NAME}; it returned a"):
            agent.learn(*columns)

    def test_settings_of_its_own_out_of_range_are_refused(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        with pytest.raises(HyperparameterError, match="subset must be at most the number of critics, 3, got 4"):
            self.agent(subset=4).learn(*columns)
        for name in ("subset", "policy_freq"):
            with pytest.raises(HyperparameterError, match=name):
                self.algorithm(self.NAME, self.make(self.backend), **{name: 0})


class DroQConformance(REDQConformance):
    """Suite of DroQ, with that of REDQ and what dropout changes."""

    NAME = "DroQ"

    def test_dropout_is_active_in_training_of_model_and_target_and_nowhere_else(self) -> None:
        model = self.backend.networks.EnsembleActorCritic(ACT_DIM, (32,), critics=2, dropout=0.3)
        agent = self.backend.Agent(self.algorithm("DroQ", model), seed=1)
        batch = some_batch(np.random.default_rng(2))
        obs, action = batch.obs.astype(np.float32), batch.action.astype(np.float32)
        agent.alg.settle_shapes(obs, action)
        agent.learn(*columns_of(batch, FLOAT32))
        inputs = [agent.alg._tensor(array) for array in (obs, action)]

        def drops() -> list[bool]:
            found = []
            for owner in (agent.alg.model, agent.alg.target_model):
                first, second = (agent.alg._array(owner.value(*inputs)) for _ in range(2))
                assert first.shape == (BATCH, 2)
                found.append(not np.array_equal(first, second))
            return found

        assert drops() == [True, True]  # agents start in training mode
        agent.eval()
        assert drops() == [False, False]
        agent.train()
        assert drops() == [True, True]

    def test_a_model_without_dropout_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        for dropout, count in ((0.01, 0), (None, 1)):
            self.algorithm("DroQ", self.backend.networks.EnsembleActorCritic(ACT_DIM, (8,), critics=2, dropout=dropout))
            assert caplog.text.count("EnsembleActorCritic has no dropout") == count

    def test_an_evaluation_between_updates_does_not_change_what_is_learned(self) -> None:
        found = []
        for evaluates in (False, True):
            self.adapter.seed(3)
            model = self.backend.networks.EnsembleActorCritic(ACT_DIM, (8,), critics=2, dropout=0.5)
            agent = self.backend.Agent(self.algorithm("DroQ", model, policy_freq=1), seed=1)
            for update in range(3):
                agent.learn(*columns_of(some_batch(np.random.default_rng(update)), FLOAT32))
                if evaluates:  # as `evaluate` does
                    agent.eval()
                    agent.train()
            found.append(agent.get_weights())
        np.testing.assert_equal(found[1], found[0])

    @pytest.mark.slow
    def test_a_ready_made_model_learns_with_many_updates(self) -> None:
        rng = np.random.default_rng(4)
        model = self.backend.networks.EnsembleActorCritic(1, (32, 32), critics=2, dropout=0.01)
        rates = {"actor_lr": 0.003, "critic_lr": 0.01}
        agent = self.backend.Agent(self.algorithm("DroQ", model, alpha=0.01, policy_freq=2, **rates), seed=1)
        for _ in range(250):
            obs = rng.uniform(-1.0, 1.0, (64, OBS_DIM)).astype(np.float32)
            action = rng.uniform(-1.0, 1.0, (64, 1)).astype(np.float32)
            agent.learn(obs, action, -((action - 0.5 * obs[:, :1]) ** 2)[:, 0], obs, np.ones(64))
        obs = rng.uniform(-1.0, 1.0, (200, OBS_DIM)).astype(np.float32)
        assert np.abs(agent.predict(obs) - 0.5 * obs[:, :1]).mean() < 0.15
