"""Tests of C51 and Rainbow that every backend must pass."""

from importlib import import_module
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

__all__ = ["C51Conformance", "RainbowConformance"]

_COUNT, _BATCH, _LR, _GAMMA, _LOW, _HIGH = 7, 16, 0.01, 0.9, -2.0, 1.0
_SHAPES = {
    "fc1.weight": (HIDDEN, OBS_DIM),
    "fc1.bias": (HIDDEN,),
    "fc2.weight": (_COUNT * ACT_DIM, HIDDEN),
    "fc2.bias": (_COUNT * ACT_DIM,),
}
_SUPPORT = np.linspace(_LOW, _HIGH, _COUNT)


def _make(backend: Backend) -> Any:
    parl_layers: Any = backend.layers

    class Atoms(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = parl_layers.fc(size=HIDDEN, act="tanh")
            self.fc2 = parl_layers.fc(size=_COUNT * ACT_DIM)

        def atoms(self, obs: Any) -> Any:
            return parl_layers.reshape(self.fc2(self.fc1(obs)), [-1, _COUNT, ACT_DIM])

    return Atoms()


def _log_p(weights: Weights, obs: Any) -> Any:
    """Logarithms of the probabilities `[batch, N, act_dim]`; weights may be complex."""
    logits = layers(weights, ("fc1", "fc2"), obs).reshape(-1, _COUNT, ACT_DIM)
    return logits - logsumexp(logits, axis=1)[:, None]


def _q(weights: Weights, obs: Any) -> NDArray[Any]:
    return np.asarray(np.einsum("bna,n->ba", np.exp(_log_p(weights, obs)), _SUPPORT))


def projected(
    probabilities: NDArray[Any], reward: NDArray[Any], discount: NDArray[Any], support: NDArray[Any]
) -> NDArray[Any]:
    """Algorithm 1 of arXiv:1707.06887 as it stands there, an atom of a row at a time."""
    found, gap = np.zeros_like(probabilities), support[1] - support[0]
    for row in range(len(probabilities)):
        for j in range(len(support)):
            value = min(max(reward[row] + discount[row] * support[j], support[0]), support[-1])
            b = (value - support[0]) / gap
            low, high = int(np.floor(b + 1e-12)), int(np.ceil(b - 1e-12))
            if low == high:  # which the paper's lines lose
                found[row, low] += probabilities[row, j]
            else:
                found[row, low] += probabilities[row, j] * (high - b)
                found[row, high] += probabilities[row, j] * (b - low)
    return found


class C51Conformance(Conformance):
    """Suite of C51; Rainbow inherits it, because it differs in defaults alone."""

    NAME = "C51"

    def project(self, probabilities: Any, values: Any, support: Any) -> NDArray[Any]:
        """The backend's projection, of arrays."""
        algorithm = self.algorithm(self.NAME, _make(self.backend))
        losses = import_module(f"parl_{self.backend.name}.losses.categorical")
        tensors = [algorithm._tensor(np.asarray(array, np.float32)) for array in (probabilities, values, support)]
        return np.asarray(algorithm._array(losses.project(*tensors)))

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0.0, 1.0, 2.0], [0.2, 0.3, 0.5]),  # where they already are
            ([0.25, 1.0, 1.5], [0.15, 0.6, 0.25]),  # 0.2 splits 3:1, 0.5 in halves
            ([2.0, 2.0, 2.0], [0.0, 0.0, 1.0]),  # all at the end, as of a terminal reward of 2
            ([-5.0, 0.0, 9.0], [0.5, 0.0, 0.5]),  # those beyond the ends count there
        ],
        ids=["same", "split", "one value", "beyond"],
    )
    def test_a_projection_is_that_by_hand(self, values: list[float], expected: list[float]) -> None:
        found = self.project([[0.2, 0.3, 0.5]], [values], [0.0, 1.0, 2.0])
        np.testing.assert_allclose(found, [expected], atol=1e-6)

    def test_a_projection_keeps_the_mean_within_the_range_and_all_of_the_probability(self) -> None:
        rng = np.random.default_rng(3)
        p = rng.dirichlet(np.ones(_COUNT), 200)
        values = rng.uniform(_LOW, _HIGH, (200, _COUNT))
        found = self.project(p, values, _SUPPORT)
        np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(found @ _SUPPORT, (p * values).sum(axis=1), atol=1e-5)

    @in_pairs(double={"plain": False, "double": True}, extras={"one_step": False, "n_step_prioritised_masked": True})
    def test_three_updates_agree_with_the_reference(self, precision: Precision, double: bool, extras: bool) -> None:
        rng = np.random.default_rng(1)
        weights, target_weights = random_weights(rng, _SHAPES), random_weights(rng, _SHAPES)
        model = self.model(_make, weights, precision)
        algorithm = self.algorithm(
            self.NAME, model, gamma=_GAMMA, lr=_LR, double=double, v_min=_LOW, v_max=_HIGH, eps=1e-8
        )
        algorithm.target_model.set_weights(target_weights, portable=True)
        agent, adam = self.backend.Agent(algorithm), Adam(_LR)
        rows = np.arange(_BATCH)
        for _ in range(3):
            obs, next_obs = rng.normal(size=(2, _BATCH, OBS_DIM))
            action, reward = rng.integers(ACT_DIM, size=_BATCH), rng.normal(size=_BATCH)
            terminal = (rng.random(_BATCH) < 0.3).astype(float)
            importance = rng.uniform(0.2, 1.0, _BATCH) if extras else np.ones(_BATCH)
            discount = _GAMMA ** rng.integers(1, 4, _BATCH) if extras else np.full(_BATCH, _GAMMA)
            possible = rng.random((_BATCH, ACT_DIM)) < 0.5 if extras else np.ones((_BATCH, ACT_DIM), bool)
            possible[rows, rng.integers(ACT_DIM, size=_BATCH)] = True

            values = _q(weights if double else target_weights, next_obs)
            best = np.where(possible, values, -np.inf).argmax(axis=1)
            p_t = np.exp(_log_p(target_weights, next_obs))[rows, :, best]
            m = projected(p_t, reward, discount * (1.0 - terminal), _SUPPORT)

            def each(w: Weights, o: Any = obs, a: Any = action, m: Any = m) -> Any:
                return -(m * _log_p(w, o)[np.arange(_BATCH), :, a]).sum(axis=1)

            def loss(w: Weights, i: Any = importance, each: Any = each) -> Any:
                return (i * each(w)).mean()

            expected = loss(weights)
            divergence = each(weights) + (m * np.log(np.where(m > 0.0, m, 1.0))).sum(axis=1)
            weights = adam.update(weights, gradient(loss, weights, ("fc",)))
            options = {"weights": importance, "discount": discount} if extras else {}
            given = {name: array.astype(precision.dtype) for name, array in options.items()}
            if extras:
                given["next_action_mask"] = possible
            columns = [part.astype(precision.dtype) for part in (reward, next_obs, terminal)]
            found = agent.learn(obs.astype(precision.dtype), action, *columns, **given)
            if extras:
                found, priorities = found
                np.testing.assert_allclose(priorities, divergence, atol=precision.tolerance)
            assert found == pytest.approx(np.real(expected), abs=precision.tolerance)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)

    def test_it_acts_by_the_means_of_the_distributions(self) -> None:
        weights = random_weights(np.random.default_rng(1), _SHAPES)
        algorithm = self.algorithm(self.NAME, self.model(_make, weights), v_min=_LOW, v_max=_HIGH)
        obs = np.random.default_rng(2).normal(size=(50, OBS_DIM)).astype(np.float32)
        agent = self.backend.Agent(algorithm)
        np.testing.assert_allclose(agent.run(algorithm.predict, obs), _q(weights, obs), atol=1e-5)
        np.testing.assert_array_equal(agent.predict(obs), _q(weights, obs).argmax(axis=1))

    def test_the_distribution_of_a_random_reward_is_learned(self) -> None:
        """Rewards are 0 or 1 with equal chance: half of the probability goes to each of these two atoms."""
        rng = np.random.default_rng(3)
        algorithm = self.algorithm(self.NAME, _make(self.backend), lr=0.02, v_min=-1.0, v_max=2.0)
        agent = self.backend.Agent(algorithm)
        obs, ones = np.zeros((64, OBS_DIM), np.float32), np.ones(64)
        for _ in range(300):
            agent.learn(obs, np.zeros(64, int), rng.integers(2, size=64), obs, ones)
        logits = agent.run(algorithm.model.atoms, obs[:1])[0, :, 0]
        p = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(p, [0.0, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0], atol=0.1)

    def identity_agent(self) -> Any:
        model = self.backend.networks.CategoricalNetwork(ACT_DIM, 11, (32,))
        return self.backend.Agent(
            self.algorithm(self.NAME, model, gamma=0.9, lr=0.02, sync_every=10, v_min=0.0, v_max=1.0), seed=9
        )

    def test_it_learns_the_identity_environment(self) -> None:
        rng, agent = np.random.default_rng(8), self.identity_agent()
        exploration = {"epsilon": 0.3} if self.NAME == "C51" else {}
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = agent.sample(obs, **exploration)
            agent.learn(obs, action, action == state, obs, np.ones(64))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95

    @pytest.mark.parametrize(
        ("name", "value"), [("v_min", 20.0), ("v_max", float("nan")), ("gamma", 2.0), ("sync_every", 0)]
    )
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(HyperparameterError, match=name):
            self.algorithm(self.NAME, _make(self.backend), **{name: value})

    def test_an_action_that_the_model_has_no_distribution_for_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm(self.NAME, _make(self.backend)))
        obs = np.zeros((4, OBS_DIM), np.float32)
        with pytest.raises(ValueError, match=r"action must be in 0\.\.2, got 3\.\.3"):
            agent.learn(obs, np.full(4, ACT_DIM), np.zeros(4), obs, np.zeros(4))

    def test_a_model_without_atoms_is_refused(self) -> None:
        with pytest.raises(ModelContractError, match=f"`{self.NAME}`'s model needs to implement `atoms` method"):
            self.algorithm(self.NAME, self.backend.networks.QNetwork(ACT_DIM))

    def test_without_settings_it_has_those_of_the_paper(self) -> None:
        algorithm = self.algorithm(self.NAME, _make(self.backend))
        found = algorithm.gamma, algorithm.lr, algorithm.v_min, algorithm.v_max, algorithm.double
        assert found == (0.99, 2.5e-4, -10.0, 10.0, False)


