"""Tests of target networks with batch statistics or dropout that every backend must pass, whichever the algorithm."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.adapter import Conformance, random_weights
from conformance.continuous_models import deterministic, squashed, twin
from conformance.headed_models import headed
from conformance.iql import iql_model
from conformance.models import ACT_DIM, OBS_DIM, Q_SHAPES, q_values
from conformance.reference import Dense
from parl_core.backends import Backend
from parl_core.model import Weights

__all__ = ["TargetConformance"]

_BATCH, _TAU = 16, 0.25
_EPSILON = 1e-5  # of parl.layers.batch_norm, as of both frameworks
_STATISTICS = ("norm.running_mean", "norm.running_var")
_NORM_SHAPES = dict.fromkeys(("norm.weight", "norm.bias", *_STATISTICS), (OBS_DIM,))

_MODELS: dict[str, Callable[[Backend], Any]] = {
    "DQN": q_values,
    "DDQN": q_values,
    "OfflineQ": q_values,
    "BootstrappedDDPG": headed,
    "DDPG": deterministic,
    "TD3": twin,
    "SAC": squashed,
    "OAC": squashed,
    "CQL": squashed,
    "IQL": iql_model,
}
# Every update moves the target by _TAU; DQN and its kind copy.
_SETTINGS: dict[str, dict[str, Any]] = {
    "DQN": {"sync_every": 1},
    "DDQN": {"sync_every": 1},
    "OfflineQ": {"sync_every": 1, "heads": 1},
    "TD3": {"tau": _TAU, "policy_freq": 1},
    "IQL": {"alpha": _TAU},
}
_DISCRETE = ("DQN", "DDQN", "OfflineQ")


class TargetConformance(Conformance):
    """Suite of targets, with a model whose observations go through batch normalisation first."""

    @pytest.mark.parametrize("name", _MODELS)
    def test_statistics_of_a_target_come_from_the_trained_network_alone(self, name: str) -> None:
        agent = self._agent(name)
        agent.learn(*_batch(name, 1))  # shapes are known from here on
        share = 1.0 if name in _DISCRETE else _TAU
        for seed in (2, 3):
            before = self._statistics(agent.alg.target_model)
            agent.learn(*_batch(name, seed))
            source, found = self._statistics(agent.alg.model), self._statistics(agent.alg.target_model)
            for key, array in found.items():
                expected = share * source[key] + (1.0 - share) * before[key]
                np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6, err_msg=key)
                assert not np.array_equal(source[key], before[key])

    @pytest.mark.parametrize("name", _MODELS)
    def test_targets_stay_in_evaluation_mode_and_models_follow_the_agent(self, name: str) -> None:
        agent = self._agent(name)
        for ask, training in ((None, True), (agent.eval, False), (agent.train, True)):
            if ask is not None:
                ask()
            modes = (
                agent.alg.model.norm.training,
                agent.alg.target_model.norm.training,
                agent.alg.target_model.training,
            )
            assert modes == (training, False, False)

    @pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])
    def test_a_target_is_computed_with_running_statistics_and_the_prediction_with_those_of_the_batch(
        self, double: bool
    ) -> None:
        rng = np.random.default_rng(4)
        shapes = {f"inner.{name}": shape for name, shape in Q_SHAPES.items()} | _NORM_SHAPES
        weights, target_weights = (
            random_weights(rng, shapes) | {"norm.running_var": rng.uniform(0.5, 4.0, OBS_DIM)} for _ in range(2)
        )
        agent = self._agent("DQN", gamma=0.9, double=double, sync_every=None)
        for model, values in ((agent.alg.model, weights), (agent.alg.target_model, target_weights)):
            model.set_weights(values, portable=True)
        obs, action, reward, next_obs, terminal = _batch("DQN", 5)
        _, error = agent.learn(obs, action, reward, next_obs, terminal, weights=np.ones(_BATCH, np.float32))

        next_q = _values(target_weights, next_obs, *(target_weights[key] for key in _STATISTICS))
        selector = _values(weights, next_obs, next_obs.mean(axis=0), next_obs.var(axis=0)) if double else next_q
        rows = np.arange(_BATCH)
        target = reward + 0.9 * (1.0 - terminal) * next_q[rows, selector.argmax(axis=1)]
        predicted = _values(weights, obs, obs.mean(axis=0), obs.var(axis=0))[rows, action]
        np.testing.assert_allclose(error, target - predicted, atol=2e-5)

    def test_targets_have_no_dropout(self) -> None:
        layers: Any = self.backend.layers
        base = self.backend.Model
        seen: list[tuple[bool, bool]] = []

        class Dropping(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                self.fc = layers.fc(size=ACT_DIM)

            def value(self, obs: Any) -> Any:
                seen.append((self is algorithm.target_model, self.training))
                return layers.dropout(self.fc(obs), 0.5, is_test=not self.training)

        algorithm = self.algorithm("DQN", Dropping())
        agent = self.backend.Agent(algorithm)
        agent.learn(*_batch("DQN", 1))
        agent.train()
        agent.learn(*_batch("DQN", 2))
        assert seen[1:] == [(False, True), (True, False)] * 2  # the first time, the model is only looked at

    def test_a_target_of_an_algorithm_of_ones_own_is_put_into_evaluation_mode(self) -> None:
        base = self.backend.Algorithm

        class Own(base):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self, model: Any) -> None:
                self.model, self.target_model = model, copy.deepcopy(model)

        agent = self.backend.Agent(Own(_normalised(self.backend, q_values(self.backend))))
        assert agent.alg.model.training
        assert not agent.alg.target_model.training

    def _agent(self, name: str, **settings: Any) -> Any:
        model = _normalised(self.backend, _MODELS[name](self.backend))
        defaults = _SETTINGS.get(name, {"tau": _TAU})
        return self.backend.Agent(self.algorithm(name, model, **{**defaults, **settings}), seed=1)

    def _statistics(self, model: Any) -> Weights:
        weights = model.get_weights(portable=True)
        return {name: weights[name] for name in _STATISTICS}


def _normalised(backend: Backend, inner: Any) -> Any:
    """`inner` behind batch normalisation of the observations."""
    layers: Any = backend.layers

    class Normalised(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.norm, self.inner = layers.batch_norm(), inner

        def policy(self, obs: Any) -> Any:
            return self.inner.policy(self.norm(obs))

        def value(self, obs: Any, *action: Any) -> Any:
            return self.inner.value(self.norm(obs), *action)

        def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that PARL's TD3 asks for
            return self.inner.Q1(self.norm(obs), action)

        def q_value(self, obs: Any, action: Any) -> Any:
            return self.inner.q_value(self.norm(obs), action)

        def get_actor_params(self) -> Any:
            return self.inner.get_actor_params()

        def get_critic_params(self) -> Any:
            if hasattr(self.inner, "get_critic_params"):
                return self.inner.get_critic_params()
            actors = {id(parameter) for parameter in self.get_actor_params()}
            return [parameter for parameter in self.inner.parameters() if id(parameter) not in actors]

        def get_value_params(self) -> Any:
            return self.inner.get_value_params()

    return Normalised()


def _batch(name: str, seed: int) -> list[Any]:
    """Observations around 3, so that statistics move away from where they begin."""
    rng = np.random.default_rng(seed)
    obs, next_obs = (rng.normal(loc, 2.0, (_BATCH, OBS_DIM)).astype(np.float32) for loc in (3.0, -4.0))
    discrete = rng.integers(ACT_DIM, size=_BATCH)
    action = discrete if name in _DISCRETE else rng.uniform(-1.0, 1.0, (_BATCH, ACT_DIM)).astype(np.float32)
    return [obs, action, rng.normal(size=_BATCH).astype(np.float32), next_obs, rng.random(_BATCH) < 0.3]


def _values(weights: Weights, obs: Any, mean: Any, variance: Any) -> Any:
    scaled = (obs - mean) / np.sqrt(variance + _EPSILON) * weights["norm.weight"] + weights["norm.bias"]
    return Dense(("inner.fc1", "inner.fc2")).forward(weights, scaled)[-1]
