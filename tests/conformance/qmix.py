"""Tests of QMIX and VDN that every backend must pass."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.adapter import Conformance, Precision, assert_weights_close, random_weights
from conformance.complex_step import absolute, gradient, layers
from conformance.reference import Adam
from parl_core.backends import Backend
from parl_core.contracts.batches import Sequences, Transitions
from parl_core.contracts.qmix import TeamEpisodes
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.model import Weights

__all__ = ["QMIXConformance"]

_AGENTS, _ACTS, _OBS, _STATE, _ROWS, _LR, _GAMMA = 3, 4, 5, 6, 4, 0.01, 0.9
_AGENT_SHAPES = {"fc1.weight": (8, _OBS), "fc1.bias": (8,), "fc2.weight": (_ACTS, 8), "fc2.bias": (_ACTS,)}
_MIXER_SHAPES = {"w.weight": (_AGENTS, _STATE), "w.bias": (_AGENTS,), "b.weight": (1, _STATE), "b.bias": (1,)}
_TEAM_SHAPES = {
    **{f"agents.{name}": shape for name, shape in _AGENT_SHAPES.items()},
    **{f"mixer.{name}": shape for name, shape in _MIXER_SHAPES.items()},
}


def _agents(backend: Backend) -> Any:
    parl_layers: Any = backend.layers

    class Agents(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        def __init__(self) -> None:
            self.fc1 = parl_layers.fc(size=8, act="tanh")
            self.fc2 = parl_layers.fc(size=_ACTS)

        def value(self, obs: Any) -> Any:
            flat = parl_layers.reshape(obs["obs"], [-1, obs["obs"].shape[-1]])
            return parl_layers.reshape(self.fc2(self.fc1(flat)), [-1, obs["obs"].shape[1], _ACTS])

    return Agents()


def _mixer(backend: Backend) -> Any:
    parl_layers: Any = backend.layers

    class Mixer(backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
        n_agents = _AGENTS

        def __init__(self) -> None:
            self.w = parl_layers.fc(size=_AGENTS)
            self.b = parl_layers.fc(size=1)

        def forward(self, values: Any, state: Any) -> Any:
            flat = parl_layers.reshape(state, [-1, state.shape[-1]])
            mixed = parl_layers.abs(self.w(flat)) * parl_layers.reshape(values, [-1, _AGENTS])
            total = parl_layers.reduce_sum(mixed, dim=1, keep_dim=True) + self.b(flat)
            return parl_layers.reshape(total, [values.shape[0], values.shape[1], 1])

    return Mixer()


def _values(weights: Weights, obs: Any) -> Any:
    return layers(weights, ("agents.fc1", "agents.fc2"), obs)


def _mixed(weights: Weights, values: Any, state: Any, *, summed: bool) -> Any:
    if summed:
        return values.sum(-1)
    return (absolute(layers(weights, ("mixer.w",), state)) * values).sum(-1) + layers(weights, ("mixer.b",), state)[
        :, 0
    ]


def _sequences(rng: np.random.Generator, dtype: Any, count: int = 3) -> tuple[Sequences, dict[str, NDArray[Any]]]:
    """Return sequences of `_ROWS` rows of which agents leave, episodes end, and the last rows are padding."""
    n = count * _ROWS
    alive = np.ones((count, _ROWS, _AGENTS), np.int8)
    terminated = np.zeros_like(alive)
    alive[0, 2:, 1] = 0  # agent 1 dies in step 1
    terminated[0, 2:, 1] = 1
    alive[1, 2:, 0] = 0  # agent 0 is cut in step 1: bootstrapped from there, and gone afterwards
    alive[2, 2:] = 0  # an episode of two steps, truncated; row 3 is padding
    mask = rng.random((n, _AGENTS, _ACTS)) < 0.6
    mask[..., 2] = True
    learned = np.ones((count, _ROWS))
    learned[:, -1] = 0.0
    learned[2, 2:] = 0.0
    discount = np.full((count, _ROWS), _GAMMA)
    discount[0, 2] = 0.0  # terminates
    columns = {
        "obs": rng.normal(size=(n, _AGENTS, _OBS)).astype(dtype),
        "state": rng.normal(size=(n, _STATE)).astype(dtype),
        "alive": alive.reshape(n, _AGENTS),
        "terminated": terminated.reshape(n, _AGENTS),
        "action_mask": mask.astype(np.int8),
    }
    places = np.arange(n).reshape(count, _ROWS)
    ahead = np.minimum(places + 1, places[:, -1:]).reshape(-1)
    weights = learned.reshape(-1) * (n / learned.sum())
    action = rng.integers(_ACTS, size=(n, _AGENTS))
    reward = rng.normal(size=n)
    batch = Sequences(
        obs=columns,
        action=action,
        reward=reward.astype(dtype),
        discount=discount.reshape(-1).astype(dtype),
        ahead=ahead,
        weights=weights.astype(dtype),
        begins=np.zeros(n, np.bool_),
        state={},
    )
    return batch, {**columns, "learned": learned.reshape(-1), "reward": reward, "discount": discount.reshape(-1)}


class QMIXConformance(Conformance):
    """Suite of QMIX and VDN."""

    def made(self, kind: str, precision: Precision, weights: Weights, **settings: Any) -> Any:
        """Return an algorithm with these weights."""
        parts = (_agents(self.backend), *(() if kind == "VDN" else (_mixer(self.backend),)))
        if precision.name == "float64":
            parts = tuple(map(self.adapter.double, parts))
        for part, name in zip(parts, ("agents.", "mixer."), strict=False):
            own = {key.removeprefix(name): array for key, array in weights.items() if key.startswith(name)}
            part.set_weights(own, portable=True)
        return getattr(self.backend.algorithms, kind)(*parts, gamma=_GAMMA, lr=_LR, device="cpu", **settings)

    @pytest.mark.parametrize("kind", ["QMIX", "VDN"])
    @pytest.mark.parametrize(
        ("double", "above"), [(True, 1.0), (False, 1.0), (True, 0.1)], ids=["double", "plain", "optimistic"]
    )
    def test_three_updates_agree_with_the_reference(
        self, precision: Precision, kind: str, double: bool, above: float
    ) -> None:
        rng, summed = np.random.default_rng(1), kind == "VDN"
        shapes = {name: shape for name, shape in _TEAM_SHAPES.items() if not (summed and name.startswith("mixer"))}
        weights, target = random_weights(rng, shapes), random_weights(rng, shapes)
        algorithm = self.made(kind, precision, weights, double_q=double, overestimate_weight=above)
        algorithm.target_model.set_weights(target, portable=True)
        agent, adam = self.backend.Agent(algorithm), Adam(_LR)
        for _ in range(3):
            batch, c = _sequences(rng, precision.dtype)
            action, ahead = batch.action, batch.ahead
            following, own = _values(target, c["obs"])[ahead], _values(weights, c["obs"])[ahead]
            best = np.where(c["action_mask"][ahead], own if double else following, -np.inf).argmax(-1)
            v_t = np.take_along_axis(following, best[..., None], -1)[..., 0]
            for row, then in enumerate(ahead):
                for i in range(_AGENTS):
                    is_there = c["alive"][then, i] or (c["alive"][row, i] and not c["terminated"][then, i])
                    v_t[row, i] *= bool(is_there)
            goal = c["reward"] + c["discount"] * _mixed(target, v_t, c["state"][ahead], summed=summed)

            def errors(w: Weights, c: Any = c, a: Any = action, g: Any = goal) -> Any:
                chosen = np.take_along_axis(_values(w, c["obs"]), a[..., None], -1)[..., 0] * c["alive"]
                return (g - _mixed(w, chosen, c["state"], summed=summed))[c["learned"] > 0]

            def loss(w: Weights, e: Any = errors) -> Any:
                found = e(w)
                return (np.where(found.real < 0.0, above, 1.0) * found**2).mean()

            expected = np.real(loss(weights)), np.real(errors(weights).mean())
            weights = adam.update(weights, gradient(loss, weights, ("agents", "mixer")))
            found = agent.learn(batch)
            np.testing.assert_allclose(found, expected, atol=precision.tolerance)
        assert_weights_close(algorithm.model.get_weights(portable=True), weights, precision.tolerance)

    def test_targets_by_hand(self) -> None:
        """Two agents whose values are what they observe; the second dies, and the episode is truncated.

        Row 0: both act, values 1 + 2 = 3; then the second is dead: target 10 + 0.5 * (4 + 0) = 12, error 9.
        Row 1: only the first acts, value 4; it is cut, and its last observation is worth 6: 20 + 0.5 * 6, error 19.
        """

        class Seen(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            def __init__(inner) -> None:  # noqa: N805
                inner.scale = self.backend.layers.fc(size=1, bias_attr=False)

            def value(inner, obs: Any) -> Any:  # noqa: N805
                seen = obs["obs"]
                return inner.scale(seen.reshape([-1, 1])).reshape([seen.shape[0], 2, 1])

        model = Seen()
        model.set_weights({"scale.weight": np.ones((1, 1))}, portable=True)
        algorithm = self.backend.algorithms.VDN(model, gamma=0.5, lr=1e-9, device="cpu")
        obs = {
            "obs": np.array([[[1.0], [2.0]], [[4.0], [5.0]], [[6.0], [7.0]]], np.float32),
            "state": np.zeros((3, 1), np.float32),
            "alive": np.array([[1, 1], [1, 0], [0, 0]], np.int8),
            "terminated": np.array([[0, 0], [0, 1], [0, 1]], np.int8),
        }
        batch = Sequences(
            obs=obs,
            action=np.zeros((3, 2), np.int64),
            reward=np.array([10.0, 20.0, 0.0], np.float32),
            discount=np.array([0.5, 0.5, 0.0], np.float32),
            ahead=np.array([1, 2, 2]),
            weights=np.array([1.5, 1.5, 0.0], np.float32),
            begins=np.zeros(3, np.bool_),
            state={},
        )
        loss, error = self.backend.Agent(algorithm).learn(batch)
        assert loss == pytest.approx((9.0**2 + 19.0**2) / 2)
        assert error == pytest.approx((9.0 + 19.0) / 2)

    def test_episodes_of_parl_2_are_the_same_sequences(self) -> None:
        rng = np.random.default_rng(4)
        weights = random_weights(rng, _TEAM_SHAPES)
        count = 2
        state = rng.normal(size=(count, _ROWS, _STATE)).astype(np.float32)
        obs = rng.normal(size=(count, _ROWS, _AGENTS, _OBS)).astype(np.float32)
        mask = np.ones((count, _ROWS, _AGENTS, _ACTS), np.float32)
        action = rng.integers(_ACTS, size=(count, _ROWS, _AGENTS))
        reward = rng.normal(size=(count, _ROWS, 1)).astype(np.float32)
        terminated, filled = np.zeros((2, count, _ROWS, 1), np.float32)
        terminated[0, 1], filled[0, 2:] = 1.0, 1.0
        terminated[1, -1] = 1.0  # this one fills all rows, and ends in the last
        by_place = self.made("QMIX", _float32(), weights)
        old = self.backend.Agent(by_place).learn(state, action, reward, terminated, obs, mask, filled)
        learned = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
        n, places = count * _ROWS, np.arange(count * _ROWS).reshape(count, _ROWS)
        batch = Sequences(
            obs={"obs": obs.reshape(n, _AGENTS, _OBS), "state": state.reshape(n, _STATE)},
            action=action.reshape(n, _AGENTS),
            reward=reward.reshape(-1),
            discount=(_GAMMA * (1.0 - terminated)).reshape(-1),
            ahead=np.minimum(places + 1, places[:, -1:]).reshape(-1),
            weights=(learned * n / learned.sum()).reshape(-1).astype(np.float32),
            begins=np.zeros(n, np.bool_),
            state={},
        )
        new = self.backend.Agent(self.made("QMIX", _float32(), weights)).learn(batch)
        np.testing.assert_allclose(old, new, rtol=1e-5)

    def test_nothing_is_bootstrapped_from_the_padding_of_episodes_of_parl_2(self) -> None:
        rng = np.random.default_rng(5)
        weights = random_weights(rng, _TEAM_SHAPES)
        shape = (1, _ROWS, _AGENTS)
        state = rng.normal(size=(1, _ROWS, _STATE)).astype(np.float32)
        obs = rng.normal(size=(*shape, _OBS)).astype(np.float32)
        terminated, filled = np.zeros((2, 1, _ROWS), np.float32)
        filled[:, 3:] = 1.0  # it was truncated, and its third row only serves to bootstrap from
        figures = []
        for padding in (0.0, 9.0):
            state[:, 3:], obs[:, 3:] = padding, padding
            episodes = TeamEpisodes(
                global_state=state,
                action=np.zeros(shape, np.int64),
                reward=np.ones((1, _ROWS), np.float32),
                terminated=terminated,
                obs=obs,
                action_mask=np.ones((*shape, _ACTS), np.float32),
                filled=filled,
            )
            assert episodes.sequences(_GAMMA).weights.tolist() == [2.0, 2.0, 0.0, 0.0]
            figures.append(self.backend.Agent(self.made("QMIX", _float32(), weights)).learn(episodes))
        np.testing.assert_array_equal(*figures)

    def test_agents_of_parl_2_remember(self) -> None:
        parl_layers: Any = self.backend.layers

        class Counting(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            """Its hidden state adds up what was observed, and is what it thinks of the second action."""

            def __init__(inner) -> None:  # noqa: N805
                inner.fc = parl_layers.fc(size=1, bias_attr=False)

            def init_hidden(inner) -> Any:  # noqa: N805
                return parl_layers.create_parameter([1, 1], is_bias=True)

            def forward(inner, obs: Any, hidden: Any) -> Any:  # noqa: N805
                after = hidden + inner.fc(obs)
                return parl_layers.concat([after * 0.0, after], axis=-1), after

        model = Counting()
        model.set_weights({"fc.weight": np.ones((1, 1))}, portable=True)
        mixer = self.backend.networks.QMixer(2, 4)
        algorithm = self.backend.algorithms.QMIX(model, mixer, device="cpu")
        agent = self.backend.Agent(algorithm, obs_ndim={"obs": 2, "state": 1})
        state = agent.initial_state(1)
        for value, best in ((1.0, [1, 0]), (-2.0, [0, 1]), (3.0, [1, 0])):
            obs = {"obs": np.array([[[value], [-value]]], np.float32), "state": np.zeros((1, 1), np.float32)}
            action, state = agent.predict(obs, state=state)
            assert action.tolist() == [best]
        assert state["hidden"][0, :, 0].tolist() == [2.0, -2.0]

    def test_an_agent_of_parl_2_keeps_the_hidden_states_and_moves_the_target_itself(self) -> None:
        parl_layers: Any = self.backend.layers

        class Recurrent(self.backend.Model):  # type: ignore[name-defined,misc]  # the base is known only at run time
            def __init__(inner) -> None:  # noqa: N805
                inner.fc = parl_layers.fc(size=2)

            def init_hidden(inner) -> Any:  # noqa: N805
                return parl_layers.create_parameter([1, 2], is_bias=True)

            def forward(inner, obs: Any, hidden: Any) -> Any:  # noqa: N805
                after = hidden.reshape([-1, 2]) + inner.fc(obs)
                return after, after

        mixer = self.backend.networks.QMixer(3, 4)
        del mixer.n_agents
        with pytest.raises(
            ModelContractError, match=r"QMIX needs the number of agents .* give QMixer the attribute n_agents"
        ):
            self.backend.algorithms.QMIX(Recurrent(), mixer, device="cpu")
        mixer.n_agents = 3
        algorithm = self.backend.algorithms.QMIX(Recurrent(), mixer, device="cpu", sync_every=None)
        algorithm._init_hidden_states(1)
        assert tuple(algorithm.hidden_states.shape) == (1, 3, 2)
        obs = algorithm._tensor(np.ones((3, 4), np.float32))
        q, algorithm.hidden_states = algorithm.predict_local_q(obs, algorithm.hidden_states)
        assert tuple(q.shape) == (3, 2)
        rng = np.random.default_rng(0)
        n, steps = 2, 4
        columns = [
            rng.normal(size=(n, steps, 4)),
            rng.integers(0, 2, (n, steps, 3)),
            rng.normal(size=(n, steps, 1)),
            np.zeros((n, steps, 1)),
            rng.normal(size=(n, steps, 3, 4)),
            np.ones((n, steps, 3, 2)),
            np.zeros((n, steps, 1)),
        ]
        algorithm.learn(*(algorithm._tensor(np.asarray(column)) for column in columns))
        pairs = (
            (algorithm.agent_model, algorithm.target_agent_model),
            (algorithm.qmixer_model, algorithm.target_qmixer_model),
        )
        for model, target in pairs:
            model.sync_weights_to(target)
            for name, array in model.get_weights().items():
                np.testing.assert_array_equal(target.get_weights()[name], array)

    def test_it_explores_each_agent_by_itself_among_what_is_possible(self) -> None:
        weights = random_weights(np.random.default_rng(1), _TEAM_SHAPES)
        agent = self.backend.Agent(
            self.made("QMIX", _float32(), weights), obs_ndim={"obs": 2, "state": 1, "action_mask": 2}, seed=1
        )
        rng = np.random.default_rng(2)
        mask = rng.random((400, _AGENTS, _ACTS)) < 0.5
        mask[..., 1] = True
        obs = {
            "obs": rng.normal(size=(400, _AGENTS, _OBS)).astype(np.float32),
            "state": np.zeros((400, _STATE), np.float32),
            "action_mask": mask.astype(np.int8),
        }
        best = agent.predict(obs)
        expected = np.where(mask, _values(weights | {}, obs["obs"]), -np.inf).argmax(-1)
        np.testing.assert_array_equal(best, expected)
        action = agent.sample(obs, epsilon=0.5)
        assert np.take_along_axis(mask, action[..., None], -1).all()
        changed = (action != best).mean(axis=0)
        assert (changed > 0.1).all()
        assert ((action != best).sum(axis=1) == 1).mean() > 0.05

    def test_targets_are_copied_with_the_mixing_network(self) -> None:
        weights = random_weights(np.random.default_rng(1), _TEAM_SHAPES)
        algorithm = self.made("QMIX", _float32(), weights, sync_every=2)
        agent, rng = self.backend.Agent(algorithm), np.random.default_rng(3)
        agent.learn(_sequences(rng, np.float32)[0])
        assert_weights_close(algorithm.target_model.get_weights(portable=True), weights, 1e-6)
        agent.learn(_sequences(rng, np.float32)[0])
        now = algorithm.model.get_weights(portable=True)
        assert_weights_close(algorithm.target_model.get_weights(portable=True), now, 1e-6)
        assert np.abs(now["mixer.w.weight"] - weights["mixer.w.weight"]).max() > 1e-4

    def test_what_it_cannot_learn_from_is_refused(self) -> None:
        weights = random_weights(np.random.default_rng(1), _TEAM_SHAPES)
        agent = self.backend.Agent(self.made("QMIX", _float32(), weights))
        zeros = np.zeros((2, 3), np.float32)
        with pytest.raises(ValueError, match="Sequences"):
            agent.learn(Transitions(zeros, np.zeros(2, int), np.zeros(2), zeros, np.zeros(2)))
        batch, _ = _sequences(np.random.default_rng(1), np.float32)
        with pytest.raises(ValueError, match="one per agent"):
            agent.learn(batch.made(**{**batch.__dict__, "action": batch.action[:, :2], "checked": False}))
        with pytest.raises(HyperparameterError, match="gamma"):
            self.backend.algorithms.QMIX(_agents(self.backend), _mixer(self.backend), gamma=2.0)
        for weight in (0.0, 1.5):
            with pytest.raises(HyperparameterError, match="overestimate_weight must"):
                self.backend.algorithms.VDN(_agents(self.backend), overestimate_weight=weight)
        with pytest.raises(ModelContractError, match="value"):
            self.backend.algorithms.QMIX(_mixer(self.backend), _mixer(self.backend))


def _float32() -> Precision:
    return Precision("float32", np.float32, 1e-5)
