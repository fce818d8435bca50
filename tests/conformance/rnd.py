"""Tests of random network distillation that every backend must pass, alone and as a second reward of PPO."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.adapter import Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import gradient, layers
from conformance.models import HIDDEN, OBS_DIM, actor_critic
from conformance.reference import Adam
from parl_core.backends import Backend
from parl_core.env.goals import SparseGrid
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights
from parl_core.training.callbacks import StepBudget
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import evaluate
from parl_core.training.novelty import NoveltyReward
from parl_core.training.on_policy import OnPolicySettings, train_on_policy
from parl_core.training.run import Run

__all__ = ["RNDConformance"]

_FEATURES, _BATCH, _LR, _COEF = 3, 12, 0.01, 0.7
_OUTPUTS = {"r": _FEATURES, "p": _FEATURES, "v": 1}
_SHAPES = {
    name: shape
    for network, outputs in _OUTPUTS.items()
    for name, shape in {
        f"{network}1.weight": (HIDDEN, OBS_DIM),
        f"{network}1.bias": (HIDDEN,),
        f"{network}2.weight": (outputs, HIDDEN),
        f"{network}2.bias": (outputs,),
    }.items()
}


def _make(backend: Backend) -> Any:
    fc: Any = backend.layers.fc

    class Novelty(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.r1, self.r2 = fc(size=HIDDEN, act="tanh"), fc(size=_FEATURES)
            self.p1, self.p2 = fc(size=HIDDEN, act="tanh"), fc(size=_FEATURES)
            self.v1, self.v2 = fc(size=HIDDEN, act="tanh"), fc(size=1)

        def random(self, obs: Any) -> Any:
            return self.r2(self.r1(obs))

        def predicted(self, obs: Any) -> Any:
            return self.p2(self.p1(obs))

        def value(self, obs: Any) -> Any:
            return self.v2(self.v1(obs))

        def get_learned_params(self) -> Any:
            return [one for layer in (self.p1, self.p2, self.v1, self.v2) for one in layer.parameters()]

    return Novelty()


def _of(weights: Weights, network: str, obs: Any) -> Any:
    return layers(weights, (f"{network}1", f"{network}2"), obs)


class RNDConformance(Conformance):
    """Suite of RND and of `NoveltyReward`."""

    def test_three_updates_agree_with_the_reference(self, precision: Precision) -> None:
        rng = np.random.default_rng(1)
        weights = random_weights(rng, _SHAPES)
        settings = {"lr": _LR, "value_loss_coef": _COEF}
        agent = self.backend.Agent(self.algorithm("RND", self.model(_make, weights, precision), **settings))
        adam = Adam(_LR)
        for _ in range(3):
            obs, returns = rng.normal(size=(_BATCH, OBS_DIM)), rng.normal(size=_BATCH)
            random = _of(weights, "r", obs)

            def loss(w: Weights, o: Any = obs, wanted: Any = random, g: Any = returns) -> Any:
                novelty = ((_of(w, "p", o) - wanted) ** 2).mean(axis=1)
                return novelty.mean() + _COEF * ((_of(w, "v", o)[:, 0] - g) ** 2).mean()

            seen = obs.astype(precision.dtype)
            novelty = ((_of(weights, "p", obs) - random) ** 2).mean(axis=1)
            np.testing.assert_allclose(agent.predict(seen), novelty, atol=precision.tolerance)
            np.testing.assert_allclose(agent.value(seen), _of(weights, "v", obs)[:, 0], atol=precision.tolerance)
            expected = np.real(loss(weights))
            weights = adam.update(weights, gradient(loss, weights, ("p", "v")))
            found = agent.learn(seen, np.zeros(_BATCH, int), returns.astype(precision.dtype))
            assert found == pytest.approx(expected, abs=precision.tolerance)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, precision.tolerance)

    def test_what_was_seen_often_is_less_new(self) -> None:
        agent = self.backend.Agent(self.algorithm("RND", self.backend.networks.NoveltyNetwork(16, (32,)), lr=1e-2))
        rng = np.random.default_rng(2)
        old, new = rng.normal(size=(2, 32, OBS_DIM)).astype(np.float32)
        before = agent.predict(new).mean()
        for _ in range(200):
            agent.learn(old, np.zeros(32, int), np.zeros(32))
        assert agent.predict(old).mean() < 0.1 * before
        assert agent.predict(new).mean() > 3.0 * agent.predict(old).mean()

    def test_the_advantage_is_the_weighted_sum_of_both(self) -> None:
        rng = np.random.default_rng(3)
        rnd = self.backend.Agent(self.algorithm("RND", self.backend.networks.NoveltyNetwork(8, (16,))))
        obs, last = rng.normal(size=(6, 2, OBS_DIM)).astype(np.float32), np.zeros((2, OBS_DIM), np.float32)
        own = rng.normal(size=(6, 2)).astype(np.float32)

        class Steps:
            def __init__(self) -> None:
                self.obs = obs

        found = {}
        for coef, reward_coef in ((0.0, 3.0), (1.0, 0.0), (2.0, 3.0)):
            novelty = NoveltyReward(rnd, coef=coef, reward_coef=reward_coef)
            found[coef, reward_coef] = novelty.advantage(own, Steps(), last)
        np.testing.assert_allclose(found[0.0, 3.0], 3.0 * own, rtol=1e-6)
        np.testing.assert_allclose(found[2.0, 3.0], 3.0 * own + 2.0 * found[1.0, 0.0], rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_a_grid_that_ppo_does_not_find_the_corner_of_is_learned_with_novelty(self) -> None:
        assert self._played(novel=False) == 0.0
        assert self._played(novel=True) > 0.9

    def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(self, tmp_path: Path) -> None:
        whole = self._trained(1_600)
        with Run("rnd", tmp_path) as run:
            checkpoints = Checkpoints(run, every=800)
            self._trained(1_600, checkpoints=checkpoints, callbacks=[StepBudget(800)])
        with Run.resume(run.path) as again:
            resumed = self._trained(1_600, checkpoints=Checkpoints(again, every=800))
        np.testing.assert_equal(resumed, whole)

    def test_what_a_network_of_ones_own_changes_is_in_its_state(self) -> None:
        network = type(_make(self.backend))

        class Counting(network):  # type: ignore[valid-type,misc]  # the base is known only at run time
            def __init__(self) -> None:
                super().__init__()
                self.seen, self.rng = np.zeros(3), np.random.default_rng(7)

            def predicted(self, obs: Any) -> Any:
                self.seen = self.seen + 1.0
                return super().predicted(obs)

        def made() -> Any:
            agent = self.backend.Agent(self.algorithm("RND", Counting()))
            agent.predict(np.zeros((2, OBS_DIM), np.float32))
            return agent

        agent, other = made(), made()
        agent.learn(np.zeros((2, OBS_DIM), np.float32), np.zeros(2, int), np.zeros(2, np.float32))
        agent.alg.model.rng.random(5)
        NoveltyReward(other).set_state(NoveltyReward(agent).get_state())
        assert agent.alg.model.seen[0] > 0.0
        np.testing.assert_array_equal(other.alg.model.seen, agent.alg.model.seen)
        assert other.alg.model.rng.random() == agent.alg.model.rng.random()

    @pytest.mark.parametrize(
        ("name", "value"), [("coef", -1.0), ("gamma", 2.0), ("epochs", 0), ("share", 0.0), ("clip", 0.0)]
    )
    def test_settings_out_of_range_are_refused_by_name(self, name: str, value: Any) -> None:
        rnd = self.backend.Agent(self.algorithm("RND", _make(self.backend)))
        options: dict[str, Any] = {name: value}
        with pytest.raises(HyperparameterError, match=name):
            NoveltyReward(rnd, **options)

    def test_an_agent_around_another_algorithm_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("A2C", actor_critic(self.backend)))
        with pytest.raises(HyperparameterError, match=r"needs a parl\.Agent around RND"):
            NoveltyReward(agent)

    def test_a_model_without_a_random_network_is_refused(self) -> None:
        with pytest.raises(ModelContractError, match="`RND`'s model needs to implement `predicted` method"):
            self.algorithm("RND", actor_critic(self.backend))

    def _trained(self, steps: int, *, novel: bool = True, **watched: Any) -> Any:
        agent = self._explored(steps, novel=novel, **watched)
        return agent.get_weights()

    def _played(self, *, novel: bool) -> float:
        agent = self._explored(40_000 if novel else 16_000, novel=novel)
        return evaluate(agent, partial(SparseGrid, 16), 5, seed=1, stochastic=True).mean

    def _explored(self, steps: int, *, novel: bool, **watched: Any) -> Any:
        self.adapter.seed(4)
        networks = self.backend.networks
        agent = self.backend.Agent(self.algorithm("PPO", networks.ActorCritic(4, (64, 64))), seed=0)
        rnd = self.backend.Agent(self.algorithm("RND", networks.NoveltyNetwork(32, (64,)), lr=1e-3))
        settings = OnPolicySettings(
            total_steps=steps, n_steps=100, epochs=4, minibatch_size=200, lr=1e-3, clip=0.2, entropy_coef=0.01
        )
        with make_vector_env(partial(SparseGrid, 16), 8) as envs:
            novelty = NoveltyReward(rnd) if novel else None
            train_on_policy(agent, envs, settings, novelty=novelty, seed=3, **watched)
        return agent
