"""Networks of several agents, on the backend in use: shared and own weights, memories, mixers."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import parl
from parl_core.env.joint import JointEnv, make_joint_env
from parl_core.errors import HyperparameterError
from parl_core.seeding import seed_everything


class Box(parl.Model):  # type: ignore[misc,name-defined]  # known only at run time
    """Any layer as a model, for `Agent.run`."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def policy(self, obs: Any) -> Any:
        return self.layer(obs)

    def value(self, obs: Any) -> Any:
        return self.layer(obs)


class Running(parl.Algorithm):  # type: ignore[misc,name-defined]  # known only at run time
    LEARNS_SEQUENCES = True

    def predict(self, obs: Any) -> Any:
        return obs


def run(model: Any, method: Any, *args: Any) -> Any:
    return parl.Agent(Running(model)).run(method, *args)


def joint(rng: np.random.Generator, n: int, agents: int = 3, size: int = 4) -> dict[str, NDArray[Any]]:
    return {
        "obs": rng.normal(size=(n, agents, size)).astype(np.float32),
        "state": rng.normal(size=(n, 5)).astype(np.float32),
        "alive": np.ones((n, agents), np.int8),
    }


@pytest.mark.parametrize(
    ("groups", "layers"), [("shared", 1), ("independent", 3), ((1, 0, 1), 2)], ids=["shared", "independent", "groups"]
)
def test_agents_of_a_group_share_their_weights(groups: Any, layers: int) -> None:
    seed_everything(1)
    model = parl.networks.TeamQNetwork(3, 2, (8,), groups=groups)
    obs = joint(np.random.default_rng(0), 5)
    values = run(model, model.value, obs)
    assert values.shape == (5, 3, 2)
    assert sum(name.endswith("weight") for name in model.get_weights()) == 2 * layers
    # What one agent observes changes its own values alone.
    other = {**obs, "obs": obs["obs"].copy()}
    other["obs"][:, 1] += 1.0
    changed = np.abs(run(model, model.value, other) - values).max(axis=(0, 2)) > 1e-6
    assert changed.tolist() == [False, True, False]


def test_a_layer_of_several_agents_takes_the_number_of_each_ones_group() -> None:
    seed_everything(1)
    model = Box(parl.networks.PerAgent((0, 1, 0), lambda: parl.layers.fc(size=2), ids=False))
    rows = np.ones((4, 3, 5), np.float32)
    found = run(model, model.policy, rows)
    assert found.shape == (4, 3, 2)
    np.testing.assert_array_equal(found[:, 0], found[:, 2])
    assert np.abs(found[:, 0] - found[:, 1]).max() > 1e-4
    none: tuple[Any, ...] = ("shared", ((0, 2), (1,)), (0, 2), (), 3, (0.0, 1.0))
    for wrong in none:
        with pytest.raises(HyperparameterError, match="number of the group of each"):
            parl.networks.PerAgent(wrong, lambda: parl.layers.fc(size=2))


