"""Tests of discrete SAC that every backend must pass."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.adapter import Conformance, Precision, assert_weights_close, in_pairs, random_weights
from conformance.complex_step import gradient, layers, logsumexp
from conformance.identity import discrete_identity
from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from conformance.reference import Adam
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["DiscreteSACConformance"]

_BATCH, _LR, _GAMMA, _TAU = 12, 0.01, 0.9, 0.1
_NETWORKS = ("pi", "qa", "qb")
_SHAPES = {
    name: shape
    for network in _NETWORKS
    for name, shape in {
        f"{network}1.weight": (HIDDEN, OBS_DIM),
        f"{network}1.bias": (HIDDEN,),
        f"{network}2.weight": (ACT_DIM, HIDDEN),
        f"{network}2.bias": (ACT_DIM,),
    }.items()
}


def _make(backend: Backend) -> Any:
    fc: Any = backend.layers.fc

    class ActorCritic(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.pi1, self.pi2 = fc(size=HIDDEN, act="tanh"), fc(size=ACT_DIM)
            self.qa1, self.qa2 = fc(size=HIDDEN, act="tanh"), fc(size=ACT_DIM)
            self.qb1, self.qb2 = fc(size=HIDDEN, act="tanh"), fc(size=ACT_DIM)

        def policy(self, obs: Any) -> Any:
            return self.pi2(self.pi1(obs))

        def value(self, obs: Any) -> Any:
            return self.qa2(self.qa1(obs)), self.qb2(self.qb1(obs))

        def get_actor_params(self) -> Any:
            return [*self.pi1.parameters(), *self.pi2.parameters()]

    return ActorCritic()


def _of(weights: Weights, network: str, obs: Any) -> Any:
    return layers(weights, (f"{network}1", f"{network}2"), obs)


def _log_p(weights: Weights, obs: Any, possible: NDArray[np.bool_]) -> Any:
    """Logarithms of probabilities, 0 where an action is impossible; weights may be complex."""
    logits = np.where(possible, _of(weights, "pi", obs), -1e30)
    return np.where(possible, logits - logsumexp(logits, axis=1)[:, None], 0.0)


def _least(weights: Weights, obs: Any) -> NDArray[Any]:
    smaller: NDArray[Any] = np.minimum(_of(weights, "qa", obs), _of(weights, "qb", obs))
    return smaller


class DiscreteSACConformance(Conformance):
    """Suite of DiscreteSAC."""

    @in_pairs(alpha={"learned": None, "fixed": 0.3}, extras={"one_step": False, "n_step_prioritised_masked": True})
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, alpha: float | None, extras: bool
    ) -> None:
        rng = np.random.default_rng(1)
        weights, target = random_weights(rng, _SHAPES), random_weights(rng, _SHAPES)
        settings = {"gamma": _GAMMA, "tau": _TAU, "actor_lr": _LR, "critic_lr": _LR, "alpha": alpha}
        algorithm = self.algorithm("DiscreteSAC", self.model(_make, weights, precision), **settings)
        algorithm.target_model.set_weights(target, portable=True)
        agent, rows = self.backend.Agent(algorithm), np.arange(_BATCH)
        adams, log_alpha = [Adam(_LR) for _ in range(3)], {"": np.zeros(())}
        for _ in range(3):
            obs, next_obs = rng.normal(size=(2, _BATCH, OBS_DIM))
            action, reward = rng.integers(ACT_DIM, size=_BATCH), rng.normal(size=_BATCH)
            terminal = (rng.random(_BATCH) < 0.3).astype(float)
            importance = rng.uniform(0.2, 1.0, _BATCH) if extras else np.ones(_BATCH)
            discount = _GAMMA ** rng.integers(1, 4, _BATCH) if extras else np.full(_BATCH, _GAMMA)
            masks = [rng.random((_BATCH, ACT_DIM)) < (0.5 if extras else 2.0) for _ in range(2)]
            masks[0][rows, action] = True
            masks[1][rows, rng.integers(ACT_DIM, size=_BATCH)] = True
            now = float(np.exp(log_alpha[""])) if alpha is None else alpha

            log_p = _log_p(weights, next_obs, masks[1])
            soft = np.exp(log_p) * masks[1] * (_least(target, next_obs) - now * log_p)
            goal = reward + discount * (1.0 - terminal) * soft.sum(axis=1)

            def critic_loss(w: Weights, o: Any = obs, a: Any = action, g: Any = goal, i: Any = importance) -> Any:
                each = [(_of(w, name, o)[np.arange(_BATCH), a] - g) ** 2 for name in ("qa", "qb")]
                return (i * each[0]).mean() + (i * each[1]).mean()

            expected = [critic_loss(weights)]
            values = [_of(weights, name, obs)[rows, action] for name in ("qa", "qb")]
            error = goal - np.mean(values, axis=0)
            weights = adams[0].update(weights, gradient(critic_loss, weights, ("q",)))
            least = _least(weights, obs)

            def actor_loss(w: Weights, o: Any = obs, m: Any = masks[0], now: float = now, least: Any = least) -> Any:
                log_p = _log_p(w, o, m)
                return (np.exp(log_p) * m * (now * log_p - least)).sum(axis=1).mean()

            expected.append(actor_loss(weights))
            log_p = _log_p(weights, obs, masks[0])
            entropy = -(np.exp(log_p) * masks[0] * log_p).sum(axis=1)
            weights = adams[1].update(weights, gradient(actor_loss, weights, ("pi",)))
            if alpha is None:
                slope = -(0.98 * np.log(masks[0].sum(axis=1)) - entropy).mean()
                log_alpha = adams[2].update(log_alpha, {"": slope})
            target = {name: (1.0 - _TAU) * target[name] + _TAU * weights[name] for name in target}

            options = {"weights": importance, "discount": discount} if extras else {}
            given = {name: array.astype(precision.dtype) for name, array in options.items()}
            if extras:
                given |= {"action_mask": masks[0], "next_action_mask": masks[1]}
            columns = [part.astype(precision.dtype) for part in (reward, next_obs, terminal)]
            found = agent.learn(obs.astype(precision.dtype), action, *columns, **given)
            small = precision.tolerance
            np.testing.assert_allclose(found[:2], np.real(expected), rtol=small, atol=small)
            if extras:
                np.testing.assert_allclose(found[2], error, rtol=small, atol=small)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)
        assert_weights_close(algorithm.target_model.get_weights(portable=True), target, precision.tolerance)
        expected_alpha = float(np.exp(log_alpha[""])) if alpha is None else alpha
        assert float(algorithm.alpha) == pytest.approx(expected_alpha, abs=precision.tolerance)

    def test_it_draws_by_the_probabilities_and_predicts_the_likeliest(self) -> None:
        weights = random_weights(np.random.default_rng(1), _SHAPES)
        agent = self.backend.Agent(self.algorithm("DiscreteSAC", self.model(_make, weights)))
        obs = np.random.default_rng(2).normal(size=(1, OBS_DIM)).astype(np.float32)
        everything = np.ones((1, ACT_DIM), bool)
        p = np.exp(_log_p(weights, obs, everything))[0]
        drawn = agent.sample(np.repeat(obs, 5_000, axis=0))
        np.testing.assert_allclose(np.bincount(drawn, minlength=ACT_DIM) / 5_000, p, atol=0.04)
        assert agent.predict(obs)[0] == p.argmax()
        mask = everything.copy()
        mask[0, p.argmax()] = False
        assert agent.predict(obs, action_mask=mask)[0] == np.where(mask[0], p, -1.0).argmax()
        assert p.argmax() not in agent.sample(np.repeat(obs, 500, axis=0), action_mask=np.repeat(mask, 500, axis=0))

    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(8)
        model = self.backend.networks.DiscreteActorCritic(ACT_DIM, (32,))
        settings = {"gamma": 0.9, "actor_lr": 0.02, "critic_lr": 0.02, "target_entropy": 0.1}
        agent = self.backend.Agent(self.algorithm("DiscreteSAC", model, **settings), seed=9)
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = agent.sample(obs)
            agent.learn(obs, action, (action == state).astype(np.float32), obs, np.ones(64))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95

    def test_the_entropy_is_led_to_its_target(self) -> None:
        """Without rewards the policy is uniform: the temperature falls to a target below, and rises to one above."""
        rng, found = np.random.default_rng(2), []
        for wanted in (0.1, 5.0):
            agent = self.backend.Agent(self.algorithm("DiscreteSAC", _make(self.backend), target_entropy=wanted))
            obs = rng.normal(size=(32, OBS_DIM)).astype(np.float32)
            for _ in range(20):
                agent.learn(obs, rng.integers(ACT_DIM, size=32), np.zeros(32), obs, np.zeros(32))
            found.append(float(agent.alg.alpha))
        assert found[0] < 1.0 < found[1]

    @pytest.mark.parametrize(("name", "value"), [("alpha", -0.1), ("tau", 0.0), ("target_entropy", "auto")])
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm("DiscreteSAC", _make(self.backend), **{name: value})

    def test_an_action_that_the_model_has_no_probability_for_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("DiscreteSAC", _make(self.backend)))
        obs = np.zeros((4, OBS_DIM), np.float32)
        with pytest.raises(ValueError, match=r"action must be in 0\.\.2, got 3\.\.3"):
            agent.learn(obs, np.full(4, ACT_DIM), np.zeros(4), obs, np.zeros(4))

    def test_a_model_without_a_policy_is_refused(self) -> None:
        with pytest.raises(ModelContractError, match="`DiscreteSAC`'s model needs to implement `policy` method"):
            self.algorithm("DiscreteSAC", self.backend.networks.QNetwork(ACT_DIM))

    def test_without_settings_it_has_those_of_the_paper(self) -> None:
        algorithm = self.algorithm("DiscreteSAC", _make(self.backend))
        found = algorithm.gamma, algorithm.tau, algorithm.actor_lr, algorithm.critic_lr, float(algorithm.alpha)
        assert found == (0.99, 0.005, 3e-4, 3e-4, 1.0)
