"""An algorithm that a user writes with the facade's names alone is the same program on both backends."""

import copy
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl
from parl_core.env.joint import make_joint_env
from parl_core.env.vector import make_vector_env
from parl_core.training import _requirements
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.events import Callback, Update
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy

RATE = 0.5


class Line(parl.Model):
    def __init__(self) -> None:
        self.out = parl.layers.fc(size=1)

    def forward(self, obs: Any) -> Any:
        return self.out(obs)


class LeastSquares(parl.Algorithm):
    def __init__(self, model: parl.Model) -> None:
        super().__init__(model)
        self.optimizer = parl.optim.Adam(model, lr=RATE)

    def learn(self, obs: Any, wanted: Any) -> Any:
        loss = parl.layers.reduce_mean(parl.layers.square_error_cost(self.model(obs), wanted))
        self.optimizer.minimize(loss)
        return loss.detach()


OBS, WANTED = np.array([[1.0, -2.0]], np.float32), np.array([[1000.0]], np.float32)


def new_agent() -> parl.Agent:
    model = Line()
    model.set_weights({"out.weight": np.zeros((1, 2), np.float32), "out.bias": np.zeros(1, np.float32)}, portable=True)
    return parl.Agent(LeastSquares(model))


def test_its_first_step_moves_every_weight_by_the_learning_rate() -> None:
    agent = new_agent()
    assert agent.learn(OBS, WANTED) == 1e6
    weights = agent.alg.model.get_weights(portable=True)
    np.testing.assert_allclose(weights["out.weight"], [[RATE, -RATE]], rtol=1e-5)
    np.testing.assert_allclose(weights["out.bias"], [RATE], rtol=1e-5)


def test_its_optimizer_is_saved_with_the_agent(tmp_path: Path) -> None:
    agent, other = new_agent(), new_agent()
    agent.learn(OBS, WANTED)
    agent.save(tmp_path / "agent.ckpt")
    other.restore(tmp_path / "agent.ckpt")
    for one in (agent, other):
        one.learn(OBS, -WANTED)  # where Adam goes from here depends on its moments
    for name, array in agent.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array)


class Moving(LeastSquares):
    """Learns with a weight that decays, a running mean, an array and numbers of its own."""

    def __init__(self, model: parl.Model) -> None:
        super().__init__(model)
        self.limit, self.weight, self.small, self.calls = 1e9, 1.0, np.float32(0.1), 0
        self.seen, self.mean, self._last = np.zeros(2), None, 0.0
        self.least: float | None = None

    def learn(self, obs: Any, wanted: Any) -> Any:
        self.weight, self.small, self.calls = 0.9 * self.weight, self.small * np.float32(1.1), self.calls + 1
        self.seen += self.calls
        self.mean = obs if self.mean is None else 0.9 * self.mean + 0.1 * obs
        self._last = float(self.seen.sum()) * self.weight + float(self.small)
        self.least = self._last if self.least is None else min(self.least, self._last)
        return super().learn(obs - self.mean + self._last, wanted * self.weight + self.least)


def moving() -> parl.Agent:
    return parl.Agent(Moving(new_agent().alg.model))


def test_numbers_and_tensors_that_change_are_saved_with_the_agent(tmp_path: Path) -> None:
    agent, other = moving(), moving()
    agent.save(tmp_path / "first.ckpt")
    for _ in range(3):
        agent.learn(OBS, WANTED)
    agent.save(tmp_path / "agent.ckpt")
    other.restore(tmp_path / "agent.ckpt")
    assert (other.alg.calls, other.alg.weight, type(other.alg.small)) == (3, agent.alg.weight, np.float32)
    assert other.alg.least == agent.alg.least is not None
    for _ in range(2):
        assert other.learn(2 * OBS, WANTED) == agent.learn(2 * OBS, WANTED)
    other.restore(tmp_path / "first.ckpt")
    assert (other.alg.calls, other.alg.weight, other.alg.limit) == (0, 1.0, 1e9)
    assert (other.alg.mean, other.alg.least) == (None, None)
    np.testing.assert_array_equal(other.alg.seen, 0.0)


class WithHeads(parl.Algorithm):
    """Has models in a collection that is no plain dictionary."""

    def __init__(self) -> None:
        super().__init__(parl.networks.QNetwork(2))
        self.heads = OrderedDict(main=self.model, own=parl.networks.QNetwork(2))

    def predict(self, obs: Any) -> Any:
        return sum(head.value(obs) for head in self.heads.values())


