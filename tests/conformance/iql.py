"""Tests of IQL that every backend must pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import gradient, layers
from conformance.continuous import BATCH, columns_of, some_batch
from conformance.continuous_models import SQUASHED_SHAPES
from conformance.identity import continuous_identity
from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from conformance.reference import Adam
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights
from parl_core.offline import OfflineDataset
from parl_core.schedules import piecewise
from parl_core.training.offline import OfflineSettings, train_offline

__all__ = ["IQLConformance", "iql_model"]

_LR, _TAU, _ALPHA, _GAMMA = 0.01, 0.8, 0.1, 0.9
_BETA = 4.0  # so large that some weights meet their limit
_SHAPES: dict[str, tuple[int, ...]] = {
    **SQUASHED_SHAPES,
    "v1.weight": (HIDDEN, OBS_DIM),
    "v1.bias": (HIDDEN,),
    "v2.weight": (1, HIDDEN),
    "v2.bias": (1,),
}
_PARTS = {"value": ("v1", "v2"), "actor": ("pi1", "pi2", "spread"), "critic": ("qa1", "qa2", "qb1", "qb2")}


def iql_model(backend: Backend, hidden: int = HIDDEN) -> Any:
    parl_layers: Any = backend.layers

    class IQLModel(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            for name in ("pi1", "qa1", "qb1", "v1"):
                setattr(self, name, parl_layers.fc(size=hidden, act="tanh"))
            for name in ("pi2", "spread"):
                setattr(self, name, parl_layers.fc(size=ACT_DIM))
            for name in ("qa2", "qb2", "v2"):
                setattr(self, name, parl_layers.fc(size=1))

        def policy(self, obs: Any) -> Any:
            seen = self.pi1(obs)
            return self.pi2(seen), self.spread(seen)

        def value(self, obs: Any) -> Any:
            return self.v2(self.v1(obs))

        def q_value(self, obs: Any, action: Any) -> Any:
            both = parl_layers.concat([obs, action], axis=1)
            return self.qa2(self.qa1(both)), self.qb2(self.qb1(both))

        def get_actor_params(self) -> Any:
            return self._of("actor")

        def get_critic_params(self) -> Any:
            return self._of("critic")

        def get_value_params(self) -> Any:
            return self._of("value")

        def _of(self, part: str) -> Any:
            return [parameter for name in _PARTS[part] for parameter in getattr(self, name).parameters()]

    return IQLModel()


class IQLConformance(Conformance):
    """Suite of IQL."""

    def agent(self, precision: Precision = FLOAT32, seed: int = 1, **settings: Any) -> Any:
        rng = np.random.default_rng(seed)
        model = self.model(iql_model, random_weights(rng, _SHAPES), precision)
        given = {"lr": _LR, "tau": _TAU, "beta": _BETA, "alpha": _ALPHA, "discount": _GAMMA, **settings}
        algorithm = self.algorithm("IQL", model, **given)
        algorithm.target_model.set_weights(random_weights(rng, _SHAPES), portable=True)
        return self.backend.Agent(algorithm, seed=seed)

    @pytest.mark.parametrize("max_steps", [None, 4])
    def test_three_updates_agree_with_the_reference(self, precision: Precision, max_steps: int | None) -> None:
        rng = np.random.default_rng(1)
        agent = self.agent(precision, max_steps=max_steps, beta=_BETA)
        weights = {name: a.astype(np.float64) for name, a in agent.alg.model.get_weights(portable=True).items()}
        target = {name: a.astype(np.float64) for name, a in agent.alg.target_model.get_weights(portable=True).items()}
        adams = {part: Adam(_LR) for part in _PARTS}
        limited = 0
        for update in range(3):
            batch = some_batch(rng)
            q_t = np.minimum(*(_q(target, name, batch.obs, batch.action) for name in ("qa", "qb")))

            def value_loss(w: Weights, obs: Any = batch.obs, q: Any = q_t) -> Any:
                u = q - _v(w, obs)
                return (np.where(u.real < 0.0, 1.0 - _TAU, _TAU) * u**2).mean()

            losses = [value_loss(weights)]
            weights = adams["value"].update(weights, gradient(value_loss, weights, ("v1", "v2")))
            share = np.minimum(np.exp(_BETA * (q_t - _v(weights, batch.obs))), 100.0)
            limited += int((share == 100.0).sum())

            def actor_loss(w: Weights, b: Any = batch, s: Any = share) -> Any:
                mean, log_std = layers(w, ("pi1", "pi2"), b.obs), layers(w, ("pi1", "spread"), b.obs)
                normal = -0.5 * ((b.action - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)
                return -(s * normal.sum(axis=1)).mean()

            losses.append(actor_loss(weights))
            decay = 1.0 if max_steps is None else 0.5 * (1.0 + np.cos(np.pi * update / max_steps))
            slope = gradient(actor_loss, weights, ("pi", "spread"))
            weights = adams["actor"].update(weights, slope, _LR * decay)
            goal = batch.reward + _GAMMA * (1.0 - batch.terminal) * _v(weights, batch.next_obs)

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal) -> Any:
                return sum(((_q(w, name, b.obs, b.action) - g) ** 2).mean() for name in ("qa", "qb"))

            losses.insert(1, critic_loss(weights))
            weights = adams["critic"].update(weights, gradient(critic_loss, weights, ("qa", "qb")))
            target = {name: (1.0 - _ALPHA) * array + _ALPHA * weights[name] for name, array in target.items()}

            found = agent.learn(*columns_of(batch, precision))
            np.testing.assert_allclose(found, np.real(losses), rtol=precision.tolerance, atol=precision.tolerance)
        assert 0 < limited < 3 * BATCH
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(agent.alg.target_model.get_weights(portable=True), target, precision.tolerance)

    def test_discounts_of_a_batch_replace_that_of_the_setting(self) -> None:
        batch = some_batch(np.random.default_rng(2))
        agents = self.agent(discount=0.3), self.agent()
        for agent, given in zip(agents, (None, np.full(BATCH, 0.3, np.float32)), strict=True):
            agent.learn(*columns_of(batch, FLOAT32), discount=given)
        found, expected = (agent.get_weights() for agent in agents)
        assert_weights_close(found, expected, 1e-6)

    @pytest.mark.slow
    def test_the_value_approaches_the_expectile_of_the_data(self) -> None:
        # Half of the actions give 1, half 0: the expectile m solves tau * (1 - m) = (1 - tau) * m, so it is tau.
        agent = self.agent(tau=0.9, alpha=1.0, lr=0.02)
        obs = np.zeros((64, OBS_DIM), np.float32)
        action = np.zeros((64, ACT_DIM), np.float32)
        action[::2, 0] = 1.0
        for _ in range(400):
            agent.learn(obs, action, action[:, 0], obs, np.ones(64))
        value = agent.run(agent.alg.model.value, obs[:1])
        assert np.ravel(value)[0] == pytest.approx(0.9, abs=0.05)

    @pytest.mark.parametrize(("flag", "value"), [("truncated", 2.0), ("terminal", 1.0)])
    def test_a_time_limit_in_the_data_bootstraps_and_an_end_does_not(self, flag: str, value: float) -> None:
        # One state and action, reward 1, every step the last one of an episode: 1 + 0.5 + 0.25 + ... = 2, or 1 alone.
        obs, ones = np.ones((64, OBS_DIM), np.float32), np.ones(64)
        action = np.zeros((64, ACT_DIM), np.float32)
        columns = {"obs": obs, "action": action, "reward": ones, "next_obs": obs, "terminal": np.zeros(64)}
        agent = self.agent(discount=0.5, alpha=0.5, lr=0.02)
        settings = OfflineSettings(updates=300, batch_size=8)
        train_offline(agent, OfflineDataset.from_arrays(columns | {flag: ones}), settings, seed=1)
        found = agent.run(agent.alg.model.value, obs[:1])
        assert np.ravel(found)[0] == pytest.approx(value, abs=0.05)

    @pytest.mark.slow
    def test_it_learns_the_identity_environment_from_the_data_of_a_random_policy(self) -> None:
        rng = np.random.default_rng(8)
        algorithm = self.algorithm("IQL", iql_model(self.backend, hidden=64), lr=0.005, discount=0.9, alpha=0.05)
        agent = self.backend.Agent(algorithm, seed=9)
        for _ in range(300):
            obs, right = continuous_identity(rng, 128)
            action = rng.uniform(-1.0, 1.0, right.shape).astype(np.float32)
            agent.learn(obs, action, -3.0 * ((action - right) ** 2).sum(axis=1), obs, np.ones(128))
        obs, right = continuous_identity(rng, 200)
        behaviour = np.abs(rng.uniform(-1.0, 1.0, right.shape) - right).mean()
        assert np.abs(agent.predict(obs) - right).mean() < 0.5 * behaviour

    @pytest.mark.parametrize("max_steps", [None, 4])
    def test_a_schedule_decides_the_learning_rate_of_each_update(self, max_steps: int | None) -> None:
        rng = np.random.default_rng(10)
        batches = [columns_of(some_batch(rng), FLOAT32) for _ in range(3)]
        scheduled = self.agent(lr=piecewise([(0, 0.1), (1, 0.02)]), max_steps=max_steps)
        told = self.agent(lr=0.1, max_steps=max_steps)
        for rate, batch in zip((0.1, 0.02, 0.02), batches, strict=True):
            scheduled.learn(*batch)
            told.alg.lr = rate
            told.learn(*batch)
        assert_weights_close(scheduled.get_weights(), told.get_weights(), 0.0)

    def test_a_learning_rate_of_a_call_replaces_that_of_the_constructor(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        one, other = self.agent(lr=0.1), self.agent(lr=piecewise([(0, 0.3)]))
        assert one.learn(*columns) == other.learn(*columns, learning_rate=0.1)
        assert_weights_close(one.get_weights(), other.get_weights(), 0.0)

    def test_update_is_parls_name_of_learn_with_its_order_of_losses(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        one, other = self.agent(), self.agent()
        value_loss, critic_loss, actor_loss = one.learn(*columns)
        assert other.run(other.alg.update, *columns) == (critic_loss, value_loss, actor_loss)

    def test_actions_lie_in_the_unit_box(self) -> None:
        agent = self.agent()
        obs = 9.0 * np.random.default_rng(3).normal(size=(100, OBS_DIM)).astype(np.float32)
        for actions in (agent.predict(obs), agent.sample(obs)):
            assert actions.shape == (100, ACT_DIM)
            assert np.abs(actions).max() <= 1.0

    def test_a_rate_of_a_call_replaces_the_constructors(self) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        one, other = self.agent(lr=0.02), self.agent(lr=0.5)
        one.learn(*columns)
        other.learn(*columns, learning_rate=0.02)
        for name, array in one.get_weights().items():
            np.testing.assert_array_equal(other.get_weights()[name], array, err_msg=name)

    def test_a_saved_agent_goes_on_as_if_nothing_had_happened(self, tmp_path: Path) -> None:
        saved, restored = self.agent(max_steps=10), self.agent(seed=2, max_steps=10)
        for i in range(3):
            saved.learn(*columns_of(some_batch(np.random.default_rng(i)), FLOAT32))
        saved.save(tmp_path / "agent.ckpt")
        restored.restore(tmp_path / "agent.ckpt")
        columns = columns_of(some_batch(np.random.default_rng(5)), FLOAT32)
        assert restored.learn(*columns) == saved.learn(*columns)
        assert restored.alg.updates == 4

    @pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
    def test_a_reward_that_is_not_finite_is_refused(self, wrong: float) -> None:
        columns = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        columns[2][5] = wrong
        with pytest.raises(ValueError, match=rf"reward must be finite, got {wrong} in row 5"):
            self.agent().learn(*columns)

    def test_actions_outside_of_the_unit_box_and_other_lengths_are_refused(self) -> None:
        obs, action, *others = columns_of(some_batch(np.random.default_rng(2)), FLOAT32)
        with pytest.raises(ValueError, match=r"action must lie in \[-1, 1\]"):
            self.agent().learn(obs, 2.0 + action, *others)
        with pytest.raises(ValueError, match=r"obs \(16, 4\), action \(15, 3\)"):
            self.agent().learn(obs, action[:-1], *others)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("tau", 1.0),
            ("tau", -0.1),
            ("beta", 0.0),
            ("lr", -1.0),
            ("discount", 1.1),
            ("alpha", 0.0),
            ("max_steps", 0),
        ],
    )
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("IQL", iql_model(self.backend), **{name: value})

    def test_a_model_that_lacks_a_method_is_refused_by_its_name(self) -> None:
        class OnlyPolicy(self.backend.Model):  # type: ignore[name-defined,misc]  # known only at run time
            def policy(self, obs: Any) -> Any:
                return obs

        with pytest.raises(ModelContractError, match="`IQL`'s model needs to implement `value` method"):
            self.algorithm("IQL", OnlyPolicy())

    def test_a_model_whose_critics_are_no_pair_is_refused_by_method(self) -> None:
        agent = self.agent()
        own = agent.alg.model.q_value
        agent.alg.model.q_value = lambda obs, action: own(obs, action)[0]
        with pytest.raises(ModelContractError, match=r"q_value has to return the pair \(Q1, Q2\) for IQL; it returned"):
            agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))


def _q(weights: Weights, name: str, obs: Any, action: Any) -> Any:
    return layers(weights, (f"{name}1", f"{name}2"), np.concatenate([obs, action], axis=1))[:, 0]


def _v(weights: Weights, obs: Any) -> Any:
    return layers(weights, ("v1", "v2"), obs)[:, 0]
