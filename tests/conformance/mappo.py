"""Tests of MAPPO, IPPO and COMA that every backend must pass."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, in_pairs, random_weights
from conformance.complex_step import absolute, clip, gradient, layers, minimum
from conformance.reference import Adam, clip_by_global_norm
from conformance.team_models import (
    AGENTS,
    CENTRAL_SHAPES,
    CHOICES,
    COUNTERFACTUAL_SHAPES,
    INDEPENDENT_SHAPES,
    SEEN,
    central,
    counterfactual,
    joint,
    log_policy,
)
from parl_core.contracts.batches import TeamRollout
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights
from parl_core.schedules import linear

__all__ = ["COMAConformance", "IPPOConformance", "MAPPOConformance"]

_N, _CLIP, _VF, _ENT, _LR, _DELTA, _NORM = 12, 0.2, 0.7, 0.02, 0.01, 0.5, 0.5


def _batch(rng: np.random.Generator, precision: Precision, *, dead: bool = True) -> TeamRollout:
    obs = joint(rng, _N, precision.dtype)
    action = np.zeros((_N, AGENTS), np.int64)
    for row in range(_N):
        for agent in range(AGENTS):
            action[row, agent] = rng.choice(np.flatnonzero(obs["action_mask"][row, agent]))
    active = np.ones((_N, AGENTS))
    if dead:
        active[3:6, 1] = 0.0
    columns = {
        "value": rng.normal(size=(_N, AGENTS)),
        "return_": 3.0 + 2.0 * rng.normal(size=(_N, AGENTS)),
        "log_prob": np.log(rng.uniform(0.2, 0.6, size=(_N, AGENTS))),
        "advantage": rng.normal(size=(_N, AGENTS)),
        "active": active,
    }
    return TeamRollout(obs=obs, action=action, **{key: array.astype(precision.dtype) for key, array in columns.items()})


def _huber(error: NDArray[Any]) -> NDArray[Any]:
    size = absolute(error)
    return np.where(size.real <= _DELTA, 0.5 * error**2, _DELTA * (size - 0.5 * _DELTA))


class MAPPOConformance(Conformance):
    """Suite of MAPPO; IPPO inherits it with another critic."""

    NAME = "MAPPO"
    SEES_STATE = True

    def _agent(self, weights: Weights, precision: Precision, **settings: Any) -> Any:
        model = self.model(partial(central, sees_state=self.SEES_STATE), weights, precision)
        given: dict[str, Any] = {
            "clip_param": _CLIP,
            "value_loss_coef": _VF,
            "entropy_coef": _ENT,
            "initial_lr": _LR,
            "huber_delta": _DELTA,
            "max_grad_norm": _NORM,
        }
        return self.backend.Agent(self.algorithm(self.NAME, model, **{**given, **settings}))

    def _weights(self, rng: np.random.Generator) -> Weights:
        return random_weights(rng, CENTRAL_SHAPES if self.SEES_STATE else INDEPENDENT_SHAPES)

    def _values(self, weights: Weights, obs: dict[str, NDArray[Any]]) -> NDArray[Any]:
        seen = obs["obs"].astype(np.float64)
        if self.SEES_STATE:
            state = np.repeat(obs["state"][:, None].astype(np.float64), AGENTS, axis=1)
            seen = np.concatenate([seen, state], axis=2)
        return layers(weights, ("v1", "value_head"), seen.reshape(-1, seen.shape[-1])).reshape(-1, AGENTS)

    def _losses(self, weights: Weights, batch: TeamRollout, masks_value: bool, clips_value: bool) -> tuple[Any, ...]:
        """Loss and figures from the formulas, with the columns as they are."""
        columns = (batch.log_prob, batch.advantage, batch.value, batch.return_, batch.active)
        old, advantage, value_old, return_, active = (np.asarray(column, np.float64) for column in columns)
        log_p = log_policy(weights, batch.obs)
        chosen = np.take_along_axis(log_p, batch.action[..., None], 2)[..., 0]
        share = active / active.sum()
        ratio = np.exp(chosen - old)
        gain = minimum(ratio * advantage, clip(ratio, 1 - _CLIP, 1 + _CLIP) * advantage)
        policy_loss = -(share * gain).sum()
        entropy = -(share * (np.exp(log_p) * np.where(log_p.real > -1e20, log_p, 0.0)).sum(axis=2)).sum()
        value = self._values(weights, batch.obs)
        errors = _huber(value - return_)
        if clips_value:
            near = _huber(value_old + clip(value - value_old, -_CLIP, _CLIP) - return_)
            errors = -minimum(-errors, -near)
        value_loss = (share * errors).sum() if masks_value else errors.mean()
        loss = policy_loss + _VF * value_loss - _ENT * entropy
        return loss, value_loss, policy_loss, entropy

    def _loss(self, batch: TeamRollout, masks_value: bool, clips_value: bool, weights: Weights) -> Any:
        return self._losses(weights, batch, masks_value, clips_value)[0]

    @in_pairs(masks_value={"active_values": True, "all_values": False}, clips_value={"clipped": True, "plain": False})
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, masks_value: bool, clips_value: bool
    ) -> None:
        rng = np.random.default_rng(1)
        weights = self._weights(rng)
        settings = {"use_value_active_masks": masks_value, "use_clipped_value_loss": clips_value, "use_popart": False}
        agent, adam = self._agent(weights, precision, **settings), Adam(_LR, 1e-5)
        for lr in (None, None, 0.003):
            batch = _batch(rng, precision)
            expected = self._losses(weights, batch, masks_value, clips_value)
            gradients = gradient(partial(self._loss, batch, masks_value, clips_value), weights, [""])
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM), lr)
            found = agent.learn(batch, lr=lr)
            np.testing.assert_allclose(found, np.real(expected[1:]), rtol=0, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_a_rollout_is_learned_in_popart_units_with_normalised_advantages(self, precision: Precision) -> None:
        rng = np.random.default_rng(2)
        weights = self._weights(rng)
        agent, adam = self._agent(weights, precision), Adam(_LR, 1e-5)
        batch = _batch(rng, precision)
        seen = joint(rng, 5, precision.dtype)
        np.testing.assert_allclose(agent.value(seen), self._values(weights, seen), atol=precision.tolerance)
        sums = np.zeros(3)
        mean, deviation = 0.0, 1.0
        for rollout in range(3):
            acted = batch.active != 0
            found = batch.return_[acted].astype(np.float64)
            sums = 0.01 * np.array([1.0, found.mean(), (found**2).mean()]) + (0.99 * sums if rollout else 0.0)
            before, mean = (mean, deviation), sums[1] / sums[0]
            deviation = np.sqrt(sums[2] / sums[0] - mean**2)
            value = np.asarray(batch.value, np.float64)
            if rollout:  # units that were learned in change, and the last layer with them
                scale, shift = before[1] / deviation, (before[0] - mean) / deviation
                weights = {**weights, "value_head.weight": weights["value_head.weight"] * scale}
                weights["value_head.bias"] = weights["value_head.bias"] * scale + shift
                value = (value - mean) / deviation
            advantage = np.asarray(batch.advantage, np.float64)
            units = {
                "return_": (batch.return_ - mean) / deviation,
                "value": value,
                "advantage": (advantage - advantage[acted].mean()) / (advantage[acted].std() + 1e-5),
            }
            in_units = TeamRollout(**{**batch.__dict__, **units})
            gradients = gradient(partial(self._loss, in_units, True, True), weights, [""])
            weights = adam.update(weights, clip_by_global_norm(gradients, _NORM))
            figures = agent.learn_rollout(batch, epochs=1, rng=np.random.default_rng(0))
            assert figures["steps"] == 1
            batch = _batch(rng, precision)
        tolerance = precision.tolerance * 20
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, tolerance)
        after = self._values(weights, seen) * deviation + mean
        np.testing.assert_allclose(agent.value(seen), after, atol=tolerance * 5)

    def test_new_units_leave_values_as_they_were(self) -> None:
        rng = np.random.default_rng(3)
        agent = self._agent(self._weights(rng), FLOAT32)
        seen = joint(rng, 20, np.float32)
        before = agent.value(seen)
        for targets in (rng.normal(50, 9, 100), rng.normal(-3, 0.2, 100)):
            agent.alg._rescale(*agent.alg.popart.update(targets))
            np.testing.assert_allclose(agent.value(seen), before, atol=2e-4)

    def test_agents_that_have_left_change_nothing(self) -> None:
        results = []
        for garbage in (0.0, 1e3):
            rng = np.random.default_rng(4)
            agent, batch = self._agent(self._weights(rng), FLOAT32), _batch(rng, FLOAT32)
            dead = batch.active == 0
            for name in ("return_", "value", "advantage", "log_prob"):
                getattr(batch, name)[dead] = garbage
            agent.learn_rollout(batch, epochs=2, rng=np.random.default_rng(0))
            results.append(agent.get_weights())
        for name, array in results[0].items():
            np.testing.assert_allclose(array, results[1][name], atol=1e-6, err_msg=name)

    def test_drawn_actions_are_possible_and_have_their_probabilities(self, precision: Precision) -> None:
        rng = np.random.default_rng(5)
        weights = self._weights(rng)
        agent, seen = self._agent(weights, precision), joint(rng, 300, precision.dtype)
        value, action, log_prob = agent.explore(seen)
        assert value.shape == action.shape == log_prob.shape == (300, AGENTS)
        assert np.take_along_axis(seen["action_mask"], action[..., None], 2).all()
        expected = np.take_along_axis(log_policy(weights, seen), action[..., None], 2)[..., 0]
        np.testing.assert_allclose(log_prob, expected, atol=20 * precision.tolerance)
        assert len(np.unique(action)) == CHOICES
        assert (agent.predict(seen) == log_policy(weights, seen).argmax(axis=2)).all()
        one = {name: column[7] for name, column in seen.items()}
        assert (agent.predict(one) == agent.predict(seen)[7]).all()

    def test_popart_is_saved_and_restored(self, tmp_path: Any) -> None:
        rng = np.random.default_rng(6)
        weights, batch, seen = self._weights(rng), _batch(rng, FLOAT32), joint(rng, 9, np.float32)
        agent, other = self._agent(weights, FLOAT32), self._agent(self._weights(rng), FLOAT32)
        agent.learn_rollout(batch, epochs=2, rng=np.random.default_rng(0))
        agent.save(tmp_path / "agent.ckpt")
        other.restore(tmp_path / "agent.ckpt")
        assert (other.value(seen) == agent.value(seen)).all()
        for each in (agent, other):
            each.learn_rollout(batch, epochs=2, rng=np.random.default_rng(1))
        assert (other.value(seen) == agent.value(seen)).all()

    def test_what_does_not_fit_is_refused_in_words(self) -> None:
        rng = np.random.default_rng(7)
        agent, batch = self._agent(self._weights(rng), FLOAT32), _batch(rng, FLOAT32)
        with pytest.raises(
            ValueError, match=r"action must have shape \[n, agents\] of whole numbers, got int64 \(12,\)"
        ):
            agent.alg.check_batch(TeamRollout.made(**{**batch.__dict__, "action": batch.action[:, 0]}))
        with pytest.raises(ValueError, match="value must have one number for each of the actions"):
            TeamRollout(**{**batch.__dict__, "value": batch.value[:, 0]})
        with pytest.raises(HyperparameterError, match="huber_delta must be"):
            self._agent(self._weights(rng), FLOAT32, huber_delta=0.0)

        class Headless(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            def policy(self, obs: Any) -> Any:
                return obs

            def value(self, obs: Any) -> Any:
                return obs

        with pytest.raises(ModelContractError, match="has no value_head"):
            self.algorithm(self.NAME, Headless())

    def test_a_head_that_popart_cannot_rescale_is_refused(self) -> None:
        lib: Any = self.backend.layers
        networks: Any = self.backend.networks
        base: Any = type(central(self.backend, self.SEES_STATE))

        class WithoutBias(base):  # type: ignore[misc]  # known only at run time
            def __init__(self) -> None:
                super().__init__()
                self.value_head = lib.fc(size=1, bias_attr=False)

        class Deep(base):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.value_head = networks.MLP((8, 1))

        batch = _batch(np.random.default_rng(8), FLOAT32)
        for kind, found in ((WithoutBias, r"value_head\.weight: PopArt"), (Deep, r"value_head\..*, value_head\..*")):
            agent = self.backend.Agent(self.algorithm(self.NAME, kind()))
            agent.value(batch.obs)
            with pytest.raises(ModelContractError, match=f"value_head of {kind.__name__} has the parameters {found}"):
                agent.learn_rollout(batch, rng=np.random.default_rng(0))
            other = self.backend.Agent(self.algorithm(self.NAME, kind(), use_popart=False))
            other.learn_rollout(batch, rng=np.random.default_rng(0))


class IPPOConformance(MAPPOConformance):
    """Suite of IPPO."""

    NAME = "IPPO"
    SEES_STATE = False


class COMAConformance(Conformance):
    """Suite of COMA."""

    def _agent(self, weights: Weights, precision: Precision, **settings: Any) -> Any:
        model = self.model(counterfactual, weights, precision)
        given: dict[str, Any] = {
            "actor_lr": _LR,
            "critic_lr": 2 * _LR,
            "grad_norm_clip": _NORM,
            "entropy_coef": _ENT,
            "target_update_interval": 2,
        }
        return self.backend.Agent(self.algorithm("COMA", model, n_actions=CHOICES, n_agents=AGENTS, **given | settings))

    def _q(self, weights: Weights, batch: Any) -> NDArray[Any]:
        """Q of each agent's actions, with its own action left out of what the critic sees."""
        one_hot = np.eye(CHOICES)[batch.action].reshape(len(batch.action), -1)
        rows = []
        for agent in range(AGENTS):
            others = one_hot.copy()
            others[:, agent * CHOICES : (agent + 1) * CHOICES] = 0.0
            rows.append(np.concatenate([batch.obs["obs"][:, agent], batch.obs["state"], others], axis=1))
        return np.stack([layers(weights, ("q1", "q2"), part) for part in rows], axis=1)

    def _critic_loss(self, batch: Any, weights: Weights) -> Any:
        taken = np.take_along_axis(self._q(weights, batch), batch.action[..., None], 2)[..., 0]
        active = np.asarray(batch.active, np.float64)
        return (active * (taken - batch.return_) ** 2).sum() / active.sum()

    def _actor_loss(self, critic: Weights, batch: Any, weights: Weights) -> Any:
        return self._actor_losses(weights, critic, batch)[0]

    def _actor_losses(self, weights: Weights, critic: Weights, batch: Any) -> tuple[Any, ...]:
        q, log_p = self._q(critic, batch), log_policy(weights, batch.obs)
        chosen = batch.action[..., None]
        probabilities = np.exp(log_p.real)  # the advantage carries no gradient
        advantage = np.take_along_axis(q, chosen, 2)[..., 0] - (probabilities * q).sum(axis=2)
        share = batch.active / batch.active.sum(dtype=np.float64)
        policy_loss = -(share * advantage * np.take_along_axis(log_p, chosen, 2)[..., 0]).sum()
        entropy = -(share * (np.exp(log_p) * np.where(log_p.real > -1e20, log_p, 0.0)).sum(axis=2)).sum()
        return policy_loss - _ENT * entropy, policy_loss, entropy, (share * np.abs(advantage)).sum()

    @pytest.mark.parametrize("steps", [1, 3])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, steps: int) -> None:
        rng = np.random.default_rng(1)
        weights = random_weights(rng, COUNTERFACTUAL_SHAPES)
        agent = self._agent(weights, precision, critic_updates=steps, target_update_interval=2 * steps)
        actor, critic, target = Adam(_LR), Adam(2 * _LR), dict(weights)
        for update in range(3):
            batch = _batch(rng, precision)
            for _ in range(steps):
                critic_loss = self._critic_loss(batch, weights)
                slopes = gradient(partial(self._critic_loss, batch), weights, ["q1", "q2"])
                weights = critic.update(weights, clip_by_global_norm(slopes, _NORM))
            expected = self._actor_losses(weights, weights, batch)
            slopes = gradient(partial(self._actor_loss, weights, batch), weights, ["pi1", "pi2"])
            weights = actor.update(weights, clip_by_global_norm(slopes, _NORM))
            if update == 1:
                target = dict(weights)
            found = agent.learn_rollout(batch, rng=np.random.default_rng(0))
            figures = [found[name] for name in ("critic_loss", "policy_loss", "entropy", "advantage")]
            wanted = [np.real(figure) for figure in (critic_loss, *expected[1:])]
            np.testing.assert_allclose(figures, wanted, rtol=0, atol=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    @pytest.mark.parametrize("limit", [None, math.inf])
    def test_gradients_are_not_limited_where_there_is_no_limit(self, limit: float | None) -> None:
        rng = np.random.default_rng(7)
        weights, batch = random_weights(rng, COUNTERFACTUAL_SHAPES), _batch(rng, FLOAT32)
        learned = []
        for norm in (limit, 1e9, _NORM):
            agent = self._agent(weights, FLOAT32, grad_norm_clip=norm)
            for _ in range(2):  # the length of Adam's first step does not depend on that of the gradient
                agent.learn_rollout(batch, rng=rng)
            learned.append(agent.alg.model.get_weights(portable=True))
        assert_weights_close(learned[0], learned[1], 0.0)
        assert any(np.abs(learned[0][name] - learned[2][name]).max() > 1e-5 for name in weights)

    def test_rates_and_the_entropy_bonus_may_be_schedules(self) -> None:
        rng = np.random.default_rng(8)
        weights, batch = random_weights(rng, COUNTERFACTUAL_SHAPES), _batch(rng, FLOAT32)
        schedules = {
            "actor_lr": linear(0.02, 0.0, 4),
            "critic_lr": linear(0.04, 0.0, 4),
            "entropy_coef": linear(1, 0, 2),
        }
        agent, other = self._agent(weights, FLOAT32, **schedules), self._agent(weights, FLOAT32)
        for update in range(2):
            for name, schedule in schedules.items():
                setattr(other.alg, name, schedule(update))
            assert agent.learn_rollout(batch, rng=rng) == other.learn_rollout(batch, rng=rng)
        assert_weights_close(
            agent.alg.model.get_weights(portable=True), other.alg.model.get_weights(portable=True), 0.0
        )
        with pytest.raises(HyperparameterError, match="actor_lr at the start of its schedule must be above 0"):
            self._agent(weights, FLOAT32, actor_lr=lambda _: -1.0)

    def test_an_agents_values_do_not_depend_on_its_own_action_and_a_sure_policy_has_no_advantage(self) -> None:
        rng = np.random.default_rng(2)
        weights = random_weights(rng, COUNTERFACTUAL_SHAPES)
        agent = self._agent(weights, FLOAT32)
        batch = _batch(rng, FLOAT32)
        only = np.zeros_like(batch.obs["action_mask"])
        np.put_along_axis(only, batch.action[..., None], 1, 2)
        batch.obs["action_mask"] = only  # each agent's only action: nothing to compare it with
        figures = agent.learn_rollout(batch, rng=rng)
        assert figures["advantage"] == pytest.approx(0.0, abs=1e-6)
        assert figures["entropy"] == pytest.approx(0.0, abs=1e-6)

    def test_what_an_agent_that_has_left_does_is_not_seen_by_the_critics_of_others(self) -> None:
        rng = np.random.default_rng(6)
        weights, batch = random_weights(rng, COUNTERFACTUAL_SHAPES), _batch(rng, FLOAT32)
        left = batch.active == 0
        assert left.any()
        batch.obs["alive"][left], batch.obs["action_mask"][left] = 0, 1
        other = batch.action.copy()
        other[left] = (other[left] + 1) % CHOICES
        learned = []
        for action in (batch.action, other):
            agent = self._agent(weights, FLOAT32)
            figures = agent.learn_rollout(batch.made(**{**batch.__dict__, "action": action}), rng=rng)
            learned.append((figures, agent.alg.model.get_weights(portable=True)))
        assert learned[0][0] == pytest.approx(learned[1][0], abs=1e-7)
        assert_weights_close(learned[0][1], learned[1][1], 1e-7)

    def test_explore_values_what_it_drew_by_the_target(self, precision: Precision) -> None:
        rng = np.random.default_rng(3)
        weights = random_weights(rng, COUNTERFACTUAL_SHAPES)
        agent, seen = self._agent(weights, precision), joint(rng, 200, precision.dtype)
        value, action, log_prob = agent.explore(seen)
        batch = TeamRollout.made(obs=seen, action=action)
        taken = np.take_along_axis(self._q(weights, batch), action[..., None], 2)[..., 0]
        np.testing.assert_allclose(value, taken, atol=20 * precision.tolerance)
        expected = np.take_along_axis(log_policy(weights, seen), action[..., None], 2)[..., 0]
        np.testing.assert_allclose(log_prob, expected, atol=20 * precision.tolerance)
        assert seen["obs"].shape[-1] == SEEN
        assert (agent.predict(seen) == log_policy(weights, seen).argmax(axis=2)).all()
        assert agent.value(seen).shape == (200, AGENTS)

    def test_settings_of_ppo_and_wrong_shapes_are_refused(self) -> None:
        rng = np.random.default_rng(4)
        agent, batch = self._agent(random_weights(rng, COUNTERFACTUAL_SHAPES), FLOAT32), _batch(rng, FLOAT32)
        with pytest.raises(HyperparameterError, match="COMA takes one step on each whole rollout"):
            agent.learn_rollout(batch, epochs=3, rng=rng)
        with pytest.raises(ValueError, match=r"action must have shape \[n, 2\]"):
            agent.alg.check_batch(TeamRollout.made(**{**batch.__dict__, "action": batch.action[:, :1]}))
        with pytest.raises(HyperparameterError, match=r"takes a dictionary, .'actor': ..., 'critic': .*got .'policy'"):
            self._agent(random_weights(rng, COUNTERFACTUAL_SHAPES), FLOAT32, optimizer={"policy": None})