@pytest.mark.parametrize("older", [False, True])
def test_models_in_collections_of_other_classes_are_restored_unless_an_older_file_lacks_them(
    older: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saved, restored = WithHeads(), WithHeads()
    for algorithm in (saved, restored):
        parl.Agent(algorithm).predict(np.zeros((1, 4), np.float32))
    state, before = saved.get_state(), restored.heads["own"].get_weights()
    if older:
        arrays = {name: array for name, array in state.arrays.items() if not name.startswith("heads.")}
        state = replace(state, arrays=arrays)
    restored.set_state(state)
    np.testing.assert_equal(restored.get_weights(), saved.get_weights())
    np.testing.assert_equal(restored.heads["own"].get_weights(), before if older else saved.heads["own"].get_weights())
    warned = ["WithHeads.heads.own keeps its weights: the restored state has none"]
    assert [record.getMessage() for record in caplog.records] == (warned if older else [])


def test_an_unknown_optimizer_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="backend has no optim 'SGD'; it has Adam"):
        _ = parl.optim.SGD


class Reported(Callback):
    """The losses that the loop reports of each update."""

    def __init__(self) -> None:
        self.losses: list[dict[str, float]] = []

    def on_update(self, update: Update) -> None:
        self.losses.append(dict(update.losses))


def make_climbing() -> Any:
    return make_joint_env("climbing")


_MODELS: dict[str, Any] = {
    "DQN": ("CartPole-v1", lambda: parl.networks.QNetwork(2)),
    "PPO": ("CartPole-v1", lambda: parl.networks.ActorCritic(2)),
    "A2C": ("CartPole-v1", lambda: parl.networks.ActorCritic(2)),
    "PolicyGradient": ("CartPole-v1", lambda: parl.networks.PolicyNetwork(2)),
    "VDN": (make_climbing, lambda: parl.networks.TeamQNetwork(2, 3)),
    "MAPPO": (make_climbing, lambda: parl.networks.CentralActorCritic(2, 3)),
}


@pytest.mark.parametrize("kind", _MODELS)
def test_figures_that_a_loss_names_beside_the_algorithms_own_are_reported(kind: str) -> None:
    base: Any = getattr(parl.algorithms, kind)

    class Telling(base):  # type: ignore[misc]  # the base is known only at run time
        counted = 0

        def loss(self, *args: Any) -> Any:
            loss, figures = super().loss(*args)
            self.counted += 1
            whole = loss.detach() * 0.0
            return loss, {**figures, "count": whole + self.counted, "rows": whole.reshape([1])}

    env, model = _MODELS[kind]
    reported: dict[type, list[dict[str, float]]] = {}
    for algorithm in (base, Telling):
        callback, agent = Reported(), parl.Agent(algorithm(model()), seed=0)
        with make_vector_env(env, 2) as envs:
            if kind in ("DQN", "VDN"):
                learning: Any = {"learning_starts": 8, "batch_size": 4, "memory_size": 40, "train_every": 2}
                off = OffPolicySettings(total_steps=40, report_every=20, **learning)
                train_off_policy(agent, envs, off, callbacks=[callback], seed=0)
            else:
                epochs = 2 if kind in ("PPO", "MAPPO") else None
                on = OnPolicySettings(total_steps=16, n_steps=4, epochs=epochs)
                train_on_policy(agent, envs, on, callbacks=[callback], seed=0)
        reported[algorithm] = callback.losses
    assert len(reported[base]) == 2
    assert all({*mine} == {*own, "count"} for mine, own in zip(reported[Telling], reported[base], strict=True))
    first, second = (losses["count"] for losses in reported[Telling])
    assert second - first == agent.alg.counted / 2  # means of 1, ..., k and of k + 1, ..., n
    assert agent.alg.take_figures() == {}


@pytest.mark.parametrize("loop", ["train_on_policy", "train_actor_learner"])
def test_a_target_that_an_algorithm_for_rollouts_forgets_is_warned_of(
    loop: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_requirements, "_PATIENCE", 3)

    class Forgetting(parl.algorithms.A2C):
        def __init__(self, model: Any) -> None:
            super().__init__(model)
            self.target_model = copy.deepcopy(model)

        def loss(self, batch: Any, *args: Any) -> Any:
            self.target_model.policy(batch.obs), self.target_model.value(batch.obs)
            return super().loss(batch, *args)

    def make_agent() -> parl.Agent:
        return parl.Agent(Forgetting(parl.networks.ActorCritic(2)), seed=0)

    if loop == "train_on_policy":
        with make_vector_env("CartPole-v1", 2) as envs:
            train_on_policy(make_agent(), envs, OnPolicySettings(total_steps=32, n_steps=4), seed=0)
    else:
        settings = ActorLearnerSettings(total_steps=64, n_actors=1, envs_per_group=2, n_steps=4)
        train_actor_learner(make_agent(), make_agent, "CartPole-v1", settings, seed=0)
    assert caplog.text.count("Forgetting has a target_model that did not change in 3 updates: let its learn()") == 1
