"""Networks made of spaces: any observations and actions, with the loops and by hand, on the backend in use."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import parl
from parl_core.actors import InProcessActors
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.batches import Transitions
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError
from parl_core.export import frozen
from parl_core.seeding import seed_everything
from parl_core.training.actor_learner import ActorLearnerSettings, train_actor_learner
from parl_core.training.apex import ApexSettings, train_apex
from parl_core.training.evaluation import evaluate
from parl_core.training.novelty import make_novelty
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.on_policy import OnPolicySettings, train_on_policy

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "one number": spaces.Box(-1.0, 1.0, (), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "whole numbers": spaces.Box(0, 9, (3,), np.int64),
    "choice": spaces.Discrete(5, start=3),
    "many choices": spaces.Discrete(3_000),
    "choices": spaces.MultiDiscrete(np.array([[3, 4], [2, 2]])),
    "switches": spaces.MultiBinary([2, 2]),
    "8x8 image": spaces.Box(0, 255, (8, 8), np.uint8),
    "36x40x3 image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "two stacked images": spaces.Box(0.0, 1.0, (2, 12, 12, 3), np.float32),
    "dictionary": spaces.Dict(
        camera=spaces.Box(0, 255, (3, 12, 14), np.uint8),
        state=spaces.Dict(gear=spaces.Discrete(3), lamps=spaces.MultiBinary(2)),
        speed=spaces.Box(-np.inf, np.inf, (2,), np.float32),
    ),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Tuple([VECTOR]), spaces.Dict(on=spaces.Discrete(2))]),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "choice": spaces.Discrete(3, start=1),
    "choices": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "switches": spaces.MultiBinary([2, 2]),
    "numbers": spaces.Box(-2.0, 3.0, (2, 2), np.float32),
    "one number": spaces.Box(-2.0, 3.0, (), np.float32),
    "several choices": spaces.Dict(jump=spaces.Discrete(3), lamps=spaces.MultiBinary(2)),
    "several numbers": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Dict(x=spaces.Box(-2.0, 0.0, (1, 1)))]),
    "both": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3, start=4), spaces.MultiBinary(2)]),
}
NUMBERS = ["numbers", "one number", "several numbers"]


class Anything(gymnasium.Env[Any, Any]):
    """Shows samples of its space and takes any action of the other; an episode has five steps."""

    def __init__(self, observation: str = "vector", action: str = "choice") -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]
        self.observation_space.seed(0)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.action_space, spaces.Box):
            action = np.asarray(action)  # a single number is a scalar of numpy
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps >= 5, False, {}


def made(observation: str, action: str, kind: str, **options: Any) -> Any:
    return parl.networks.for_spaces(OBSERVATIONS[observation], ACTIONS[action], kind, **options)  # type: ignore[arg-type]  # a parameter of tests


def learn_on_policy(observation: str, action: str, **options: Any) -> Any:
    agent = parl.Agent(parl.algorithms.PPO(made(observation, action, "actor-critic", **options)))
    settings = OnPolicySettings(total_steps=12, n_steps=6, minibatch_size=6, epochs=1)
    kwargs = {"observation": observation, "action": action}
    with make_vector_env(Anything, 2, env_kwargs=kwargs) as envs:
        train_on_policy(agent, envs, settings, seed=0)
    evaluate(agent, Anything, 2, seed=0, env_kwargs=kwargs)
    return agent


def learn_off_policy(algorithm: str, observation: str, action: str, kind: str, **options: Any) -> Any:
    agent = parl.Agent(getattr(parl.algorithms, algorithm)(made(observation, action, kind, **options)))
    settings = OffPolicySettings(total_steps=12, learning_starts=8, batch_size=4, memory_size=100)
    kwargs = {"observation": observation, "action": action}
    with make_vector_env(Anything, 2, env_kwargs=kwargs) as envs:
        train_off_policy(agent, envs, settings, seed=0)
    evaluate(agent, Anything, 2, seed=0, env_kwargs=kwargs)
    return agent


def seeded(make: Any) -> Any:
    seed_everything(3)
    return make()


def weights_after(model: Any, *inputs: Any) -> list[Any]:
    agent = parl.Agent(parl.algorithms.PPO(model)) if hasattr(model, "policy_head") else None
    if agent is not None:
        agent.sample(inputs[0])
    elif hasattr(model, "trunk"):
        parl.Agent(parl.algorithms.DQN(model)).predict(inputs[0])
    else:
        agent = parl.Agent(parl.algorithms.SAC(model))
        agent.sample(inputs[0])
        agent.learn(inputs[0], np.zeros((3, 2)), np.zeros(3), inputs[0], np.zeros(3))
    return list(model.get_weights().items())


@pytest.mark.parametrize(
    ("kind", "action", "by_hand"),
    [
        ("actor-critic", spaces.Discrete(3), lambda: parl.networks.ActorCritic(3)),
        ("actor-critic", spaces.MultiDiscrete([2, 3]), lambda: parl.networks.ActorCritic(5)),
        ("actor-critic", spaces.Box(-1, 1, (2,)), lambda: parl.networks.ActorCritic(2, continuous=True)),
        ("q", spaces.Discrete(3), lambda: parl.networks.QNetwork(3)),
        ("squashed", spaces.Box(-1, 1, (2,)), lambda: parl.networks.SquashedActorCritic(2)),
    ],
)
def test_of_vectors_the_model_is_the_one_that_is_made_by_hand(kind: Any, action: Any, by_hand: Any) -> None:
    """The same names and, from the same seed, the same first weights (of SAC after one update)."""
    obs = np.ones((3, 4), np.float32)
    found = weights_after(seeded(lambda: parl.networks.for_spaces(VECTOR, action, kind)), obs)
    if kind == "actor-critic":
        expected_model = seeded(by_hand)
        expected_model.action_kind = parl.networks.for_spaces(VECTOR, action).action_kind
        expected = weights_after(expected_model, obs)
    else:
        expected = weights_after(seeded(by_hand), obs)
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, ours), (_, theirs) in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-3 if kind == "squashed" else 1e-5, err_msg=name)


def test_stacked_atari_frames_get_the_known_network() -> None:
    frames = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    model = parl.networks.for_spaces(frames, spaces.Discrete(6))
    agent = parl.Agent(parl.algorithms.PPO(model))
    agent.sample(np.zeros((2, 4, 84, 84), np.uint8))
    shapes = sorted(weight.shape for weight in model.get_weights(portable=True).values())
    other = parl.networks.AtariActorCritic(6)
    parl.Agent(parl.algorithms.PPO(other)).sample(np.zeros((2, 4, 84, 84), np.uint8))
    assert shapes == sorted(weight.shape for weight in other.get_weights(portable=True).values())


def features_of(space: spaces.Space[Any], obs: Any) -> Any:
    """Return the features that the encoder of a Q network without hidden layers computes, seen through unit weights."""
    model: Any = parl.networks.for_spaces(space, spaces.Discrete(2), "q", hidden=())
    agent = parl.Agent(parl.algorithms.DQN(model))
    return np.asarray(agent.run(model.trunk, obs))


def test_choices_are_one_hot_and_parts_lie_side_by_side() -> None:
    space = spaces.Dict(
        a=spaces.Discrete(3, start=5),
        b=spaces.MultiDiscrete([2, 3], start=[1, 0]),
        c=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-9.0, 9.0, (1, 2))]),
    )
    obs = {
        "a": np.array([5, 7]),
        "b": np.array([[1, 0], [2, 2]]),
        "c": {"0": np.array([[1, 0], [1, 1]], np.int8), "1": np.array([[[3.0, -2.0]], [[0.5, 0.0]]], np.float32)},
    }
    expected = [[1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 3.0, -2.0], [0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0.5, 0.0]]
    np.testing.assert_array_equal(features_of(space, obs), expected)


def test_the_order_of_channels_makes_no_difference() -> None:
    images = np.random.default_rng(0).integers(256, size=(3, 12, 10, 3), dtype=np.uint8)
    last = seeded(lambda: features_of(spaces.Box(0, 255, (12, 10, 3), np.uint8), images))
    first_images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    first = seeded(lambda: features_of(spaces.Box(0, 255, (3, 12, 10), np.uint8), first_images))
    np.testing.assert_allclose(first, last, rtol=1e-5, atol=1e-6)


def test_images_with_bounds_are_scaled_to_the_unit_interval() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(2, 6, 6, 1), dtype=np.uint8)
    of_bytes = seeded(lambda: features_of(spaces.Box(0, 255, (6, 6, 1), np.uint8), pixels))
    shifted = spaces.Box(-1.0, 1.0, (6, 6, 1), np.float32)
    of_floats = seeded(lambda: features_of(shifted, (pixels / 127.5 - 1.0).astype(np.float32)))
    np.testing.assert_allclose(of_bytes, of_floats, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_on_policy_learning_takes_any_observations(observation: str) -> None:
    agent = learn_on_policy(observation, "choice")
    one = Anything(observation).reset()[0]
    assert agent.predict(one) in range(3)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_any_observations_are_new(observation: str) -> None:
    agent = parl.Agent(parl.algorithms.PPO(made(observation, "choice", "actor-critic")))
    settings = OnPolicySettings(total_steps=12, n_steps=6, minibatch_size=6, epochs=1)
    with make_vector_env(Anything, 2, env_kwargs={"observation": observation}) as envs:
        novelty = make_novelty(envs.single_observation_space, {"hidden": (8,), "epochs": 1})
        train_on_policy(agent, envs, settings, novelty=novelty, seed=0)
    assert int(novelty.get_state()["seen"]["count"]) == 12


@pytest.mark.parametrize("action", ACTIONS)
def test_on_policy_learning_acts_in_any_space(action: str) -> None:
    learn_on_policy("dictionary", action)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_off_policy_learning_takes_any_observations(observation: str) -> None:
    agent = learn_off_policy("DQN", observation, "choice", "q", dueling=True)
    assert agent.predict(Anything(observation).reset()[0]) in range(3)


@pytest.mark.parametrize("action", NUMBERS)
@pytest.mark.parametrize(("algorithm", "kind"), [("DDPG", "deterministic"), ("TD3", "twin"), ("SAC", "squashed")])
def test_off_policy_learning_chooses_numbers_in_any_parts(algorithm: str, kind: str, action: str) -> None:
    learn_off_policy(algorithm, "dictionary", action, kind)


def test_implicit_q_learning_takes_dictionaries() -> None:
    model = made("dictionary", "numbers", "implicit")
    agent = parl.Agent(parl.algorithms.IQL(model))
    obs = {"camera": np.zeros((3, 3, 12, 14), np.uint8), "speed": np.ones((3, 2), np.float32)}
    obs["state"] = {"gear": np.array([0, 1, 2]), "lamps": np.ones((3, 2), np.int8)}  # type: ignore[assignment]  # nested
    batch = Transitions(obs, np.zeros((3, 4), np.float32), np.ones(3), obs, np.zeros(3))
    assert all(np.isfinite(figure) for figure in agent.learn(batch))


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": "simba"},
        {"normalisation": "layer"},
        {"shared": True},
        {"shared": False},
        {"activation": "silu", "hidden": (16,)},
    ],
)
def test_options_change_the_layers(options: dict[str, Any]) -> None:
    agent = learn_on_policy("dictionary", "both", **options)
    assert hasattr(agent.alg.model, "policy_and_value") is (options.get("shared") is not False)


def test_the_policy_gradient_has_a_network_of_its_own() -> None:
    for action in ("choice", "choices", "numbers"):
        agent = parl.Agent(parl.algorithms.PolicyGradient(made("choice", action, "policy")))
        assert agent.alg.actions == agent.alg.model.action_kind
        _, chosen, log_prob = agent.explore(np.array([3, 7]))
        assert len(chosen) == len(log_prob) == 2
        agent.learn(np.array([3, 7]), chosen, np.ones(2))


def test_masked_choices_are_never_made_and_the_mask_is_no_feature() -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(5), seen=VECTOR)
    mask = np.tile(np.array([1, 0, 0, 1, 0], np.int8), (200, 1))
    obs = {"action_mask": mask, "seen": np.zeros((200, 4), np.float32)}
    parts = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    agent = parl.Agent(parl.algorithms.PPO(parl.networks.for_spaces(space, parts)))
    value, action, log_prob, entropy = agent.sample(obs)
    assert (action == [0, 1]).all()
    np.testing.assert_allclose([log_prob, entropy], 0.0, atol=1e-5)
    assert (agent.predict(obs) == [0, 1]).all()
    assert value.shape == (200,)
    q = parl.Agent(parl.algorithms.DQN(parl.networks.for_spaces(space, spaces.Discrete(5), "q")))
    assert set(q.sample(obs, epsilon=1.0)) == {0, 3}
    assert set(q.predict(obs)) <= {0, 3}
    assert next(w.shape for w in q.get_weights().values() if w.ndim == 2) in ((128, 4), (4, 128))


def test_targets_leave_forbidden_choices_out() -> None:
    """The value of the next state is that of its best possible action, not of a better one that is forbidden."""
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), seen=spaces.Box(-1.0, 1.0, (1,), np.float32))
    model = parl.networks.for_spaces(space, spaces.Discrete(2), "q", hidden=())
    agent = parl.Agent(parl.algorithms.DQN(model, gamma=1.0))

    def of(mask: list[int]) -> dict[str, Any]:
        return {"action_mask": np.array([mask], np.int8), "seen": np.ones((1, 1), np.float32)}

    now = of([1, 1])
    agent.predict(now)
    q = agent.run(agent.alg.predict, now)[0]
    for mask in ([1, 0], [0, 1]):
        agent.alg.sync_target()
        weights = agent.get_weights()
        _, errors = agent.learn(now, [0], [0.0], of(mask), [0.0], weights=np.ones(1, np.float32))
        np.testing.assert_allclose(errors[0], q[mask.index(1)] - q[0], atol=1e-5)
        agent.set_weights(weights)


def test_choices_and_numbers_have_the_log_density_of_their_product() -> None:
    agent = parl.Agent(parl.algorithms.PPO(made("vector", "both", "actor-critic")))
    assert agent.alg.actions == ActionKind(continuous=True, nvec=(3, 2, 2))
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    _, action, log_prob, entropy = agent.sample(obs)
    logits, mean, _ = agent.run(agent.alg.model.policy, obs)
    expected, information = np.zeros(6), np.zeros(6)
    for low, high, column in ((0, 3, 0), (3, 5, 1), (5, 7, 2)):
        part = logits[:, low:high]
        logs = part - np.log(np.exp(part).sum(1, keepdims=True))
        expected += np.take_along_axis(logs, action[:, column, None].astype(int), 1)[:, 0]
        information -= (np.exp(logs) * logs).sum(1)
    expected += (-0.5 * (action[:, 3:] - mean) ** 2 - 0.5 * np.log(2.0 * np.pi)).sum(1)
    np.testing.assert_allclose(log_prob, expected, atol=1e-4)
    np.testing.assert_allclose(entropy, information + np.log(2.0 * np.pi * np.e), atol=1e-4)


def test_an_agent_takes_the_dimensions_of_its_observations_from_the_model() -> None:
    agent = parl.Agent(parl.algorithms.DQN(made("tuple", "choice", "q")))
    one = (2, (np.zeros(4, np.float32),), {"on": 1})
    assert agent.predict(one) in range(3)
    batch = (np.array([0, 1]), (np.zeros((2, 4), np.float32),), {"on": np.array([0, 1])})
    assert agent.predict(batch).shape == (2,)


def test_one_pass_of_the_policy_makes_all_weights_of_a_shared_trunk(tmp_path: Path) -> None:
    agent = parl.Agent(parl.algorithms.PPO(parl.networks.AtariActorCritic(6)))
    agent.predict(np.zeros((4, 84, 84), np.uint8))
    agent.save(str(tmp_path / "agent.ckpt"))
    assert len(agent.get_weights()) == len(list(agent.alg.model.parameters()))


def test_agents_of_dictionaries_are_saved_and_restored(tmp_path: Path) -> None:
    agents = [parl.Agent(parl.algorithms.PPO(made("dictionary", "both", "actor-critic"))) for _ in range(2)]
    obs = Anything("dictionary").reset()[0]
    first, _ = agents[0].predict(obs), agents[0].sample(obs)
    agents[0].save(tmp_path / "agent.ckpt")
    agents[1].restore(tmp_path / "agent.ckpt")
    np.testing.assert_allclose(agents[1].predict(obs), first, rtol=1e-6)


@pytest.mark.parametrize(
    ("observation", "action", "kind", "words"),
    [
        (spaces.Text(5), ACTIONS["choice"], "q", r"the observation is Text.*a fixed number of tokens"),
        (spaces.Dict(a=VECTOR, b=spaces.Tuple([spaces.Text(5)])), ACTIONS["choice"], "q", r"observation\['b'\]\['0'\]"),
        (spaces.Sequence(VECTOR), ACTIONS["choice"], "q", r"arrays of a fixed shape"),
        (VECTOR, spaces.Text(5), "actor-critic", r"no policy chooses in Text"),
        (VECTOR, spaces.Dict({}), "actor-critic", r"nothing to choose in the actions Dict\(\)"),
        (VECTOR, spaces.Box(0, 5, (2,), np.int64), "actor-critic", r"no policy chooses in Box.*int64"),
        (VECTOR, ACTIONS["choice"], "squashed", r"'squashed' choose numbers.*got Discrete.*'q' \(DQN\)"),
        (VECTOR, ACTIONS["numbers"], "q", r"'q' choose in a Discrete space.*'squashed' \(SAC\)"),
        (VECTOR, ACTIONS["both"], "policy", r"use PPO or A2C"),
        (VECTOR, ACTIONS["choice"], "value", r"kind must be one of 'actor-critic'.*got 'value'"),
        (spaces.Dict(action_mask=spaces.MultiBinary(2), x=VECTOR), ACTIONS["choice"], "q", r"must have 3 entries"),
        (spaces.Dict(action_mask=spaces.MultiBinary(3)), ACTIONS["choice"], "q", r"nothing to observe"),
        (
            spaces.Box(-1, 1, (0,)),
            ACTIONS["choice"],
            "q",
            r"nothing to observe in Box\(.*such as a Box of shape \(1,\)",
        ),
    ],
)
def test_what_no_network_is_made_of_is_refused_in_words(observation: Any, action: Any, kind: Any, words: str) -> None:
    with pytest.raises(HyperparameterError, match=words):
        parl.networks.for_spaces(observation, action, kind)


def test_a_part_without_numbers_is_observed_beside_others() -> None:
    space = spaces.Dict(empty=spaces.Box(-1, 1, (0,)), full=VECTOR)
    agent = parl.Agent(parl.algorithms.PPO(parl.networks.for_spaces(space, ACTIONS["choice"])))
    obs = {key: np.stack([part] * 3) for key, part in space.sample().items()}
    assert agent.predict(obs).shape == (3,)


def test_options_that_mean_nothing_are_refused() -> None:
    for options, words in (
        ({"normalisation": "batch"}, "normalisation must be one of"),
        ({"blocks": "resnet"}, "blocks must be one of"),
        ({"channels": "middle"}, "channels must be"),
        ({"hidden": (0,)}, r"hidden\[0\] must be"),
        ({"hidden": 64}, r"hidden lists the size of each layer, such as hidden=\(64,\), got 64"),
        ({"blocks": "simba", "hidden": (16, 32)}, "one width for all blocks"),
        ({"activation": "softsign"}, "no activation 'softsign'"),
        ({"dueling": True}, "dueling=True is for networks of the kind 'q' or 'categorical', got 'actor-critic'"),
        ({"kind": "q", "shared": True}, "shared=True is for networks of the kind 'actor-critic', got 'q'"),
        ({"kind": "q", "atoms": 21}, "atoms=21 is for networks of the kind 'categorical', got 'q'"),
        ({"kind": "q", "quantiles": 8}, "quantiles=8 is for networks of the kind 'quantile' or"),
        ({"kind": "quantile", "quantiles": 0}, "quantiles must be at least 1, got 0"),
        ({"noisy": 0.5}, "noisy=0.5 is for networks of the kind 'q' or"),
        ({"kind": "quantile", "memory": "gru"}, "memory='gru' is for networks of the kind 'actor-critic' or 'q'"),
        ({"kind": "batch-normalised", "blocks": "simba"}, "blocks='simba' is for networks of the kind"),
        ({"kind": "batch-normalised", "normalisation": "layer"}, "normalisation='layer' is for networks of the kind"),
        ({"kind": "normalised-twin", "blocks": "simba"}, "blocks='simba' is for networks of the kind"),
        ({"kind": "ensemble", "dropout": 0.1, "blocks": "simba"}, "leave out blocks='simba'"),
        ({"channels": "first"}, "channels='first' has no effect without images that have channels"),
    ):
        with pytest.raises(HyperparameterError, match=words):
            parl.networks.for_spaces(VECTOR, ACTIONS["choice"], **options)  # type: ignore[arg-type]  # as users write it


@pytest.mark.parametrize("algorithm", ["IMPALA", "ApeX"])
def test_loops_of_actors_take_observed_choices_that_do_not_begin_at_0(algorithm: str) -> None:
    impala = algorithm == "IMPALA"

    def make() -> Any:
        steps = {"sample_batch_steps": 3} if impala else {}
        model = made("choice", "choice", "actor-critic" if impala else "q")
        return parl.Agent(getattr(parl.algorithms, algorithm)(model, **steps))

    train: Any = train_actor_learner if impala else train_apex
    settings = (ActorLearnerSettings if impala else ApexSettings)(
        total_steps=24, n_actors=1, groups=2, envs_per_group=2, n_steps=3
    )
    kwargs = {"observation": "choice", "action": "choice"}
    assert train(make(), make, Anything, settings, actors=InProcessActors(), env_kwargs=kwargs, seed=0).step >= 24


def test_networks_that_have_acted_on_nothing_become_policies_of_any_observation() -> None:
    for observation, space in OBSERVATIONS.items():
        agent = parl.Agent(parl.algorithms.DQN(made(observation, "choice", "q")))
        frozen(agent, space, ACTIONS["choice"])


@pytest.mark.parametrize("inference", ["actors", "learner"])
@pytest.mark.parametrize(("algorithm", "action"), [("PPO", "both"), ("A2C", "several choices"), ("IMPALA", "choice")])
def test_actors_and_a_learner_take_any_parts(algorithm: str, action: str, inference: str) -> None:
    def make() -> Any:
        steps = {"sample_batch_steps": 3} if algorithm == "IMPALA" else {}
        return parl.Agent(getattr(parl.algorithms, algorithm)(made("tuple", action, "actor-critic"), **steps))

    settings = ActorLearnerSettings(
        total_steps=24, n_actors=1, groups=2, envs_per_group=2, n_steps=3, max_lag=0, inference=inference
    )
    kwargs = {"observation": "tuple", "action": action}
    ended = train_actor_learner(make(), make, Anything, settings, actors=InProcessActors(), env_kwargs=kwargs, seed=0)
    assert ended.step >= 24


def test_a_clone_keeps_numbers_within_their_bounds_and_choices_as_they_are() -> None:
    action = spaces.Tuple([spaces.Discrete(5), spaces.Box(-1.0, 1.0, (2,))])
    model = parl.networks.for_spaces(VECTOR, action, kind="actor-critic")
    agent = parl.Agent(parl.algorithms.BC(model))
    obs = np.zeros((500, *VECTOR.shape), np.float32)
    drawn = agent.sample(obs)
    assert set(drawn[:, 0]) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert np.abs(drawn[:, 1:]).max() == 1.0
    assert np.isfinite(agent.learn(obs, drawn, np.zeros(500), obs, np.zeros(500)))
