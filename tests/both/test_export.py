"""Exported agents: the file acts as the agent does, or is not there."""

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

import parl
from parl_core import export as exporting
from parl_core._nested import map_nested
from parl_core._pipeline import Pipeline, describe
from parl_core.cli._commands import parl as command
from parl_core.env.joint import JointEnv
from parl_core.env.normalize import wrap_rms
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.export import FORMATS, ExportError, Normalization, export, frozen
from parl_core.policy import load, pack
from parl_core.seeding import seed_everything
from parl_core.spaces import dimensions_of, named, one_each
from parl_core.training.acting import acts_in_unit_box, into_space

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
STACK = spaces.Box(0.0, 1.0, (2, 5, 4), np.float32)
CHOICE = spaces.Discrete(3, start=1)
NUMBERS = spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([3.0, np.inf], np.float32))
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "float64": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "choice": spaces.Discrete(5, start=3),
    "many choices": spaces.Discrete(1_500),
    "choices": spaces.MultiDiscrete(np.array([[3, 4], [2, 2]])),
    "image": spaces.Box(0, 255, (6, 7), np.uint8),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Tuple([VECTOR]), spaces.Dict(on=spaces.MultiBinary(2))]),
    "camera": spaces.Dict(
        camera=spaces.Box(0, 255, (13, 12, 3), np.uint8), speed=spaces.Box(-np.inf, np.inf, (2,), np.float32)
    ),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "choice": CHOICE,
    "choices": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "switches": spaces.MultiBinary([2, 2]),
    "numbers": NUMBERS,
    "one number": spaces.Box(-2.0, 3.0, (), np.float32),
    "both": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3, start=4), spaces.MultiBinary(2)]),
    "several numbers": spaces.Dict(x=spaces.Box(-1.0, 4.0, (2,)), y=spaces.Tuple([spaces.Box(-2.0, 0.0, (1, 1))])),
}
ALGORITHMS: dict[str, tuple[Any, str]] = {
    "DQN": ("q", "choice"),
    "DDQN": ("q", "choice"),
    "QRDQN": ("quantile", "choice"),
    "DiscreteSAC": ("discrete-twin", "choice"),
    "ApeX": ("q", "choice"),
    "C51": ("categorical", "choice"),
    "Rainbow": ("categorical", "choice"),
    "PolicyGradient": ("policy", "choices"),
    "A2C": ("actor-critic", "both"),
    "BC": ("actor-critic", "numbers"),
    "DDPG": ("deterministic", "one number"),
    "TD3": ("twin", "several numbers"),
    "SAC": ("squashed", "numbers"),
    "CQL": ("squashed", "numbers"),
    "OAC": ("squashed", "numbers"),
    "IQL": ("implicit", "numbers"),
}


