"""Tests of CrossQ that every backend must pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, in_pairs, random_weights
from conformance.complex_step import gradient, layers, minimum
from conformance.continuous import BATCH, LR, columns_of, some_batch
from conformance.continuous_models import SQUASHED_SHAPES
from conformance.models import ACT_DIM, HIDDEN, OBS_DIM
from conformance.reference import Adam
from conformance.reference_actors import drawn_of
from parl_core.backends import Backend
from parl_core.errors import HyperparameterError
from parl_core.model import Weights

__all__ = ["CrossQConformance"]

_CRITICS, _GAMMA = ("qa", "qb"), 0.9
_NORMS = {f"{name}n.{part}": (HIDDEN,) for name in _CRITICS for part in ("weight", "bias")}
_STATISTICS = {f"{name}n.{part}": (HIDDEN,) for name in _CRITICS for part in ("running_mean", "running_var")}
_SHAPES = {**SQUASHED_SHAPES, **_NORMS, **_STATISTICS}


def _make(backend: Backend) -> Any:
    parl_layers: Any = backend.layers

    class Normalised(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            for name in ("pi", *_CRITICS):
                setattr(self, f"{name}1", parl_layers.fc(size=HIDDEN, act="tanh"))
                setattr(self, f"{name}2", parl_layers.fc(size=ACT_DIM if name == "pi" else 1))
            for name in _CRITICS:  # that keeps its statistics, so that a reference need not know how they move
                setattr(self, f"{name}n", parl_layers.batch_norm(momentum=1.0))
            self.spread = parl_layers.fc(size=ACT_DIM)

        def policy(self, obs: Any) -> Any:
            hidden = self.pi1(obs)
            return self.pi2(hidden), self.spread(hidden)

        def value(self, obs: Any, action: Any) -> Any:
            both = parl_layers.concat([obs, action], axis=1)
            return tuple(getattr(self, f"{n}2")(getattr(self, f"{n}n")(getattr(self, f"{n}1")(both))) for n in _CRITICS)

        def get_actor_params(self) -> Any:
            return [parameter for part in (self.pi1, self.pi2, self.spread) for parameter in part.parameters()]

    return Normalised()


class CrossQConformance(Conformance):
    """Suite of CrossQ."""

    def agent(self, precision: Precision = FLOAT32, seed: int = 1, **settings: Any) -> Any:
        rng = np.random.default_rng(seed)
        weights = random_weights(rng, _SHAPES)
        weights |= {name: rng.uniform(0.5, 2.0, HIDDEN) for name in _STATISTICS if name.endswith("var")}
        model = self.model(_make, weights, precision)
        given = {"gamma": _GAMMA, "actor_lr": LR, "critic_lr": LR, "policy_freq": 1, **settings}
        return self.backend.Agent(self.algorithm("CrossQ", model, **given), seed=seed)

    @in_pairs(alpha={"learned": None, "fixed": 0.3}, extras={"one_step": False, "n_step_prioritised": True})
    def test_four_updates_agree_with_the_reference(
        self, precision: Precision, alpha: float | None, extras: bool
    ) -> None:
        rng = np.random.default_rng(1)
        agent = self.agent(precision, alpha=alpha, policy_freq=2)
        weights = {name: a.astype(np.float64) for name, a in agent.alg.model.get_weights(portable=True).items()}
        actor, critics, temperature, log_alpha = Adam(LR), Adam(LR), Adam(LR), {"": np.zeros(())}
        for update in range(1, 5):
            batch = some_batch(rng, extras=extras)
            noises = [rng.normal(size=(BATCH, ACT_DIM)) for _ in range(2)]
            waiting = iter(noises)
            agent.alg._noise = lambda _, w=waiting: agent.alg._tensor(next(w).astype(precision.dtype))
            now = float(np.exp(log_alpha[""])) if alpha is None else alpha
            following, log_prob = drawn_of(weights, batch.next_obs, noises[0])
            obs, action = np.concatenate([batch.obs, batch.next_obs]), np.concatenate([batch.action, following])
            v_t = np.minimum(*(_q(weights, name, obs, action)[BATCH:] for name in _CRITICS)) - now * log_prob
            goal = batch.reward + batch.discount * (1.0 - batch.terminal) * v_t

            def critic_loss(w: Weights, b: Any = batch, g: Any = goal, o: Any = obs, a: Any = action) -> Any:
                return sum((b.weights * (_q(w, name, o, a)[:BATCH] - g) ** 2).mean() for name in _CRITICS)

            losses = [critic_loss(weights), None]
            error = goal - np.mean([_q(weights, name, obs, action)[:BATCH] for name in _CRITICS], axis=0)
            slope = gradient(critic_loss, weights, ("q",))
            weights = critics.update(weights, {name: s for name, s in slope.items() if name not in _STATISTICS})
            if update % 2 == 0:

                def actor_loss(w: Weights, b: Any = batch, a: float = now, n: Any = noises[1]) -> Any:
                    action, log_prob = drawn_of(w, b.obs, n)
                    values = (_q(w, name, b.obs, action, running=True) for name in _CRITICS)
                    return (a * log_prob - minimum(*values)).mean()

                losses[1] = actor_loss(weights)
                log_prob = drawn_of(weights, batch.obs, noises[1])[1]
                weights = actor.update(weights, gradient(actor_loss, weights, ("pi", "spread")))
                if alpha is None:
                    log_alpha = temperature.update(log_alpha, {"": -(log_prob.mean() - ACT_DIM)})
            given = {"weights": batch.weights, "discount": batch.discount} if extras else {}
            cast = {name: array.astype(precision.dtype) for name, array in given.items()}
            found = agent.learn(*columns_of(batch, precision), **cast)
            close = precision.tolerance
            np.testing.assert_allclose(found[0], losses[0], rtol=close, atol=close)
            assert found[1] == (None if losses[1] is None else pytest.approx(losses[1], rel=close, abs=close))
            if extras:
                np.testing.assert_allclose(found[2], error, rtol=close, atol=close)
        assert_weights_close(agent.alg.model.get_weights(portable=True), weights, 2 * precision.tolerance)

    def test_a_model_without_batch_normalisation_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        self.algorithm("CrossQ", _make(self.backend))
        assert not caplog.text
        self.algorithm("CrossQ", self.backend.networks.SquashedActorCritic(ACT_DIM, (8,)))
        assert caplog.text.count("SquashedActorCritic has no batch normalisation") == 1

    def test_there_is_no_target(self) -> None:
        agent = self.agent()
        agent.learn(*columns_of(some_batch(np.random.default_rng(2)), FLOAT32))
        assert not hasattr(agent.alg, "target_model")
        assert not any(name.startswith("target") for name in agent.alg.get_state().arrays)

    def test_statistics_move_by_the_joint_batch_alone(self) -> None:
        """Critics see one batch an update, of both halves; the actor's step does not move their statistics."""
        model = self.backend.networks.BatchNormActorCritic(ACT_DIM, (8,))
        agent = self.backend.Agent(self.algorithm("CrossQ", model, actor_lr=1e-9, critic_lr=1e-9, policy_freq=1))
        batch = some_batch(np.random.default_rng(2))
        columns = columns_of(batch, FLOAT32)
        agent.alg.settle_shapes(columns[0], columns[1])
        agent.alg._noise = lambda like: like * 0.0
        following = agent.predict(columns[3])  # in evaluation mode, as the update draws them
        agent.learn(*columns)
        inputs = np.concatenate(
            [np.concatenate([batch.obs, batch.next_obs]), np.concatenate([batch.action, following])], axis=1
        )
        weights = agent.alg.model.get_weights(portable=True)
        found = {name: array for name, array in weights.items() if name.endswith("running_mean")}
        of_critic = found["critic_model.0.0.0.running_mean"]
        np.testing.assert_allclose(of_critic, 0.01 * inputs.mean(axis=0), atol=1e-5)
        of_actor = found["actor_model.0.0.running_mean"]  # by its own loss, of the observations
        np.testing.assert_allclose(of_actor, 0.01 * batch.obs.mean(axis=0), atol=1e-5)

    def test_modes_are_as_before_behind_an_update(self) -> None:
        agent = self.agent()
        modes = []
        for mode in ("train", "eval"):
            getattr(agent.alg, mode)()
            agent.alg.learn(*(agent.alg._tensor(c) for c in columns_of(some_batch(np.random.default_rng(2)), FLOAT32)))
            modes.append({layer.training for layer in agent.alg._layers_by_mode()})
        assert modes == [{True}, {False}]

    @pytest.mark.slow
    def test_it_learns_the_identity_environment(self) -> None:
        rng = np.random.default_rng(8)
        model = self.backend.networks.BatchNormActorCritic(1, (32, 32))
        rates = {"actor_lr": 0.003, "critic_lr": 0.01}
        agent = self.backend.Agent(self.algorithm("CrossQ", model, alpha=0.01, policy_freq=1, **rates), seed=9)
        for _ in range(300):
            obs = rng.uniform(-1.0, 1.0, (64, OBS_DIM)).astype(np.float32)
            action = rng.uniform(-1.0, 1.0, (64, 1)).astype(np.float32)
            agent.learn(obs, action, -((action - 0.5 * obs[:, :1]) ** 2)[:, 0], obs, np.ones(64))
        obs = rng.uniform(-1.0, 1.0, (200, OBS_DIM)).astype(np.float32)
        assert np.abs(agent.predict(obs) - 0.5 * obs[:, :1]).mean() < 0.15

    def test_a_saved_agent_goes_on_as_if_nothing_had_happened(self, tmp_path: Path) -> None:
        saved, restored = self.agent(policy_freq=2), self.agent(seed=2, policy_freq=2)
        for agent in (saved, restored):
            agent.alg._noise = lambda like: like * 0.0 + 0.5
        for i in range(3):
            saved.learn(*columns_of(some_batch(np.random.default_rng(i)), FLOAT32))
        saved.save(tmp_path / "agent.ckpt")
        restored.restore(tmp_path / "agent.ckpt")
        columns = columns_of(some_batch(np.random.default_rng(5)), FLOAT32)
        assert restored.learn(*columns) == saved.learn(*columns)

    def test_compiling_and_settings_out_of_range_are_refused(self) -> None:
        with pytest.raises(HyperparameterError, match="CrossQ switches between training and evaluation mode"):
            self.algorithm("CrossQ", _make(self.backend), compile=True)
        with pytest.raises(HyperparameterError, match="policy_freq"):
            self.algorithm("CrossQ", _make(self.backend), policy_freq=0)


def _q(weights: Weights, name: str, obs: Any, action: Any, *, running: bool = False) -> Any:
    hidden = np.tanh(layers(weights, (f"{name}1",), np.concatenate([obs, action], axis=1)))
    mean, var = hidden.mean(axis=0), ((hidden - hidden.mean(axis=0)) ** 2).mean(axis=0)
    if running:
        mean, var = weights[f"{name}n.running_mean"], weights[f"{name}n.running_var"]
    scaled = (hidden - mean) / np.sqrt(var + 1e-5)
    normalised = scaled * weights[f"{name}n.weight"] + weights[f"{name}n.bias"]
    return layers(weights, (f"{name}2",), normalised)[:, 0]
