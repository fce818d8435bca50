"""Tests of Ape-X's loop that every backend must pass: the same bits whoever acts, exact resumption, and learning."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from conformance.adapter import Conformance
from conformance.identity import IdentityEnv, discrete_identity
from conformance.models import ACT_DIM, OBS_DIM, Q_SHAPES, actor_critic, q_values
from parl_core.actors import ActorSystem, open_actors
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError
from parl_core.model import Weights
from parl_core.replay import Prioritized, ReplayMemory
from parl_core.training.apex import ApexSettings, train_apex
from parl_core.training.callbacks import StepBudget
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.events import Callback, Ended, Update
from parl_core.training.run import Run

__all__ = ["ApexConformance", "Corridor"]

_LENGTH = 8


class Corridor(gymnasium.Env[Any, Any]):
    """A corridor of `_LENGTH` cells: one action goes right, the others back to the start; only the end rewards.

    By random actions an episode of 3 * `_LENGTH` steps finds the end about once in 300 episodes; by exploring a little
    around what was found it is learned.
    """

    def __init__(self, length: int = _LENGTH) -> None:
        self.observation_space: Any = gymnasium.spaces.Box(0.0, 1.0, (length + 1,), np.float32)
        self.action_space: Any = gymnasium.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._taken = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = self._at + 1 if action == 1 else 0
        self._taken += 1
        there = self._at == self._length
        return self._seen(), float(there), there, not there and self._taken == 3 * self._length, {}

    def _seen(self) -> Any:
        return np.eye(self._length + 1, dtype=np.float32)[self._at]


class _Metrics(Callback):
    def __init__(self) -> None:
        self.failed = self.last = 0.0

    def on_update(self, update: Update) -> None:
        self.failed = update.metrics["actors/failed"]
        if update.episodes:
            self.last = float(np.mean([episode.episode_return for episode in update.episodes]))


class _Failing(IdentityEnv):
    """Raises in one of some steps, each time in the first life of the environment alone."""

    broken = 0

    def step(self, action: Any) -> Any:
        _Failing.broken += 1
        if _Failing.broken in (60, 130):
            raise RuntimeError("the simulator ended")
        return super().step(action)


def _agent(backend: Backend, name: str = "ApeX") -> Any:
    """In the learner's process and in actors."""
    model = q_values(backend) if name == "ApeX" else backend.networks.CategoricalNetwork(ACT_DIM, 11, (8,), noisy=0.5)
    return backend.Agent(getattr(backend.algorithms, name)(model, lr=0.02, sync_every=10, device="cpu"), seed=1)


def _in_corridor(backend: Backend) -> Any:
    model = backend.networks.QNetwork(2, (32,), dueling=True)
    return backend.Agent(backend.algorithms.ApeX(model, gamma=0.95, lr=3e-3, sync_every=50, device="cpu"), seed=2)


_SETTINGS = ApexSettings(
    total_steps=320,
    n_actors=1,
    groups=4,
    envs_per_group=2,
    n_steps=5,
    deterministic=True,
    learning_starts=40,
    train_every=4,
    batch_size=16,
    memory_size=200,
    report_every=80,
)