class Anything(gymnasium.Env[Any, Any]):
    """Shows samples of one space and takes any action of another."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = 5
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.action_space, spaces.Box):
            action = np.asarray(action)  # a single number is a scalar of numpy
        assert self.action_space.contains(action), action
        self._left -= 1
        return self.observation_space.sample(), 0.0, self._left == 0, False, {}


class Masked(Anything):
    """Allows one action more or less each time, in an entry of its observations."""

    def __init__(self) -> None:
        parts = {"speed": VECTOR, "action_mask": spaces.MultiBinary(3)}
        super().__init__(spaces.Dict(parts), CHOICE)

    def _with_mask(self, observation: Any) -> Any:
        observation["action_mask"][self._left % 3] = 1
        self._mask = observation["action_mask"]
        return observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return self._with_mask(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._mask[action - 1], "a masked action was chosen"
        observation, *rest = super().step(action)
        return self._with_mask(observation), *rest


def _agent(algorithm: str, model: Any) -> Any:
    return parl.Agent(getattr(parl.algorithms, algorithm)(model), seed=0)


def _exported(agent: Any, path: Path, env: Any, **options: Any) -> Any:
    """Export with a comparison in a fresh process, and load the file here."""
    written = export(agent, path, env, observations=30, **options)
    assert written.observations == 30
    assert written.equal >= 28, "more than rounding can account for"
    assert written.size == path.stat().st_size
    assert [file.name for file in path.parent.iterdir()] == [path.name], "temporary files are left"
    return load(path)


def _written(agent: Any, observation: Any, action: Any, path: Path) -> Any:
    """Write a file without a fresh process, load it, and compare its actions here, one by one and in a batch."""
    agent.obs_ndim = dimensions_of(observation)
    observation.seed(1)
    seen = [observation.sample() for _ in range(30)]
    valid = into_space(action, unit_box=acts_in_unit_box(agent), one_by_one=True)
    agent.eval()
    wanted = valid(agent.predict(map_nested(lambda *rows: np.stack(rows), *(named(observation, one) for one in seen))))
    path.write_bytes(pack(*describe(Pipeline(agent.alg, observation, action))))
    policy = load(path)
    for one, expected in zip(seen, wanted, strict=True):
        chosen = policy(one)
        assert action.contains(chosen)
        _assert_close(chosen, expected)
    batch: Any = create_empty_array(observation, len(seen))
    batched = policy(concatenate(observation, seen, batch))
    for row, expected in zip(one_each(action, batched), wanted, strict=True):
        _assert_close(row, expected)
    return policy


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed_everything(0)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_a_numpy_file_takes_any_observation(observation: str, tmp_path: Path) -> None:
    space = OBSERVATIONS[observation]
    model = parl.networks.for_spaces(space, CHOICE, "actor-critic", hidden=(8,))
    _written(_agent("PPO", model), space, CHOICE, tmp_path / "agent.policy")


@pytest.mark.parametrize("action", ACTIONS)
def test_a_numpy_file_gives_any_action(action: str, tmp_path: Path) -> None:
    space = ACTIONS[action]
    model = parl.networks.for_spaces(VECTOR, space, "actor-critic", hidden=(8, 8), blocks="simba")
    _written(_agent("PPO", model), VECTOR, space, tmp_path / "agent.policy")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_numpy_file_chooses_as_the_algorithm(algorithm: str, tmp_path: Path) -> None:
    kind, action = ALGORITHMS[algorithm]
    space = ACTIONS[action]
    options: dict[str, Any] = {"dueling": True} if kind in ("q", "categorical") else {}
    if algorithm == "Rainbow":
        options["noisy"] = 0.5  # of which a file has nothing
    model = parl.networks.for_spaces(VECTOR, space, kind, hidden=(8,), normalisation="layer", **options)
    policy = _written(_agent(algorithm, model), VECTOR, space, tmp_path / "agent.policy")
    assert policy.description["algorithm"] == algorithm


def _with_other_numbers(agent: Any, space: spaces.Space[Any]) -> Any:
    """Replace all weights and statistics by numbers that no layer starts with."""
    agent.predict(space.sample())  # layers without shapes get them
    rng, model = np.random.default_rng(0), agent.alg.model
    model.set_weights({name: rng.uniform(0.1, 0.5, array.shape) for name, array in model.get_weights().items()})
    return agent


def test_statistics_of_batch_normalisation_are_inside(tmp_path: Path) -> None:
    space = ACTIONS["numbers"]
    model = parl.networks.for_spaces(VECTOR, space, "batch-normalised", hidden=(8, 8))
    _written(_with_other_numbers(_agent("CrossQ", model), VECTOR), VECTOR, space, tmp_path / "agent.policy")


def test_batch_normalisation_of_images_is_inside(tmp_path: Path) -> None:
    space, layers = ACTIONS["numbers"], parl.layers
    model = parl.networks.for_spaces(STACK, space, "policy")
    model.trunk = type(model)._parts.sequential(layers.conv_2d(4, 2), layers.batch_norm(act="tanh"), layers.fc(2))
    _written(_with_other_numbers(_agent("PolicyGradient", model), STACK), STACK, space, tmp_path / "agent.policy")


@pytest.mark.parametrize("activation", ["elu", "gelu", "leaky_relu", "sigmoid", "silu", "softplus", "softmax"])
def test_a_numpy_file_has_every_activation(activation: str, tmp_path: Path) -> None:
    model = parl.networks.for_spaces(VECTOR, NUMBERS, "squashed", hidden=(8, 8), activation=activation)
    _written(_agent("SAC", model), VECTOR, NUMBERS, tmp_path / "agent.policy")


def test_a_file_gets_its_name_when_a_fresh_process_acts_alike(tmp_path: Path) -> None:
    space, action = OBSERVATIONS["tuple"], ACTIONS["both"]
    model = parl.networks.for_spaces(space, action, "actor-critic", hidden=(8,))
    policy = _exported(_agent("PPO", model), tmp_path / "agent.policy", partial(Anything, space, action))
    assert policy.description["written_by"].startswith("parl-core ")


def test_models_made_by_hand_are_exported(tmp_path: Path) -> None:
    frames = spaces.Box(0, 255, (4, 36, 36), np.uint8)
    policy = _exported(
        _agent("DQN", parl.networks.AtariQNetwork(3)), tmp_path / "agent.policy", partial(Anything, frames, CHOICE)
    )
    assert policy(frames.sample()) in (1, 2, 3)


def test_masks_are_inside(tmp_path: Path) -> None:
    space = Masked().observation_space
    model = parl.networks.for_spaces(space, CHOICE, "q", hidden=(8,))
    policy = _exported(_agent("DQN", model), tmp_path / "agent.policy", Masked)
    speed = VECTOR.sample()
    for only in range(3):
        mask = np.arange(3) == only
        assert policy({"speed": speed, "action_mask": mask}) == only + 1
    assert policy({"speed": speed, "action_mask": mask}, action_mask=[True, False, False]) == 1
    with pytest.raises(ValueError, match="leaves no action"):
        policy({"speed": speed, "action_mask": np.zeros(3)})


def test_normalisation_is_inside(tmp_path: Path) -> None:
    env = wrap_rms(gymnasium.make("Pendulum-v1"), gamma=0.99)
    env.reset(seed=0)
    for _ in range(100):
        env.step(env.action_space.sample())
    env.eval()
    model = parl.networks.for_spaces(env.observation_space, env.action_space, "actor-critic", hidden=(8,))
    agent = _agent("PPO", model)
    policy = _exported(agent, tmp_path / "agent.policy", "Pendulum-v1", normalization=env)
    seen = np.array([[0.3, -0.9, 5.0], [1.0, 0.0, -80.0]], np.float32)
    valid = into_space(env.action_space, unit_box=acts_in_unit_box(agent))
    np.testing.assert_allclose(policy(seen), valid(agent.predict(env._normalized(seen))), atol=1e-5)
    with pytest.raises(ValueError, match="NaN"):
        policy([0.0, np.nan, 0.0])


def test_flattening_is_inside(tmp_path: Path) -> None:
    def flat() -> Any:
        parts = {"place": spaces.Discrete(4, start=1), "speed": spaces.Box(-1.0, 1.0, (2, 2)), "on": spaces.Discrete(2)}
        return gymnasium.wrappers.FlattenObservation(Anything(spaces.Dict(parts), CHOICE))

    model = parl.networks.for_spaces(flat().observation_space, CHOICE, "q", hidden=(8,))
    policy = _exported(_agent("DQN", model), tmp_path / "agent.policy", flat)
    assert policy({"place": 4, "speed": np.zeros((2, 2)), "on": 1}) in (1, 2, 3)
    with pytest.raises(ValueError, match="4 choices"):
        policy({"place": 9, "speed": np.zeros((2, 2)), "on": 1})


def _formats() -> list[str]:
    """Return the formats of the backend in use that need its framework."""
    return [name for name, backend in FORMATS.items() if backend == parl.Agent.BACKEND]


@pytest.mark.slow
@pytest.mark.timeout(900)  # exporters take seconds of CPU, and a busy machine is slow
@pytest.mark.parametrize("number", range(2))
def test_a_format_of_the_framework_acts_alike(number: int, tmp_path: Path) -> None:
    if number >= len(_formats()):
        pytest.skip("this backend has one format of its own")
    to = _formats()[number]
    if to == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    model = parl.networks.for_spaces(Masked().observation_space, CHOICE, "q", hidden=(8,))
    written = export(_agent("DQN", model), tmp_path / "agent", Masked, to, observations=30)
    assert written.equal >= 28
    assert [file.name for file in tmp_path.iterdir()] == ["agent"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(2))
def test_a_format_of_the_framework_has_everything_inside(number: int, tmp_path: Path) -> None:
    if number >= len(_formats()):
        pytest.skip("this backend has one format of its own")
    to = _formats()[number]
    if to == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    parts = {"place": spaces.Discrete(4, start=1), "speed": spaces.Box(-1.0, 1.0, (2, 2)), "on": spaces.Discrete(2)}
    action = ACTIONS["both"]

    def flat() -> Any:
        return gymnasium.wrappers.FlattenObservation(Anything(spaces.Dict(parts), action))

    seen = flat().observation_space
    statistics = Normalization(np.linspace(-1.0, 1.0, seen.shape[0]), np.linspace(0.1, 2.0, seen.shape[0]), 2.0)
    model = parl.networks.for_spaces(seen, action, "actor-critic", hidden=(8, 8), blocks="simba")
    export(_agent("PPO", model), tmp_path / "flat", flat, to, observations=40, normalization=statistics)
    for name in ("several numbers", "one number"):
        space, action = OBSERVATIONS["camera"], ACTIONS[name]
        model = parl.networks.for_spaces(space, action, "squashed", hidden=(8,))
        written = export(_agent("SAC", model), tmp_path / name, partial(Anything, space, action), to, observations=40)
        assert 0.0 < written.difference < 1e-4


class Doubled:
    """A model of the user's, whose method does something that its layers do not tell."""

    def value(self, obs: Any) -> Any:
        return super().value(obs * -2.0)  # type: ignore[misc]  # of the network that it is mixed into


