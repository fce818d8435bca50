"""Tests of noisy layers that every backend must pass, alone and in networks of action values."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.adapter import Conformance, Precision, random_weights
from conformance.identity import discrete_identity
from conformance.models import ACT_DIM, OBS_DIM
from parl_core.errors import HyperparameterError, WeightsMismatchError
from parl_core.training.evaluation import evaluate

__all__ = ["NoisyConformance"]

_SHAPES = {
    "head.weight": (ACT_DIM, OBS_DIM),
    "head.bias": (ACT_DIM,),
    "head.weight_sigma": (ACT_DIM, OBS_DIM),
    "head.bias_sigma": (ACT_DIM,),
}


class NoisyConformance(Conformance):
    """Suite of `parl.layers.noisy_fc`."""

    def agent(self, precision: Precision) -> tuple[Any, dict[str, NDArray[Any]]]:
        weights = random_weights(np.random.default_rng(1), _SHAPES)
        model = self.model(lambda backend: backend.networks.QNetwork(ACT_DIM, (), noisy=0.5), weights, precision)
        return self.backend.Agent(self.algorithm("DQN", model, gamma=0.9, lr=0.1), seed=0), weights

    def draws(self, agent: Any, layer: Any, precision: Precision, *noises: NDArray[Any]) -> None:
        """Let a layer draw these numbers, in this order."""
        left = iter(noises)
        layer.noise = lambda size: agent.alg._tensor(next(left).astype(precision.dtype)[:size])

    def test_the_output_is_that_of_the_equations(self, precision: Precision) -> None:
        agent, weights = self.agent(precision)
        rng = np.random.default_rng(2)
        e_out, e_in = rng.normal(size=ACT_DIM), rng.normal(size=OBS_DIM)
        self.draws(agent, agent.alg.model.head, precision, e_out, e_in)
        obs = rng.normal(size=(6, OBS_DIM))
        found = agent.run(agent.alg.model.value, obs.astype(precision.dtype))
        f_out, f_in = (np.sign(e) * np.sqrt(np.abs(e)) for e in (e_out, e_in))
        weight = weights["head.weight"] + weights["head.weight_sigma"] * np.outer(f_out, f_in)
        bias = weights["head.bias"] + weights["head.bias_sigma"] * f_out
        np.testing.assert_allclose(found, obs @ weight.T + bias, atol=precision.tolerance)

    def test_predict_has_no_noise_and_sample_draws_anew(self, precision: Precision) -> None:
        agent, weights = self.agent(precision)
        obs = np.random.default_rng(2).normal(size=(6, OBS_DIM))
        expected = (obs @ weights["head.weight"].T + weights["head.bias"]).argmax(axis=1)
        seen = obs.astype(precision.dtype)
        np.testing.assert_array_equal(agent.predict(seen), expected)
        drawn = {tuple(agent.sample(seen, epsilon=0.0).tolist()) for _ in range(50)}
        assert len(drawn) > 1
        np.testing.assert_array_equal(agent.predict(seen), expected)

    def test_sample_draws_in_evaluation_mode_too(self, precision: Precision) -> None:
        agent, _ = self.agent(precision)
        seen = np.random.default_rng(2).normal(size=(6, OBS_DIM)).astype(precision.dtype)
        agent.eval()
        assert len({tuple(agent.sample(seen, epsilon=0.0).tolist()) for _ in range(50)}) > 1
        assert not agent.alg.model.head.training

    def test_a_stochastic_evaluation_draws(self) -> None:
        """One step an episode, whose return is the action: without noise all of them are equal."""

        class Told(gymnasium.Env[Any, Any]):
            observation_space = gymnasium.spaces.Box(-1.0, 1.0, (OBS_DIM,), np.float32)
            action_space = gymnasium.spaces.Discrete(ACT_DIM)

            def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
                return np.ones(OBS_DIM, np.float32), {}

            def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
                return np.ones(OBS_DIM, np.float32), float(action), True, False, {}

        model = self.backend.networks.CategoricalNetwork(ACT_DIM, 5, (), noisy=5.0)
        agent = self.backend.Agent(self.algorithm("Rainbow", model), seed=0)
        assert len(set(evaluate(agent, Told, 40, at_once=1).returns)) == 1
        assert len(set(evaluate(agent, Told, 40, at_once=1, stochastic=True).returns)) > 1

    def test_an_update_draws_for_the_model_and_for_the_target(self, precision: Precision) -> None:
        """The loss of one row is (r + gamma max (Q' + noise') - (Q + noise))^2, and sigmas learn by the chain rule."""
        agent, weights = self.agent(precision)
        target = random_weights(np.random.default_rng(5), _SHAPES)
        agent.alg.target_model.set_weights(target, portable=True)
        rng = np.random.default_rng(3)
        noises = rng.normal(size=(2, 2, OBS_DIM))
        self.draws(agent, agent.alg.model.head, precision, *noises[0])
        self.draws(agent, agent.alg.target_model.head, precision, *noises[1])
        obs, next_obs = rng.normal(size=(2, 1, OBS_DIM))

        def values(w: Any, noise: NDArray[Any], seen: NDArray[Any]) -> NDArray[Any]:
            e_out, e_in = np.sign(noise) * np.sqrt(np.abs(noise))
            e_out = e_out[:ACT_DIM]
            weight = w["head.weight"] + w["head.weight_sigma"] * np.outer(e_out, e_in)
            return np.asarray(seen @ weight.T + w["head.bias"] + w["head.bias_sigma"] * e_out)

        error = 0.5 + 0.9 * values(target, noises[1], next_obs).max() - values(weights, noises[0], obs)[0, 1]
        columns = [np.asarray(part, precision.dtype) for part in ([0.5], next_obs, [0.0])]
        loss = agent.learn(obs.astype(precision.dtype), np.array([1]), *columns)
        assert loss == pytest.approx(error**2, abs=10.0 * precision.tolerance)
        # Adam's first step is lr in the direction of each gradient; the sign of that of a sigma has the noise's.
        found = agent.alg.model.get_weights(portable=True)
        moved = found["head.bias_sigma"] - weights["head.bias_sigma"]
        direction = np.sign(error) * np.sign(noises[0][0][1])
        np.testing.assert_allclose(moved, [0.0, 0.1 * direction, 0.0], atol=1e-5)

    def test_weights_start_as_in_the_paper(self) -> None:
        model = self.backend.networks.QNetwork(50, (), noisy=0.4)
        agent = self.backend.Agent(self.algorithm("DQN", model))
        agent.predict(np.zeros((2, 16), np.float32))
        weights = model.get_weights(portable=True)
        for name in ("weight", "bias"):
            np.testing.assert_allclose(weights[f"head.{name}_sigma"], 0.4 / 4.0)
            values = np.abs(weights[f"head.{name}"])
            assert 0.2 < values.max() <= 0.25
        other = self.backend.networks.QNetwork(50, (), noisy=0.4)
        other.set_weights(weights, portable=True)
        np.testing.assert_array_equal(other.get_weights(portable=True)["head.weight"], weights["head.weight"])

    def test_weights_of_a_layer_without_noise_do_not_fit(self) -> None:
        plain = self.backend.networks.QNetwork(ACT_DIM, ())
        plain.value(self.algorithm("DQN", plain)._tensor(np.zeros((2, OBS_DIM), np.float32)))
        noisy = self.backend.networks.QNetwork(ACT_DIM, (), noisy=0.5)
        with pytest.raises(WeightsMismatchError, match="sigma"):
            noisy.set_weights(plain.get_weights())

    @pytest.mark.slow
    @pytest.mark.parametrize("network", ["QNetwork", "QuantileNetwork"])
    def test_noise_explores_where_epsilon_is_0(self, network: str) -> None:
        rng = np.random.default_rng(8)
        model = getattr(self.backend.networks, network)(ACT_DIM, hidden=(32,), noisy=0.5)
        algorithm = {"QNetwork": "DQN", "QuantileNetwork": "QRDQN"}[network]
        agent = self.backend.Agent(self.algorithm(algorithm, model, gamma=0.9, lr=0.01, sync_every=10), seed=9)
        for _ in range(200):
            obs, state = discrete_identity(rng, 8)
            action = agent.sample(obs, epsilon=0.0)
            agent.learn(obs, action, action == state, obs, np.ones(8))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95

    @pytest.mark.parametrize("sigma", [0.0, -1.0, float("inf")])
    def test_a_sigma_that_is_none_is_refused(self, sigma: float) -> None:
        layers: Any = self.backend.layers
        with pytest.raises(HyperparameterError, match="sigma"):
            layers.noisy_fc(3, sigma)
