"""Tests of actors and a learner that every backend must pass: the same bits whoever acts, and learning."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.adapter import Conformance
from conformance.identity import IdentityEnv, continuous_identity
from conformance.models import actor_critic, gaussian_actor_critic
from parl_core.actors import ActorSystem, InProcessActors, open_actors
from parl_core.backends import Backend
from parl_core.model import Weights
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.events import Callback, Update

__all__ = ["ActorLearnerConformance"]

_STEPS = 5


class _Returns(Callback):
    def __init__(self) -> None:
        self.last = 0.0

    def on_update(self, update: Update) -> None:
        self.last = float(np.mean([episode.episode_return for episode in update.episodes]))


class ActorLearnerConformance(Conformance):
    """Suite of the loop with real algorithms."""

    @pytest.mark.parametrize("inference", ["actors", "learner"])
    @pytest.mark.parametrize("name", ["IMPALA", "gaussian IMPALA", "A2C", "gaussian A2C", "PPO", "gaussian PPO"])
    def test_weights_are_the_same_bits_for_any_number_of_actors(self, name: str, inference: str) -> None:
        alone = self._trained(name, inference, 1)
        for n_actors in (2, 4):
            np.testing.assert_equal(self._trained(name, inference, n_actors), alone)

    @pytest.mark.slow
    def test_weights_are_the_same_bits_with_remote_actors(self) -> None:
        pytest.importorskip("parl_remote")
        with open_actors("remote", cpu_num=2) as actors:
            for name in ("IMPALA", "gaussian IMPALA", "gaussian A2C"):
                there = self._trained(name, "actors", 2, actors)
                np.testing.assert_equal(there, self._trained(name, "actors", 1))

    @pytest.mark.parametrize(
        ("name", "lag", "inference", "steps"),
        [("IMPALA", 2, "actors", 6_000), ("A3C", 1, "learner", 6_000), ("PPO", 0, "actors", 3_000)],
    )
    def test_it_learns_the_identity_environment(self, name: str, lag: int, inference: str, steps: int) -> None:
        returns = _Returns()
        sizes: dict[str, Any] = {"total_steps": steps, "report_every": steps // 6}
        sizes |= {"n_steps": _STEPS, "envs_per_group": 8}
        settings = ActorLearnerSettings(**sizes, **_passes(name), max_lag=lag, inference=inference)
        make = partial(_agent, self.backend, name)
        self.adapter.seed(1)
        train_actor_learner(
            make(), make, IdentityEnv, settings, env_kwargs={"kind": "discrete"}, callbacks=[returns], seed=1
        )
        assert returns.last > 0.9

    @pytest.mark.slow
    def test_a_gaussian_policy_with_v_trace_learns_the_identity_environment(self) -> None:
        returns = _Returns()
        sizes: dict[str, Any] = {"total_steps": 16_000, "n_steps": _STEPS, "envs_per_group": 8, "report_every": 2_000}
        make = partial(_agent, self.backend, "gaussian IMPALA")
        self.adapter.seed(1)
        settings = ActorLearnerSettings(**sizes, max_lag=2)
        begun, agent = {"kind": "continuous"}, make()
        train_actor_learner(agent, make, IdentityEnv, settings, env_kwargs=begun, callbacks=[returns], seed=1)
        assert returns.last > -0.8  # actions at random have -3 and less, one that ignores what is shown -1
        obs, right = continuous_identity(np.random.default_rng(2), 200)
        assert np.abs(np.clip(agent.predict(obs), -1.0, 1.0) - right).mean() < 0.25

    def _trained(self, name: str, inference: str, n_actors: int, actors: ActorSystem | None = None) -> Weights:
        """Weights after some updates on four groups of environments."""
        settings = ActorLearnerSettings(
            total_steps=160,
            n_actors=n_actors,
            groups=4,
            envs_per_group=2,
            n_steps=_STEPS,
            batch_fragments=4,
            max_lag=1 if name.endswith("IMPALA") else 0,
            deterministic=True,
            inference=inference,
            **_passes(name),
        )
        kind = "continuous" if name.startswith("gaussian") else "discrete"
        make = partial(_agent, self.backend, name)
        self.adapter.seed(3)
        agent = make()
        train_actor_learner(
            agent, make, IdentityEnv, settings, actors=actors or InProcessActors(), env_kwargs={"kind": kind}, seed=5
        )
        weights: Weights = agent.get_weights()
        return weights


def _agent(backend: Backend, name: str) -> Any:
    """In the learner's process and in actors."""
    model = gaussian_actor_critic if name.startswith("gaussian") else actor_critic
    settings: dict[str, Any] = {"continuous_action": True} if name.startswith("gaussian") else {}
    if name.endswith("IMPALA"):
        settings["sample_batch_steps"] = _STEPS
    kind = getattr(backend.algorithms, name.removeprefix("gaussian "))
    rate = "initial_lr" if name.endswith("PPO") else "learning_rate"
    return backend.Agent(kind(model(backend), **{rate: 0.01}, device="cpu", **settings))


def _passes(name: str) -> dict[str, Any]:
    return {"epochs": 2, "minibatch_size": 16} if name.endswith("PPO") else {}
