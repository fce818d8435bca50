"""Tests of MADDPG that every backend must pass, in its form for a team and in PARL 2.x's for one agent."""

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from conformance.adapter import FLOAT32, Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import gradient, layers
from conformance.reference import Adam, clip_by_global_norm
from parl_core._nested import map_nested
from parl_core.backends import Backend
from parl_core.contracts.batches import Transitions
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["MADDPGConformance"]

_AGENTS, _ACTS, _OBS, _BATCH, _LR, _GAMMA, _TAU = 2, 3, 4, 8, 0.01, 0.9, 0.1
_SHAPES: dict[str, tuple[int, ...]] = {}
for _i in range(_AGENTS):
    _SHAPES |= {f"actor{_i}.weight": (_ACTS, _OBS), f"actor{_i}.bias": (_ACTS,)}
    _SHAPES |= {f"hidden{_i}.weight": (6, _AGENTS * (_OBS + _ACTS)), f"hidden{_i}.bias": (6,)}
    _SHAPES |= {f"critic{_i}.weight": (1, 6), f"critic{_i}.bias": (1,)}


def _make(backend: Backend, *, continuous: bool) -> Any:
    parl_layers: Any = backend.layers

    class Pair(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            for i in range(_AGENTS):
                setattr(self, f"actor{i}", parl_layers.fc(size=_ACTS))
                setattr(self, f"hidden{i}", parl_layers.fc(size=6, act="tanh"))
                setattr(self, f"critic{i}", parl_layers.fc(size=1))

        def policy(self, obs: Any) -> Any:
            rows = [getattr(self, f"actor{i}")(obs["obs"][:, i]) for i in range(_AGENTS)]
            joint = parl_layers.stack(rows, axis=1)
            return parl_layers.tanh(joint) if continuous else joint

        def value(self, obs: Any, action: Any, agent: int) -> Any:
            seen = parl_layers.reshape(obs["obs"], [-1, _AGENTS * _OBS])
            rows = parl_layers.concat([seen, parl_layers.reshape(action, [-1, _AGENTS * _ACTS])], axis=-1)
            return getattr(self, f"critic{agent}")(getattr(self, f"hidden{agent}")(rows))

        def get_actor_params(self) -> Any:
            return [p for i in range(_AGENTS) for p in getattr(self, f"actor{i}").parameters()]

        def get_critic_params(self) -> Any:
            both = (getattr(self, f"{name}{i}") for i in range(_AGENTS) for name in ("hidden", "critic"))
            return [p for layer in both for p in layer.parameters()]

    return Pair()


def _policy(w: Weights, obs: Any, *, continuous: bool) -> Any:
    rows = np.stack([layers(w, (f"actor{i}",), obs[:, i]) for i in range(_AGENTS)], 1)
    return np.tanh(rows) if continuous else rows


def _value(w: Weights, obs: Any, action: Any, agent: int) -> Any:
    rows = np.concatenate([obs.reshape(len(obs), -1), action.reshape(len(obs), -1)], 1)
    return layers(w, (f"hidden{agent}", f"critic{agent}"), rows)[:, 0]


def _joint(rng: np.random.Generator, dtype: Any, *, continuous: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return joint observations before and after: agents terminate, are cut, and were gone before."""
    alive = np.ones((_BATCH, _AGENTS), np.int8)
    after, terminated = alive.copy(), np.zeros_like(alive)
    alive[0, 0] = after[0, 0] = 0  # gone before
    terminated[0, 0] = 1
    after[1, 1], terminated[1, 1] = 0, 1  # terminates in this step
    after[2, 0] = 0  # is cut in this step
    after[3], terminated[3] = 0, 1  # the episode ends
    after[4] = 0  # both are cut
    rewards = rng.normal(size=(_BATCH, _AGENTS)).astype(dtype) * alive
    parts = []
    for here, rewarded in ((alive, rewards * 0), (after, rewards)):
        part = {
            "obs": rng.normal(size=(_BATCH, _AGENTS, _OBS)).astype(dtype),
            "alive": here,
            "rewards": rewarded,
            "terminated": terminated if here is after else np.where(alive, 0, terminated).astype(np.int8),
        }
        if not continuous:
            mask = rng.random((_BATCH, _AGENTS, _ACTS)) < 0.6
            mask[..., 1] = True
            part["action_mask"] = mask.astype(np.int8)
        parts.append(part)
    return parts[0], parts[1]


class MADDPGConformance(Conformance):
    """Suite of MADDPG."""

    def made(self, precision: Precision, weights: Weights, *, continuous: bool, **settings: Any) -> Any:
        """Return an algorithm with these weights."""
        model = self.model(lambda backend: _make(backend, continuous=continuous), weights, precision)
        given = {"gamma": _GAMMA, "tau": _TAU, "actor_lr": _LR, "critic_lr": _LR, "continuous": continuous, **settings}
        return self.algorithm("MADDPG", model, **given)

    @pytest.mark.parametrize("continuous", [True, False], ids=["continuous", "discrete"])
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, continuous: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng, decay = np.random.default_rng(1), 0.01
        weights, target = random_weights(rng, _SHAPES), random_weights(rng, _SHAPES)
        algorithm = self.made(precision, weights, continuous=continuous, policy_decay=decay, temperature=0.7)
        algorithm.target_model.set_weights(target, portable=True)
        agent, critics, actors = self.backend.Agent(algorithm), Adam(_LR), Adam(_LR)
        names = {"actor": ("actor",), "critic": ("hidden", "critic")}
        for _ in range(3):
            obs, after = _joint(rng, precision.dtype, continuous=continuous)
            noises = [rng.gumbel(size=(_BATCH, _AGENTS, _ACTS)) for _ in range(2)]
            given = iter([algorithm._tensor(noise.astype(precision.dtype)) for noise in noises])
            monkeypatch.setattr(algorithm, "_gumbel", lambda _, given=given: next(given))
            if continuous:
                action: NDArray[Any] = rng.uniform(-1, 1, (_BATCH, _AGENTS, _ACTS)).astype(precision.dtype)
                taken = action
                stored = action.reshape(_BATCH, -1)
            else:
                stored = rng.integers(_ACTS, size=(_BATCH, _AGENTS))
                taken = np.eye(_ACTS)[stored]
            acted = obs["alive"].astype(float)
            taken = taken * acted[..., None]

            def actions(policy: Any, mask: Any, noise: Any, continuous: bool = continuous) -> Any:
                """One-hot forwards, softmax backwards: the imaginary part is the derivative."""
                if continuous:
                    return policy
                logits = (np.where(mask, policy, -1e9) + noise) / 0.7
                raised = np.exp(logits - logits.real.max(-1, keepdims=True))
                soft = raised / raised.sum(-1, keepdims=True)
                return (
                    np.eye(_ACTS)[soft.real.argmax(-1)] + 1j * soft.imag
                    if np.iscomplexobj(soft)
                    else np.eye(_ACTS)[soft.argmax(-1)]
                )

            terminal = (np.arange(_BATCH) >= _BATCH - 2).astype(precision.dtype)  # of all agents, whoever they are
            keeps = acted * (1.0 - after["terminated"]) * (1.0 - terminal[:, None])
            following = _policy(target, after["obs"], continuous=continuous)
            a_t = actions(following, after.get("action_mask"), noises[0])
            v_t = np.zeros((_BATCH, _AGENTS))
            for row in range(_BATCH):
                for i in range(_AGENTS):  # an agent that is cut sees all that would go on, another one those that do
                    there = after["alive"][row] if after["alive"][row, i] else keeps[row]
                    of_all = (a_t[row] * there[:, None])[None]
                    v_t[row, i] = _value(target, after["obs"][row : row + 1], of_all, i)[0]
            goal = after["rewards"] + _GAMMA * keeps * v_t
            count = np.maximum(acted.sum(0), 1.0)

            def critic_loss(w: Weights, o: Any = obs, t: Any = taken, g: Any = goal, a: Any = acted) -> Any:
                q = np.stack([_value(w, o["obs"], t, i) for i in range(_AGENTS)], 1)
                return ((((g - q) * a) ** 2).sum(0) / np.maximum(a.sum(0), 1.0)).sum()

            def actor_loss(
                w: Weights, o: Any = obs, t: Any = taken, a: Any = acted, n: Any = noises[1], c: Any = count
            ) -> Any:
                policy = _policy(w, o["obs"], continuous=continuous)
                chosen, total = actions(policy, o.get("action_mask"), n), 0.0
                for i in range(_AGENTS):
                    own = t.astype(chosen.dtype)
                    own[:, i] = chosen[:, i]
                    loss = decay * (policy[:, i] ** 2).mean(-1) - _value(w, o["obs"], own, i)
                    total = total + (loss * a[:, i]).sum() / c[i]
                return total

            expected_critic = np.real(critic_loss(weights))
            weights = critics.update(weights, clip_by_global_norm(gradient(critic_loss, weights, names["critic"]), 0.5))
            expected_actor = np.real(actor_loss(weights))
            weights = actors.update(weights, clip_by_global_norm(gradient(actor_loss, weights, names["actor"]), 0.5))
            target = {name: (1 - _TAU) * target[name] + _TAU * weights[name] for name in target}
            ignored = rng.normal(size=_BATCH).astype(precision.dtype)  # the team's reward
            found = agent.learn(obs, stored, ignored, after, terminal)
            np.testing.assert_allclose(found, (expected_critic, expected_actor), atol=10 * precision.tolerance)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, 3 * precision.tolerance)
        assert_weights_close(algorithm.target_model.get_weights(portable=True), target, 3 * precision.tolerance)

    def test_targets_by_hand(self) -> None:
        """Critics that give 4: of agent 0, which terminates, the target is its reward 1, of agent 1 2 + 0.5 * 4 = 4.

        Errors are 1 - 4 and 4 - 4; the second row, in which no agent acts any more, counts for nothing.
        """
        weights = {name: np.zeros(shape) for name, shape in _SHAPES.items()}
        for i in range(_AGENTS):
            weights[f"critic{i}.bias"] += 4.0
        algorithm = self.made(FLOAT32, weights, continuous=True, gamma=0.5)
        obs = {
            "obs": np.zeros((2, 2, _OBS), np.float32),
            "alive": np.array([[1, 1], [0, 0]], np.int8),
            "rewards": np.zeros((2, 2), np.float32),
            "terminated": np.array([[0, 0], [1, 1]], np.int8),
        }
        rewards = np.array([[1.0, 2.0], [50.0, 60.0]], np.float32)
        terminated = np.array([[1, 0], [1, 1]], np.int8)
        after = {**obs, "alive": np.array([[0, 1], [0, 0]], np.int8), "rewards": rewards, "terminated": terminated}
        action = np.zeros((2, 2 * _ACTS), np.float32)
        critic_loss, actor_loss = self.backend.Agent(algorithm).learn(obs, action, np.zeros(2), after, np.zeros(2))
        assert critic_loss == pytest.approx(9.0)
        assert actor_loss == pytest.approx(-8.0, abs=0.2)  # after the critics' step of 0.01 in each weight

    def test_choices_are_drawn_by_their_probabilities_among_what_is_possible(self) -> None:
        algorithm = self.made(FLOAT32, random_weights(np.random.default_rng(1), _SHAPES), continuous=False)
        logits = np.log(np.tile([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]], (8000, 1, 1)))
        mask = np.ones((8000, 2, 3), np.bool_)
        mask[:, 0, 0] = False
        drawn = algorithm.choose(logits, rng=np.random.default_rng(2), action_mask=mask)
        counts = np.stack([(drawn == k).mean(0) for k in range(3)], 1)
        np.testing.assert_allclose(counts, [[0.0, 0.5, 0.5], [0.1, 0.6, 0.3]], atol=0.03)
        best = algorithm.choose(logits, action_mask=mask)
        assert best.shape == (8000, 2)
        assert not mask[..., 0][0, 0]
        assert (best[:, 1] == 1).all()

    @pytest.mark.slow
    def test_two_agents_learn_to_do_what_they_see(self) -> None:
        """The reward of both is 1 where each repeats the number that it sees: one step, choices or numbers."""
        for continuous in (False, True):
            self.adapter.seed(5)
            rng = np.random.default_rng(6)
            networks = self.backend.networks
            model = networks.TeamActorCritic(2, 1 if continuous else 2, (32,), continuous=continuous)
            settings = {"actor_lr": 0.01, "critic_lr": 0.01, "continuous": continuous}
            agent = self.backend.Agent(self.algorithm("MADDPG", model, **settings), seed=1)
            agent.obs_ndim = {"obs": 2, "state": 1, "alive": 1, "rewards": 1, "terminated": 1, "action_mask": 2}

            def joint(n: int, rng: np.random.Generator = rng, continuous: bool = continuous) -> dict[str, Any]:
                seen = rng.integers(2, size=(n, 2))
                found = {
                    "obs": np.eye(2, dtype=np.float32)[seen],
                    "state": np.zeros((n, 1), np.float32),
                    "alive": np.ones((n, 2), np.int8),
                    "rewards": np.zeros((n, 2), np.float32),
                    "terminated": np.zeros((n, 2), np.int8),
                }
                return found if continuous else {**found, "action_mask": np.ones((n, 2, 2), np.int8)}

            def right(obs: Any, action: Any, continuous: bool = continuous) -> Any:
                seen = obs["obs"].argmax(-1)
                wanted = 2.0 * seen - 1.0 if continuous else seen
                return 1.0 - np.abs(action.reshape(seen.shape) - wanted)

            for _ in range(250):
                obs = joint(64)
                action = agent.sample(obs, noise=0.3) if continuous else agent.sample(obs)
                reward = right(obs, action).mean(axis=1)
                ended = {"terminated": np.ones((64, 2), np.int8), "alive": np.zeros((64, 2), np.int8)}
                after = {**joint(64), **ended, "rewards": np.stack([reward, reward], 1).astype(np.float32)}
                agent.learn(obs, action, reward, after, np.ones(64))
            obs = joint(200)
            assert right(obs, agent.predict(obs)).mean() > 0.9, f"continuous={continuous}"

    def test_a_critic_that_a_subclass_changed_alone_is_asked(self) -> None:
        networks: Any = self.backend.networks

        class Constant(networks.TeamActorCritic):  # type: ignore[misc]  # known only at run time
            def value(self, obs: Any, action: Any, agent: int) -> Any:
                return super().value(obs, action, agent) * 0.0 + float(agent)

        algorithm = self.algorithm("MADDPG", Constant(_AGENTS, _ACTS, (4,)))
        obs, _ = _joint(np.random.default_rng(0), np.float32, continuous=False)
        parts = {name: algorithm._tensor(part) for name, part in obs.items()}
        action = algorithm._tensor(np.zeros((_BATCH, _AGENTS, _ACTS), np.float32))
        found = algorithm._copied(algorithm._values(algorithm.model, parts, action))
        np.testing.assert_array_equal(found, np.tile([0.0, 1.0], (_BATCH, 1)))

    @pytest.mark.parametrize("continuous", [True, False], ids=["continuous", "discrete"])
    def test_one_agent_of_parl_2_agrees_with_the_reference(self, continuous: bool) -> None:
        rng = np.random.default_rng(3)
        shapes = {
            "mean.weight": (_ACTS, _OBS),
            "mean.bias": (_ACTS,),
            "std.weight": (_ACTS, _OBS),
            "std.bias": (_ACTS,),
            "critic.weight": (1, 2 * (_OBS + _ACTS)),
            "critic.bias": (1,),
        }
        weights = random_weights(rng, shapes)
        parl_layers: Any = self.backend.layers

        class One(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            def __init__(inner) -> None:  # noqa: N805
                inner.mean, inner.std = parl_layers.fc(size=_ACTS), parl_layers.fc(size=_ACTS)
                inner.critic = parl_layers.fc(size=1)

            def policy(inner, obs: Any) -> Any:  # noqa: N805
                return (inner.mean(obs), inner.std(obs)) if continuous else inner.mean(obs)

            def value(inner, obs_n: Any, act_n: Any) -> Any:  # noqa: N805
                return inner.critic(parl_layers.concat([*obs_n, *act_n], axis=-1))[:, 0]

            def get_actor_params(inner) -> Any:  # noqa: N805
                return [*inner.mean.parameters(), *(inner.std.parameters() if continuous else ())]

            def get_critic_params(inner) -> Any:  # noqa: N805
                return list(inner.critic.parameters())

        space: Any = spaces.Box(-1.0, 1.0, (_ACTS,)) if continuous else spaces.Discrete(_ACTS)
        model = One()
        model.set_weights(weights, portable=True)
        algorithm = self.backend.algorithms.MADDPG(model, 1, [space, space], 0.9, 0.1, 0.01, 0.01, device="cpu")
        assert type(algorithm).__name__ == "OneAgentMADDPG"
        derived: Any = type("Own", (self.backend.algorithms.MADDPG,), {})
        form = re.escape(f"derive it from {type(algorithm).__module__}.OneAgentMADDPG")
        with pytest.raises(HyperparameterError, match=form):
            derived(model, 1, [space, space], device="cpu")
        own: Any = type("Own", (type(algorithm),), {})
        assert own(model, 1, [space, space], device="cpu").agent_index == 1
        agent = self.backend.Agent(algorithm)
        obs_n = [rng.normal(size=(5, _OBS)).astype(np.float32) for _ in range(2)]
        act_n = [rng.uniform(size=(5, _ACTS)).astype(np.float32) for _ in range(2)]
        goal = rng.normal(size=5).astype(np.float32)

        def q(w: Weights) -> Any:
            return layers(w, ("critic",), np.concatenate([*obs_n, *act_n], 1))[:, 0]

        expected = ((q(weights) - goal) ** 2).mean()
        slopes = clip_by_global_norm(gradient(lambda w: ((q(w) - goal) ** 2).mean(), weights, ("critic",)), 0.5)
        moved = Adam(0.01).update(weights, slopes)

        def learn(o0: Any, o1: Any, a0: Any, a1: Any, target_q: Any) -> Any:
            return algorithm.learn([o0, o1], [a0, a1], target_q)

        with pytest.raises(ValueError, match=r"target_q must be \[5\] or \[5, 1\], got \[5, 5\]"):
            agent.run(learn, *obs_n, *act_n, goal[:, None] + goal)
        found = agent.run(learn, *obs_n, *act_n, goal[:, None])  # values are [5]
        assert found == pytest.approx(expected, rel=1e-4)
        now = algorithm.model.get_weights(portable=True)
        for name in ("critic.weight", "critic.bias"):
            np.testing.assert_allclose(now[name], moved[name], atol=1e-5)
        assert np.abs(now["mean.weight"] - weights["mean.weight"]).max() > 1e-3
        target = algorithm.target_model.get_weights(portable=True)["critic.bias"]
        np.testing.assert_allclose(target, 0.9 * weights["critic.bias"] + 0.1 * now["critic.bias"], atol=1e-5)
        acted = agent.run(algorithm.predict, obs_n[1])
        drawn = agent.run(algorithm.sample, obs_n[1])
        if continuous:
            assert np.abs(acted).max() <= 1.0
        else:
            np.testing.assert_allclose(acted.sum(-1), 1.0, atol=1e-5)
            np.testing.assert_allclose(drawn.sum(-1), 1.0, atol=1e-5)
        assert np.abs(drawn - acted).max() > 1e-4

    def test_what_it_cannot_learn_from_is_refused(self) -> None:
        algorithm = self.made(FLOAT32, random_weights(np.random.default_rng(1), _SHAPES), continuous=False)
        agent = self.backend.Agent(algorithm)
        zeros = np.zeros((2, 3), np.float32)
        with pytest.raises(ValueError, match="joint observations"):
            agent.learn(Transitions(zeros, np.zeros(2, int), np.zeros(2), zeros, np.zeros(2)))
        obs, after = _joint(np.random.default_rng(2), np.float32, continuous=False)
        with pytest.raises(ValueError, match="choices"):
            agent.learn(obs, np.zeros((_BATCH, 3), int), np.zeros(_BATCH), after, np.zeros(_BATCH))
        for wrong in (-1, _ACTS):
            with pytest.raises(ValueError, match=rf"action must be in 0\.\.{_ACTS - 1}, got {wrong}\.\.{wrong}"):
                agent.learn(obs, np.full((_BATCH, _AGENTS), wrong), np.zeros(_BATCH), after, np.zeros(_BATCH))
        rest = {name: part for name, part in after.items() if name != "action_mask"}
        choices, numbers = np.zeros((_BATCH, _AGENTS), int), np.zeros(_BATCH, np.float32)
        for convert in (np.asarray, algorithm._tensor):
            columns = [map_nested(convert, column) for column in (obs, choices, numbers, rest, numbers)]
            with pytest.raises(ValueError, match=r"next_obs must be joint observations.*action_mask"):
                agent.learn(*columns)
            columns[3] = map_nested(convert, after)
            agent.learn(*columns)
        for name, value in (("temperature", 0.0), ("tau", 0.0), ("policy_decay", -1.0)):
            with pytest.raises(HyperparameterError, match=name):
                self.made(FLOAT32, random_weights(np.random.default_rng(1), _SHAPES), continuous=False, **{name: value})
        with pytest.raises(ModelContractError, match="policy"):
            self.backend.algorithms.MADDPG(self.backend.networks.QNetwork(2), device="cpu")