@pytest.mark.parametrize("groups", [(0, 0, 0), (0, 1, 2), (0, 1, 0)], ids=["shared", "independent", "groups"])
@pytest.mark.parametrize("teams", [4, 400])
def test_features_of_all_agents_are_beside_those_of_each(groups: Any, teams: int) -> None:
    seed_everything(1)
    layer: Any = parl.networks.PerAgent(groups, lambda: parl.layers.fc(size=2, act="tanh"))
    model, rng = Box(layer), np.random.default_rng(0)
    own, more = (rng.normal(size=(teams, 3, size)).astype(np.float32) for size in (4, 1))
    state = rng.normal(size=(teams, 5)).astype(np.float32)
    whole = np.concatenate([own, np.repeat(state[:, None], 3, axis=1), more], axis=2)
    expected = run(model, model.policy, whole)
    found = run(
        model, lambda part: layer(part["own"], part["state"], part["more"]), {"own": own, "state": state, "more": more}
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_agents_that_share_weights_differ_by_their_numbers() -> None:
    seed_everything(1)
    model = parl.networks.TeamQNetwork(3, 2, (8,), groups=(0, 0, 1))
    obs = joint(np.random.default_rng(0), 2)
    obs["obs"][:] = 1.0
    values = run(model, model.value, obs)
    assert np.abs(values[:, 0] - values[:, 1]).max() > 1e-4


@pytest.mark.parametrize("hidden", [(8, 6), ()], ids=["hidden", "linear"])
@pytest.mark.parametrize("groups", ["independent", "shared", (0, 0, 1)], ids=["independent", "shared", "groups"])
def test_all_critics_at_once_give_what_each_gives_alone(groups: Any, hidden: tuple[int, ...]) -> None:
    seed_everything(1)
    model = parl.networks.TeamActorCritic(3, 2, hidden, groups=groups)
    rng = np.random.default_rng(0)
    obs, action = joint(rng, 5), rng.normal(size=(5, 3, 2)).astype(np.float32)
    own = rng.normal(size=(3, 5, 3, 2)).astype(np.float32)
    for together, given in ((action, [action] * 3), (own, own)):
        found = run(model, model.values, obs, together)
        alone = [run(model, model.value, obs, given[agent], agent)[:, 0] for agent in range(3)]
        np.testing.assert_allclose(found, np.stack(alone, 1), atol=1e-6)


def test_layers_that_differ_between_agents_are_run_one_by_one() -> None:
    seed_everything(1)
    sizes = iter([4, 6])

    def made() -> Any:
        return parl.networks.MLP((next(sizes), 2))

    model = Box(parl.networks.PerAgent((0, 1), made))
    rows = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    for _ in range(2):  # layers have their shapes the second time
        found = run(model, model.policy, rows)
    first = run(model, lambda part: model.layer.of_agent(0, part), rows[:, 0])
    np.testing.assert_allclose(found[:, 0], first, atol=1e-6)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("groups", ["shared", (1, 0, 1)], ids=["shared", "groups"])
def test_a_memory_step_by_step_is_that_of_sequences(memory: Any, groups: Any) -> None:
    seed_everything(2)
    model = parl.networks.RecurrentTeamQNetwork(3, 2, memory, 6, groups=groups)
    rng, rows, steps = np.random.default_rng(3), 4, 5
    whole = joint(rng, rows * steps)
    begins = np.zeros((rows, steps), np.bool_)
    begins[1, 2] = begins[3, 0] = True
    state = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in model.initial_state(rows).items()}
    assert {array.shape for array in state.values()} == {(rows, 3, 6)}

    def sequences(obs: Any, before: Any, began: Any) -> Any:
        features, after = model.remember(obs, before, began)
        return model.value(features), after

    values, last = run(model, sequences, whole, state, begins.reshape(-1))
    before = state
    for t in range(steps):
        now = {name: array.reshape(rows, steps, *array.shape[1:])[:, t] for name, array in whole.items()}
        before = {
            name: np.where(begins[:, t].reshape(-1, 1, 1), 0.0, array).astype(np.float32)
            for name, array in before.items()
        }
        found, before = run(model, lambda o, s: sequences(o, s, None), now, before)
        np.testing.assert_allclose(found, values.reshape(rows, steps, 3, 2)[:, t], atol=1e-5)
    for name, array in last.items():
        np.testing.assert_allclose(before[name], array, atol=1e-5)


def test_the_mixer_grows_with_every_value_and_the_sum_is_one() -> None:
    seed_everything(3)
    mixer = parl.networks.QMixer(3, 8, hypernet=4)
    rng = np.random.default_rng(1)
    values, state = rng.normal(size=(6, 2, 3)).astype(np.float32), rng.normal(size=(6, 2, 5)).astype(np.float32)
    total = run(mixer, mixer.forward, values, state)
    assert total.shape == (6, 2, 1)
    for agent in range(3):
        more = values.copy()
        more[..., agent] += 0.5
        assert (run(mixer, mixer.forward, more, state) >= total).all()
    summed = parl.networks.VDNMixer(3)
    np.testing.assert_allclose(run(summed, summed.forward, values, state)[..., 0], values.sum(-1), rtol=1e-5)


def test_mixing_is_the_papers() -> None:
    seed_everything(4)
    mixer = parl.networks.QMixer(2, 3)
    rng = np.random.default_rng(1)
    q, s = rng.normal(size=(4, 1, 2)).astype(np.float32), rng.normal(size=(4, 1, 5)).astype(np.float32)
    total = run(mixer, mixer.forward, q, s)
    w = mixer.get_weights(portable=True)

    def layer(name: str, x: Any) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    flat = s[:, 0]
    hidden = np.einsum("ba,bae->be", q[:, 0], np.abs(layer("first_weights", flat)).reshape(4, 2, 3))
    hidden += layer("first_bias", flat)
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    names = sorted({name.rpartition(".")[0] for name in w if name.startswith("second_bias")})
    value = np.maximum(layer(names[0], flat), 0.0)
    expected = (hidden * np.abs(layer("second_weights", flat))).sum(1) + layer(names[1], value)[:, 0]
    np.testing.assert_allclose(total.reshape(-1), expected, atol=1e-5)


