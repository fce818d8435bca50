"""Tests of ReBRAC that every backend must pass."""

from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import absolute, gradient, minimum
from conformance.continuous import BATCH, LR, TAU, columns_of, some_batch
from conformance.continuous_models import TWIN_SHAPES, twin
from conformance.identity import continuous_identity
from conformance.models import ACT_DIM, OBS_DIM
from conformance.reference import Adam
from conformance.reference_actors import action_of, clipped, q_of
from parl_core.errors import HyperparameterError
from parl_core.model import Weights
from parl_core.offline import OfflineDataset
from parl_core.training.offline import OfflineSettings, train_offline

__all__ = ["ReBRACConformance"]

_NOISE, _LIMIT = 0.4, 0.3
_ACTOR_BC, _CRITIC_BC = 0.3, 0.2


class ReBRACConformance(Conformance):
    """Suite of ReBRAC."""

    def agent(self, precision: Precision = FLOAT32, **settings: Any) -> Any:
        rng = np.random.default_rng(1)
        model = self.model(twin, random_weights(rng, TWIN_SHAPES), precision)
        given = {"gamma": 0.9, "tau": TAU, "actor_lr": LR, "critic_lr": LR, **settings}
        algorithm = self.algorithm("ReBRAC", model, **given)
        algorithm.target_model.set_weights(random_weights(rng, TWIN_SHAPES), portable=True)
        return self.backend.Agent(algorithm, seed=1)

    @pytest.mark.parametrize("extras", [False, True], ids=["plain", "weighted"])
    def test_four_updates_agree_with_the_reference(self, precision: Precision, extras: bool) -> None:
        rng = np.random.default_rng(1)
        penalties = {"actor_bc": _ACTOR_BC, "critic_bc": _CRITIC_BC}
        agent = self.agent(precision, policy_noise=_NOISE, noise_clip=_LIMIT, **penalties)
        weights = {name: a.astype(np.float64) for name, a in agent.alg.model.get_weights(portable=True).items()}
        target = {name: a.astype(np.float64) for name, a in agent.alg.target_model.get_weights(portable=True).items()}
        actor, critics = Adam(LR), Adam(LR)
        for update in range(1, 5):
            batch = some_batch(rng, extras=extras)
            noise, done_next = rng.normal(size=(BATCH, ACT_DIM)), rng.uniform(-1.0, 1.0, (BATCH, ACT_DIM))
            agent.alg._noise = lambda _, drawn=noise: agent.alg._tensor(drawn.astype(precision.dtype))
            following = np.clip(action_of(target, batch.next_obs) + clipped(noise, _NOISE, _LIMIT), -1.0, 1.0)
            v_t = np.minimum(*(q_of(target, name, batch.next_obs, following) for name in ("qa", "qb")))
            v_t = v_t - _CRITIC_BC * ((following - done_next) ** 2).sum(axis=1)
            goal = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal) -> Any:
                errors = [q_of(w, name, b.obs, b.action) - g for name in ("qa", "qb")]
                return sum((b.weights * error**2).mean() for error in errors)

            losses = [critic_loss(weights), None]
            errors = [goal - q_of(weights, name, batch.obs, batch.action) for name in ("qa", "qb")]
            weights = critics.update(weights, gradient(critic_loss, weights, ("qa", "qb")))
            if update % 2 == 0:

                def smaller(w: Weights, action: Any, b: Any = batch) -> Any:
                    return minimum(*(q_of(w, name, b.obs, action) for name in ("qa", "qb")))

                scale = 1.0 / absolute(smaller(weights, action_of(weights, batch.obs))).mean()

                def actor_loss(w: Weights, b: Any = batch, s: Any = scale, q: Any = smaller) -> Any:
                    action = action_of(w, b.obs)
                    return (_ACTOR_BC * ((action - b.action) ** 2).sum(axis=1) - s * q(w, action)).mean()

                losses[1] = actor_loss(weights)
                weights = actor.update(weights, gradient(actor_loss, weights, ("pi",)))
                target = {name: (1.0 - TAU) * array + TAU * weights[name] for name, array in target.items()}
            given = {"weights": batch.weights, "discount": batch.discount} if extras else {}
            cast = {name: array.astype(precision.dtype) for name, array in {**given, "next_action": done_next}.items()}
            found = agent.learn(*columns_of(batch, precision), **cast)
            assert found[0] == pytest.approx(losses[0], abs=precision.tolerance)
            assert found[1] == (None if losses[1] is None else pytest.approx(losses[1], abs=precision.tolerance))
            if extras:
                np.testing.assert_allclose(found[2], np.mean(errors, axis=0), atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    @pytest.mark.slow
    def test_it_learns_the_identity_environment_from_the_data_of_a_random_policy(self) -> None:
        rng = np.random.default_rng(8)
        rates = {"actor_lr": 0.003, "critic_lr": 0.01}
        algorithm = self.algorithm("ReBRAC", twin(self.backend, deep=True), gamma=0.9, actor_bc=0.0, **rates)
        agent = self.backend.Agent(algorithm, seed=9)
        for update in range(400):
            obs, shown = continuous_identity(rng, 64)
            action = rng.uniform(-1.0, 1.0, shown.shape).astype(np.float32)
            reward = -((action[:, 0] - 0.5 * shown[:, 0]) ** 2)
            rate = 0.0 if update < 100 else None
            agent.learn(obs, action, reward, obs, np.ones(64), next_action=action, actor_lr=rate)
        obs, shown = continuous_identity(rng, 200)
        assert np.abs(agent.predict(obs) - 0.5 * shown)[:, 0].mean() < 0.15

    def test_the_next_action_is_that_of_the_following_row_of_the_same_episode(self) -> None:
        agent = self.agent()
        rows = 12
        ends = {"terminal": np.isin(np.arange(rows), [3]), "truncated": np.isin(np.arange(rows), [7, 11])}
        action = np.repeat(np.linspace(-1.0, 1.0, rows)[:, None], ACT_DIM, axis=1).astype(np.float32)
        obs = np.repeat(np.arange(rows, dtype=np.float32)[:, None], OBS_DIM, axis=1)
        log = OfflineDataset.from_arrays(
            {"obs": obs, "action": action, "reward": np.zeros(rows), "next_obs": obs + 1.0, **ends}
        )
        drawn = agent.alg.draw_batch(log, 500, np.random.default_rng(1))
        steps = drawn["obs"][:, 0].astype(int)
        assert set(steps) == set(range(rows)) - {7, 11}  # behind which nothing is known
        going_on = ~drawn["terminal"].astype(bool)
        np.testing.assert_array_equal(drawn["extra"]["next_action"][going_on], action[steps + 1][going_on])

    @pytest.mark.parametrize("penalty", [0.0, 20.0])
    def test_it_learns_from_logged_data_and_stays_near_them_as_the_penalties_say(self, penalty: float) -> None:
        rng = np.random.default_rng(3)
        obs, shown = continuous_identity(rng, 500)
        action = np.clip(rng.normal(-0.5, 0.05, shown.shape), -1.0, 1.0).astype(np.float32)
        log = OfflineDataset.from_arrays(
            {"obs": obs, "action": action, "reward": action[:, 0], "next_obs": obs, "terminal": np.ones(500)}
        )
        rates = {"actor_lr": 0.005, "critic_lr": 0.01}
        algorithm = self.algorithm("ReBRAC", twin(self.backend, deep=True), actor_bc=penalty, **rates)
        agent = self.backend.Agent(algorithm, seed=2)
        train_offline(agent, log, OfflineSettings(updates=300, batch_size=64, report_every=50), seed=4)
        mean = float(agent.predict(obs)[:, 0].mean())
        assert mean > 0.5 if penalty == 0.0 else abs(mean + 0.5) < 0.15

    def test_a_batch_without_next_actions_is_refused(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        with pytest.raises(ValueError, match="ReBRAC also learns from next_action"):
            self.agent().learn(*columns)
        with pytest.raises(ValueError, match="next_action must lie in"):
            self.agent().learn(*columns, next_action=3.0 * columns[1])

    @pytest.mark.parametrize("name", ["actor_bc", "critic_bc"])
    def test_its_own_settings_out_of_range_are_refused_by_name(self, name: str) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("ReBRAC", twin(self.backend), **{name: -1.0})