class ApexConformance(Conformance):
    """Suite of the loop with real algorithms."""

    def trained(
        self,
        n_actors: int = 1,
        actors: ActorSystem | None = None,
        name: str = "ApeX",
        env: Any = IdentityEnv,
        settings: ApexSettings = _SETTINGS,
        **options: Any,
    ) -> tuple[Weights, Ended]:
        make = partial(_agent, self.backend, name)
        self.adapter.seed(3)
        agent = make()
        settings = replace(settings, n_actors=n_actors)
        env_kwargs = {"kind": "discrete"}
        ended = train_apex(agent, make, env, settings, actors=actors, env_kwargs=env_kwargs, seed=5, **options)
        return agent.get_weights(), ended

    @pytest.mark.parametrize(("asked", "made"), [(3, 1), (1, 3)])
    def test_a_memory_of_other_settings_than_those_of_the_actors_is_refused(self, asked: int, made: int) -> None:
        memory = ReplayMemory(200, OBS_DIM, 0, n_envs=2, n_step=made, gamma=0.99, sampling=Prioritized())
        settings = replace(_SETTINGS, n_step=asked)
        with pytest.raises(HyperparameterError, match=f"n_step={asked}, and the ReplayMemory has n_step={made}"):
            self.trained(settings=settings, memory=memory)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["ApeX", "Rainbow"])
    def test_weights_are_the_same_bits_for_any_number_of_actors(self, name: str) -> None:
        alone, _ = self.trained(1, name=name)
        for n_actors in (2, 4):
            np.testing.assert_equal(self.trained(n_actors, name=name)[0], alone)

    @pytest.mark.slow
    def test_weights_are_the_same_bits_with_remote_actors(self) -> None:
        pytest.importorskip("parl_remote")
        with open_actors("remote", cpu_num=2) as actors:
            np.testing.assert_equal(self.trained(2, actors)[0], self.trained(1)[0])

    def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(self, tmp_path: Path) -> None:
        whole, _ = self.trained()
        with Run("apex", tmp_path) as run:
            checkpoints = Checkpoints(run, every=80)
            _, ended = self.trained(checkpoints=checkpoints, callbacks=[StepBudget(160)])
            assert ended.step < 320
        with Run.resume(run.path) as again:
            resumed, ended = self.trained(2, checkpoints=Checkpoints(again, every=80))
        assert ended.step == 320
        np.testing.assert_equal(resumed, whole)

    def test_an_environment_that_raises_is_made_anew_and_the_run_goes_on(self) -> None:
        _Failing.broken, metrics = 0, _Metrics()
        _, ended = self.trained(env=_Failing, callbacks=[metrics])
        assert (ended.step, metrics.failed) == (320, 2.0)

    @pytest.mark.slow
    def test_a_corridor_is_learned_that_needs_exploration(self) -> None:
        settings = ApexSettings(
            total_steps=12_000,
            n_actors=1,
            groups=8,
            n_steps=25,
            learning_starts=500,
            train_every=4,
            batch_size=32,
            memory_size=12_000,
            report_every=2_000,
        )
        make = partial(_in_corridor, self.backend)
        self.adapter.seed(4)
        agent, seen = make(), np.eye(_LENGTH + 1, dtype=np.float32)[:_LENGTH]
        train_apex(agent, make, Corridor, settings, seed=1)
        np.testing.assert_array_equal(agent.predict(seen), np.ones(_LENGTH))

    def test_its_learner_is_double_q_learning_with_the_settings_of_the_paper(self) -> None:
        algorithm = self.algorithm("ApeX", q_values(self.backend))
        assert (algorithm.gamma, algorithm.lr, algorithm.double) == (0.99, 6.25e-5, True)
        weights = {name: np.zeros(shape) for name, shape in Q_SHAPES.items()}
        settings = {"gamma": 0.9, "lr": 0.01, "max_grad_norm": None}
        both = []
        rng = np.random.default_rng(1)
        obs, next_obs = rng.normal(size=(2, 8, OBS_DIM)).astype(np.float32)
        for name, eps in (("ApeX", {"eps": 1e-8}), ("DDQN", {})):
            agent = self.backend.Agent(self.algorithm(name, self.model(q_values, weights), **settings, **eps))
            agent.learn(obs, np.arange(8) % ACT_DIM, np.ones(8), next_obs, np.zeros(8))
            both.append(agent.get_weights())
        np.testing.assert_equal(*both)

    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(8)
        agent = _agent(self.backend)
        for _ in range(150):
            obs, state = discrete_identity(rng, 64)
            action = agent.sample(obs, epsilon=0.3)
            agent.learn(obs, action, action == state, obs, np.ones(64))
        obs, state = discrete_identity(rng, 200)
        assert (agent.predict(obs) == state).mean() > 0.95

    def test_an_algorithm_without_action_values_is_refused(self) -> None:
        agent = self.backend.Agent(self.algorithm("A2C", actor_critic(self.backend)))
        team = self.backend.Agent(self.algorithm("VDN", self.backend.networks.TeamQNetwork(2, 2)))  # a kind of DQN, too
        for one, name in ((agent, "A2C"), (team, "VDN")):
            with pytest.raises(HyperparameterError, match=rf"train_apex trains parl\.Agent around ApeX, DQN.*{name}"):
                train_apex(one, type(one), IdentityEnv, _SETTINGS, env_kwargs={"kind": "discrete"})