@pytest.mark.parametrize("groups", ["independent", "shared"])
def test_a_critic_is_one_agents_and_sees_all(groups: Any) -> None:
    seed_everything(5)
    model = parl.networks.TeamActorCritic(3, 2, (8,), continuous=True, groups=groups)
    rng = np.random.default_rng(1)
    obs, action = joint(rng, 4), rng.uniform(-1, 1, (4, 3, 2)).astype(np.float32)
    acts = run(model, model.policy, obs)
    assert acts.shape == (4, 3, 2)
    assert np.abs(acts).max() <= 1.0

    def values() -> list[Any]:
        return [run(model, lambda o, a, i=i: model.value(o, a, i), obs, action) for i in range(3)]

    before = values()
    assert before[0].shape == (4, 1)
    assert np.abs(before[0] - before[2]).max() > 1e-5
    action[:, 1] *= -1.0
    assert np.abs(values()[2] - before[2]).max() > 1e-6


class Looking:
    """Two agents that see an image of six pixels, from the lowest to the highest value."""

    possible_agents = ("a", "b")

    def __init__(self, bounds: Any, dtype: Any) -> None:
        self.agents = ["a", "b"]
        self._spaces = {name: spaces.Box(low, high, (2, 3, 1), dtype) for name, (low, high) in bounds.items()}

    def observation_space(self, agent: str) -> Any:
        return self._spaces[agent]

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        levels = np.arange(6).reshape(2, 3, 1) / 5.0
        seen = {name: space.low + levels * (space.high * 1.0 - space.low) for name, space in self._spaces.items()}
        return {name: found.astype(self._spaces[name].dtype) for name, found in seen.items()}, {}

    def step(self, actions: Any) -> Any: ...


def outputs(kind: Any, memory: Any, env: JointEnv) -> Any:
    """Return what policies and critics of a new model make of the first observation."""
    seed_everything(2)
    model = parl.networks.for_team(env.observation_space, env.action_space, kind, memory=memory)
    obs = {name: np.stack([part] * 2) for name, part in env.reset()[0].items()}

    def run_all(obs: Any, action: Any, state: Any) -> Any:
        seen = model.remember(obs, state)[0] if memory else obs
        policy = () if kind == "q" else (model.policy(seen),)
        return *policy, model.value(seen) if kind in ("q", "central", "independent") else model.values(seen, action)

    return run(model, run_all, obs, np.ones((2, 2, 2), np.float32), model.initial_state(2) if memory else {})


@pytest.mark.parametrize(
    "bounds", [{"a": (0, 255), "b": (0, 255)}, {"a": (-50, 50), "b": (0, 100)}], ids=["equal", "different"]
)
@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("actor-critic", None),
        *((k, m) for k in ("q", "central", "independent", "counterfactual") for m in (None, "gru")),
    ],
)
def test_networks_of_a_team_see_images_in_0_to_1(kind: str, memory: Any, bounds: dict[str, tuple[int, int]]) -> None:
    dtype = np.uint8 if bounds["a"] == (0, 255) else np.int16
    found = outputs(kind, memory, JointEnv(Looking(bounds, dtype)))
    expected = outputs(kind, memory, JointEnv(Looking(dict.fromkeys("ab", (0, 1)), np.float32)))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_networks_for_a_team() -> None:
    env = make_joint_env("two_step")
    spaces = env.observation_space, env.action_space
    assert type(parl.networks.for_team(*spaces)).__name__ == "TeamQNetwork"
    assert type(parl.networks.for_team(*spaces, memory="gru")).__name__ == "RecurrentTeamQNetwork"
    model = parl.networks.for_team(*spaces, "actor-critic")
    assert model.obs_ndim["obs"] == 2
    with pytest.raises(HyperparameterError, match="JointEnv"):
        parl.networks.for_team(env.action_space, env.action_space)
    with pytest.raises(HyperparameterError, match="groups"):
        parl.networks.for_team(*spaces, groups=(0, 2))
    with pytest.raises(HyperparameterError, match="no memory"):
        parl.networks.for_team(*spaces, "actor-critic", memory="gru")