class RainbowConformance(C51Conformance):
    """Suite of Rainbow."""

    NAME = "Rainbow"

    def identity_agent(self) -> Any:
        model = self.backend.networks.CategoricalNetwork(ACT_DIM, 11, (32,), dueling=True, noisy=0.5)
        settings = {"gamma": 0.9, "lr": 0.01, "sync_every": 10, "v_min": 0.0, "v_max": 1.0}
        return self.backend.Agent(self.algorithm("Rainbow", model, **settings), seed=9)

    def test_it_explores_by_the_noise_of_its_network_alone(self) -> None:
        agent = self.identity_agent()
        obs = np.random.default_rng(2).normal(size=(1, OBS_DIM)).astype(np.float32)
        assert len({int(agent.predict(obs)[0]) for _ in range(50)}) == 1
        assert len({int(agent.sample(obs)[0]) for _ in range(50)}) > 1

    def test_a_network_without_noise_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        self.algorithm("Rainbow", _make(self.backend))
        assert "Atoms has no noisy layers" in caplog.text

    def test_a_dueling_head_has_the_equation_of_the_paper(self) -> None:
        model = self.backend.networks.CategoricalNetwork(ACT_DIM, 5, (), dueling=True)
        agent = self.backend.Agent(self.algorithm("Rainbow", model))
        obs = np.random.default_rng(2).normal(size=(6, OBS_DIM)).astype(np.float32)
        logits, weights = agent.run(model.atoms, obs), model.get_weights(portable=True)
        value = obs @ weights["head.state_value.weight"].T + weights["head.state_value.bias"]
        advantage = obs @ weights["head.advantage.weight"].T + weights["head.advantage.bias"]
        advantage = advantage.reshape(6, 5, ACT_DIM)
        expected = value[:, :, None] + advantage - advantage.mean(axis=2, keepdims=True)
        np.testing.assert_allclose(logits, expected, atol=1e-5)

    def test_without_settings_it_has_those_of_the_paper(self) -> None:
        algorithm = self.algorithm("Rainbow", _make(self.backend))
        found = algorithm.gamma, algorithm.lr, algorithm.v_min, algorithm.v_max, algorithm.double
        assert found == (0.99, 6.25e-5, -10.0, 10.0, True)