def test_a_model_with_a_method_of_its_own_has_no_numpy_form(tmp_path: Path) -> None:
    doubled = type("DoubledNetwork", (Doubled, parl.networks.QNetwork), {})
    with pytest.raises(ModelContractError, match="DoubledNetwork has no numpy form"):
        export(_agent("DQN", doubled(3, (8,))), tmp_path / "agent.policy", partial(Anything, VECTOR, CHOICE))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "shared"), [("actor-critic", True), ("actor-critic", False), ("q", None)])
@pytest.mark.parametrize("memory", ["gru", "lstm", "transformer"])
def test_a_memory_is_carried_from_step_to_step(tmp_path: Path, memory: Any, kind: Any, shared: bool | None) -> None:
    options = {"reach": 3, "blocks": 2} if memory == "transformer" else {}
    model = parl.networks.for_spaces(
        VECTOR, CHOICE, kind, memory=memory, memory_size=8, memory_options=options, hidden=(6,), shared=shared
    )
    agent = parl.Agent(parl.algorithms.PPO(model) if kind == "actor-critic" else parl.algorithms.DQN(model))
    agent.predict(VECTOR.sample())  # layers without shapes get them
    (tmp_path / "agent.policy").write_bytes(pack(*describe(Pipeline(agent.alg, VECTOR, CHOICE))))
    policy = load(tmp_path / "agent.policy")
    observations = np.random.default_rng(0).normal(size=(9, 2, 4)).astype(np.float32)
    ours, theirs = policy.initial_state(2), None
    alone = policy.initial_state()
    for batch in observations:
        expected, theirs = agent.predict(batch, state=theirs)
        actions, ours = policy(batch, state=ours)
        one, alone = policy(batch[0], state=alone)
        np.testing.assert_array_equal(actions, expected + CHOICE.start)
        assert one == actions[0]
        for name, array in ours.items():
            np.testing.assert_allclose(array, theirs[name], atol=1e-5)
            np.testing.assert_allclose(alone[name], array[0], atol=1e-6)
    scores = policy.scores(observations[0])
    assert not np.allclose(scores, policy.scores(observations[0], state=ours))
    with pytest.raises(ValueError, match="must have shape"):
        policy(observations[0], state=alone)


@pytest.mark.timeout(900)  # as above
@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "shared"),
    [
        pytest.param("gru", True, marks=pytest.mark.long),
        ("lstm", True),
        ("transformer", True),
        pytest.param("lstm", False, marks=pytest.mark.long),
    ],
)
def test_every_format_carries_a_memory_over_sequences(tmp_path: Path, memory: Any, shared: bool) -> None:
    observed = Masked().observation_space
    model = parl.networks.for_spaces(observed, CHOICE, "actor-critic", memory=memory, memory_size=8, shared=shared)
    agent = parl.Agent(parl.algorithms.A2C(model))
    for to in ("numpy", *_formats()):
        found = export(agent, tmp_path / to, Masked, to, observations=24)
        assert found.observations == 24
        assert found.equal >= 23


@pytest.mark.timeout(900)  # as above
@pytest.mark.slow
@pytest.mark.parametrize("observations", [1, *(pytest.param(count, marks=pytest.mark.long) for count in (2, 7))])
def test_few_observations_are_compared_as_well(observations: int, tmp_path: Path) -> None:
    """One sequence, or one row; exporters take programs that were recorded with one row for programs of one row."""
    observed = Masked().observation_space
    model = parl.networks.for_spaces(observed, CHOICE, "actor-critic", memory="gru", memory_size=8)
    without = parl.networks.for_spaces(observed, CHOICE, "actor-critic", hidden=(8,))
    for to in ("numpy", *_formats()):
        for name, agent in (("gru", parl.Agent(parl.algorithms.A2C(model))), ("mlp", _agent("PPO", without))):
            found = export(agent, tmp_path / f"{name}-{to}", Masked, to, observations=observations)
            assert found.observations == found.equal == observations


def test_a_file_that_forgets_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful = exporting._NUMPY.load.replace("policy(observations, state=state)", "policy(observations)")
    monkeypatch.setattr(exporting, "_NUMPY", exporting._NUMPY._replace(load=forgetful))
    model = parl.networks.for_spaces(VECTOR, NUMBERS, "actor-critic", memory="gru", memory_size=8)
    agent = parl.Agent(parl.algorithms.PPO(model))
    agent.predict(VECTOR.sample())
    agent.value(VECTOR.sample())
    model.set_weights({name: array * 30.0 for name, array in model.get_weights().items()})
    with pytest.raises(ExportError, match="by the exported file"):
        export(agent, tmp_path / "agent.policy", partial(Anything, VECTOR, NUMBERS), observations=60)
    assert not list(tmp_path.iterdir())


class Crowd:
    """Agents with different observations and actions, of which one leaves early, with PettingZoo's parallel API."""

    metadata: Mapping[str, Any] = MappingProxyType({"name": "crowd"})
    render_mode = None

    def __init__(self, kind: str) -> None:
        self.possible_agents = ["a", "b", "c"]
        self.agents: list[str] = []
        sees: list[Any] = [spaces.Box(-1.0, 1.0, (size,), np.float32) for size in (2, 3, 3)]
        acts: list[Any] = [spaces.Discrete(2), spaces.Discrete(3, start=1), spaces.Discrete(3)]
        if kind == "numbers":
            acts = [spaces.Box(-2.0, 3.0, (size,), np.float32) for size in (1, 2, 2)]
        if kind == "images":
            sees = [spaces.Box(0, 255, (2, 2, 1), np.uint8) for _ in range(3)]
        self._sees = dict(zip(self.possible_agents, sees, strict=True))
        self._acts = dict(zip(self.possible_agents, acts, strict=True))

    def observation_space(self, agent: str) -> Any:
        return self._sees[agent]

    def action_space(self, agent: str) -> Any:
        return self._acts[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        for i, space in enumerate(self._sees.values()):
            space.seed(None if seed is None else seed + i)
        self.agents, self._left = list(self.possible_agents), 5
        return self._shown()

    def step(self, actions: dict[str, Any]) -> Any:
        took, self._left = list(self.agents), self._left - 1
        for name in took:
            assert self._acts[name].contains(actions[name]), (name, actions[name])
            first = getattr(self._acts[name], "start", None)
            assert first is None or self._masks[name][actions[name] - first], "a masked action was chosen"
        ends = {name: self._left == 0 or (name == "c" and self._left == 2) for name in took}
        self.agents = [name for name in took if not ends[name]]
        seen, infos = self._shown()
        return seen, dict.fromkeys(took, 0.0), ends, dict.fromkeys(took, False), infos

    def close(self) -> None:
        pass

    def _shown(self) -> tuple[dict[str, Any], dict[str, Any]]:
        discrete = {name: space.n for name, space in self._acts.items() if isinstance(space, spaces.Discrete)}
        self._masks = {name: np.arange(n) != (0 if n == 2 else self._left % 3) for name, n in discrete.items()}
        infos = {name: {"action_mask": mask} for name, mask in self._masks.items()}
        return {name: space.sample() for name, space in self._sees.items()}, infos


def _crowd(kind: str) -> JointEnv:
    return JointEnv(Crowd(kind))


def _team(algorithm: str, kind: str, groups: Any, memory: Any = None) -> Any:
    env, made = _crowd(kind), getattr(parl.algorithms, algorithm)
    space, action = env.observation_space, env.action_space
    model = parl.networks.for_team(space, action, made.TEAM, hidden=(8,), groups=groups, memory=memory, memory_size=6)
    sizes: dict[str, Any] = {"n_actions": 3, "n_agents": 3} if algorithm == "COMA" else {}
    if algorithm == "QMIX":
        sizes = {"qmixer_model": parl.networks.QMixer(3)}
    agent = parl.Agent(made(model, **sizes), seed=0)
    agent.predict(env.reset(seed=0)[0])  # layers without shapes get them
    weights = model.get_weights()  # the first ones of policies are so small that actions hardly differ
    model.set_weights({name: array * (20.0 if "head" in name else 1.0) for name, array in weights.items()})
    return agent


TEAMS: list[tuple[str, str, Any, Any]] = [
    ("QMIX", "choices", "shared", None),
    ("QMIX", "choices", (0, 1, 0), "gru"),
    ("VDN", "images", "shared", None),
    ("VDN", "choices", "independent", "lstm"),
    ("MADDPG", "choices", "independent", None),
    ("MADDPG", "numbers", (0, 1, 1), None),
    ("MAPPO", "choices", "shared", None),
    ("MAPPO", "numbers", "shared", None),
    ("MAPPO", "choices", (1, 0, 1), "gru"),
    ("MAPPO", "numbers", "independent", "lstm"),
    ("IPPO", "choices", "independent", None),
    ("IPPO", "choices", "shared", "lstm"),
    ("COMA", "choices", (0, 0, 1), None),
    ("COMA", "images", "shared", "gru"),
]


@pytest.mark.parametrize(("algorithm", "kind", "groups", "memory"), TEAMS)
def test_a_numpy_file_acts_for_several_agents(algorithm: str, kind: str, groups: Any, memory: Any) -> None:
    """In episodes that one of them leaves early, for single observations, batches, and an agent alone."""
    env, agent = _crowd(kind), _team(algorithm, kind, groups, memory)
    seen: Any = env.observation_space
    policy = frozen(agent, seen, env.action_space)
    assert policy.description["algorithm"] == algorithm
    assert set(policy.description["observation"]["dict"]) == {"obs", "action_mask"} & set(seen.spaces)
    valid = into_space(env.action_space, unit_box=acts_in_unit_box(agent))
    chosen = []
    for episode in range(3):
        obs, _ = env.reset(seed=episode)
        ours, theirs, over = policy.initial_state(), agent.initial_state(), False
        while not over:
            if memory is None:
                action, expected = policy(obs), agent.predict(obs)
                batch = {name: np.stack([part] * 2) for name, part in obs.items()}
                np.testing.assert_allclose(policy(batch), [action] * 2, atol=1e-6)
                alone = {name: np.ones_like(part) * (name == "action_mask") for name, part in obs.items()}
                for name, part in alone.items():
                    part[0] = obs[name][0]
                np.testing.assert_allclose(policy(alone)[0], action[0], atol=1e-6)
            else:
                expected, theirs = agent.predict(obs, state=theirs)
                action, ours = policy(obs, state=ours)
                for name, array in ours.items():
                    np.testing.assert_allclose(array, theirs[name], atol=1e-5)
            np.testing.assert_allclose(action, valid(np.asarray(expected)[None])[0], atol=1e-5)
            chosen.append(np.asarray(action).tolist())
            obs, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
    assert len({str(action) for action in chosen}) > 1, "all actions are equal, which shows nothing"


@pytest.mark.slow
@pytest.mark.timeout(900)  # as above
@pytest.mark.parametrize(
    ("algorithm", "kind", "groups", "memory"),
    [*(TEAMS[i] for i in (1, 5)), *(pytest.param(*TEAMS[i], marks=pytest.mark.long) for i in (9, 13))],
)
def test_every_format_acts_for_several_agents(
    algorithm: str, kind: str, groups: Any, memory: Any, tmp_path: Path
) -> None:
    agent = _team(algorithm, kind, groups, memory)
    for to in ("numpy", *_formats()):
        written = export(agent, tmp_path / to, partial(_crowd, kind), to, observations=40)
        assert written.equal >= 38


class DoubledInputs:
    """A model of the user's, whose agents see something that its layers do not tell."""

    def _seen(self, obs: Any) -> Any:
        return super()._seen(obs) * -2.0  # type: ignore[misc]  # of the network that it is mixed into


def test_a_teams_network_with_a_method_of_its_own_has_no_numpy_form() -> None:
    env = _crowd("choices")
    own = type("OwnNetwork", (DoubledInputs, parl.networks.TeamQNetwork), {})(3, 3, (8,))
    agent = parl.Agent(parl.algorithms.VDN(own), obs_ndim=dimensions_of(env.observation_space))
    with pytest.raises(ModelContractError, match="OwnNetwork has no numpy form"):
        frozen(agent, env.observation_space, env.action_space)


def test_a_layer_without_a_numpy_form_is_named(tmp_path: Path) -> None:
    model = parl.networks.QNetwork(3, (8,))
    model.trunk = type(model)._parts.sequential(parl.layers.conv_2d(4, 2, groups=2), parl.layers.fc(8))
    with pytest.raises(ModelContractError, match=r"QNetwork\.trunk\.0 is Conv2d"):
        export(_agent("DQN", model), tmp_path / "agent.policy", partial(Anything, STACK, CHOICE))
    assert not list(tmp_path.iterdir())


def test_a_file_that_acts_otherwise_gets_no_name(tmp_path: Path) -> None:
    agent = _agent("DQN", parl.networks.QNetwork(3, (8,)))
    agent.predict = lambda obs: (type(agent).predict(agent, obs) + 1) % 3
    (tmp_path / "agent.policy").write_bytes(b"before")
    with pytest.raises(ExportError, match="by the exported file, and"):
        export(agent, tmp_path / "agent.policy", partial(Anything, VECTOR, CHOICE), observations=20)
    assert (tmp_path / "agent.policy").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_format_of_the_other_backend_is_refused(tmp_path: Path) -> None:
    agent = _agent("DQN", parl.networks.QNetwork(3, (8,)))
    other = "onnx" if agent.BACKEND == "paddle" else "paddle-inference"
    with pytest.raises(HyperparameterError, match=f"is written by the .* backend; this agent is on {agent.BACKEND}"):
        export(agent, tmp_path / "agent", partial(Anything, VECTOR, CHOICE), other)
    with pytest.raises(HyperparameterError, match="to must be one of numpy, onnx"):
        export(agent, tmp_path / "agent", partial(Anything, VECTOR, CHOICE), "gguf")


def test_the_command_exports_a_run(tmp_path: Path) -> None:
    from click.testing import CliRunner

    run = tmp_path / "run"
    steps = ["--steps", "200", "--run", str(run)]
    assert CliRunner().invoke(command, ["train", "dqn", "CartPole-v1", *steps]).exit_code == 0
    found = CliRunner().invoke(command, ["export", str(run), "--observations", "50"])
    assert found.exit_code == 0, found.output
    assert f"{run / 'agent.policy'}: " in found.output
    program = "import sys; from parl_core.policy import load; print(load(sys.argv[1])([0.0, 0.1, 0.0, 0.1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(run / "agent.policy")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in ("0", "1")
    (run / "best.ckpt").write_bytes(b"damaged")
    found = CliRunner().invoke(command, ["export", str(run)])
    assert found.exit_code == 1
    assert "damaged" in found.output


def _assert_close(found: Any, wanted: Any) -> None:
    if isinstance(found, (dict, tuple)):
        assert type(found) is type(wanted)
        for key in found if isinstance(found, dict) else range(len(found)):
            _assert_close(found[key], wanted[key])
    else:
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"a.b": VECTOR, "a": spaces.Dict(b=VECTOR)}, r"have the name observation\.a\.b in an exported policy"),
        ({1: VECTOR, 2: VECTOR}, "the keys in an exported policy are texts"),
    ],
)
def test_keys_that_a_file_cannot_name_are_refused(parts: Any, words: str) -> None:
    space, action = spaces.Dict(parts), spaces.Discrete(2)
    agent = parl.Agent(parl.algorithms.PPO(parl.networks.for_spaces(space, action)))
    with pytest.raises(ModelContractError, match=words):
        frozen(agent, space, action)
