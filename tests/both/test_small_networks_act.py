"""Small networks act in numpy: the actions of the framework, and the framework for everything else."""

import copy
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import parl
from parl.algorithms import A2C, DDPG, DDQN, DQN, IMPALA, PPO, TD3
from parl.networks import ActorCritic, DeterministicActorCritic, QNetwork, SharedActorCritic, TwinActorCritic
from parl_core import backends
from parl_core._small_networks import HostActing, Parts
from parl_core.env.vector import make_vector_env
from parl_core.errors import DivergedError, SpoiledBatchError
from parl_core.seeding import seed_everything
from parl_core.training._group_actor import CollectingActor
from parl_core.training.acting import Acting
from parl_core.training.fragment import Task
from parl_core.training.on_policy import RolloutCollector

NAME = backends.current().name
framework: Any = import_module(NAME)
nn: Any = framework.nn
functional: Any = nn.functional

OBS_DIM, ACT_DIM, SIZES = 5, 3, (3, 2, 4)
CONTINUOUS, FRAGMENTS = {"continuous_action": True}, {"sample_batch_steps": 4}


class Elu(parl.Model):
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(OBS_DIM, 32), nn.ELU(), nn.Linear(32, ACT_DIM), nn.Tanh())

    def value(self, obs: Any) -> Any:
        return self.net(obs)


class Trunk(parl.Model):
    """Policy and value over common layers, in one pass."""

    def __init__(self) -> None:
        self.trunk = nn.Sequential(nn.Linear(OBS_DIM, 32), nn.ELU())
        self.pi, self.v = nn.Linear(32, ACT_DIM), nn.Linear(32, 1)

    def policy(self, obs: Any) -> Any:
        return self.pi(self.trunk(obs))

    def value(self, obs: Any) -> Any:
        return self.v(self.trunk(obs))

    def policy_and_value(self, obs: Any) -> tuple[Any, Any]:
        features = self.trunk(obs)
        return self.pi(features), self.v(features)


def an_agent(kind: type[Any], make: Callable[[], Any], **settings: Any) -> Any:
    seed_everything(4)
    return parl.Agent(kind(make(), device="cpu", **settings), seed=1)


def assign(parameter: Any, values: Any) -> None:
    """Give a parameter other values, in its own memory."""
    values = tensor(np.broadcast_to(np.asarray(values, np.float32), tuple(parameter.shape)).copy())
    with framework.no_grad():
        parameter.copy_(values) if NAME == "torch" else framework.assign(values, parameter)


def tensor(array: NDArray[Any]) -> Any:
    return framework.as_tensor(array) if NAME == "torch" else framework.to_tensor(array)


def layers_of(model: Any) -> list[Any]:
    return list(model.modules() if NAME == "torch" else model.sublayers(include_self=True))


def actor_critic() -> Any:
    return ActorCritic(ACT_DIM, (32, 32))


def gaussian() -> Any:
    return moved(ActorCritic(ACT_DIM, (32, 32), continuous=True))


def shared_gaussian() -> Any:
    return moved(SharedActorCritic(ACT_DIM, (32, 32), continuous=True))


def moved(model: Any) -> Any:
    """Return a model whose standard deviations are not 1."""
    assign(model.log_std, np.linspace(-0.7, 0.4, ACT_DIM))
    return model


def several() -> Any:
    return ActorCritic(sum(SIZES), (32, 32))


def q_network() -> Any:
    return QNetwork(ACT_DIM, (32, 32))


def observations(rows: int = 6) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(size=(rows, OBS_DIM)).astype(np.float32)


def by_framework(agent: Any, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any]) -> Any:
    with monkeypatch.context() as patched:
        patched.setattr(type(agent.alg), "FRAMEWORK", None)
        return call(agent)


def acts_on_host(agent: Any, method: str) -> bool:
    acting = agent.alg.__dict__.get("_host_acting", {}).get(method)
    return isinstance(acting, HostActing) and acting.is_chain


CASES: list[tuple[type[Any], Callable[[], Any], str, dict[str, Any]]] = [
    (DQN, q_network, "predict", {}),
    (DDQN, Elu, "predict", {}),
    (PPO, actor_critic, "value", {}),
    (PPO, actor_critic, "predict", {}),
    (A2C, actor_critic, "value", {}),
    (A2C, Trunk, "value", {}),
    (PPO, Trunk, "predict", {}),
    (PPO, gaussian, "predict", CONTINUOUS),
    (PPO, gaussian, "value", CONTINUOUS),
    (A2C, shared_gaussian, "value", CONTINUOUS),
    (PPO, several, "predict", {"nvec": SIZES}),
    (DDPG, lambda: DeterministicActorCritic(ACT_DIM, (32, 32)), "predict", {}),
    (TD3, lambda: TwinActorCritic(ACT_DIM, (32, 32)), "predict", {}),
    (IMPALA, actor_critic, "logits", FRAGMENTS),
    (IMPALA, actor_critic, "value", FRAGMENTS),
    (IMPALA, gaussian, "logits", {**FRAGMENTS, **CONTINUOUS}),
    (IMPALA, Trunk, "predict", FRAGMENTS),
]


@pytest.mark.parametrize(("kind", "make", "method", "settings"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_outputs_are_those_of_the_framework(
    kind: Any, make: Any, method: str, settings: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, obs = an_agent(kind, make, **settings), observations().astype(dtype)
    bound = getattr(agent.alg, method)
    found = agent._forward(bound, obs)
    assert acts_on_host(agent, method)
    expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(bound, obs))
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


DRAWING: list[tuple[type[Any], Callable[[], Any], str, dict[str, Any]]] = [
    (PPO, actor_critic, "sample", {}),
    (PPO, actor_critic, "explore", {}),
    (PPO, Trunk, "explore", {}),
    (PPO, several, "sample", {"nvec": SIZES}),
    (PPO, gaussian, "sample", CONTINUOUS),
    (PPO, shared_gaussian, "explore", CONTINUOUS),
    (A2C, actor_critic, "explore", {}),
    (A2C, several, "sample", {"nvec": SIZES}),
    (A2C, gaussian, "sample", CONTINUOUS),
    (IMPALA, actor_critic, "sample", FRAGMENTS),
    (IMPALA, gaussian, "sample", {**FRAGMENTS, **CONTINUOUS}),
]


@pytest.mark.parametrize(("kind", "make", "method", "settings"), DRAWING)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_draws_are_those_of_the_framework(
    kind: Any, make: Any, method: str, settings: Any, dtype: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = an_agent(kind, make, **settings)
    getattr(agent, method)(observations())  # which gives layers their shapes
    agent = parl.Agent(kind(agent.alg.model.to(dtype=getattr(framework, dtype)), device="cpu", **settings))

    def draw(agent: Any) -> Any:
        seed_everything(8)
        return [getattr(agent, method)(observations(rows)) for _ in range(20)]

    found, expected = draw(agent), by_framework(agent, monkeypatch, draw)
    assert acts_on_host(agent, "sample_actions" if method == "sample" else method)
    for one, other in zip(found, expected, strict=True):
        for part, wanted in zip(one, other, strict=True):
            assert (part.shape, part.dtype) == (wanted.shape, wanted.dtype)
            tolerance = 1e-6 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(part, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "make", "settings"),
    [(PPO, actor_critic, {}), (A2C, gaussian, CONTINUOUS), (IMPALA, Trunk, FRAGMENTS)],
)
def test_loops_act_as_their_agent_does_and_see_new_weights(
    kind: type[Any], make: Callable[[], Any], settings: dict[str, Any]
) -> None:
    name = "logits" if kind is IMPALA else "explore"
    agent, obs = an_agent(kind, make, **settings), observations()
    act = Acting(agent, len(obs)).steady(name, obs)
    assert act != getattr(agent, name)
    for scale in (1.0, 0.5, 2.0):
        agent.set_weights({name: scale * array for name, array in agent.get_weights().items()})
        results = []
        for method in (getattr(agent, name), act):
            with agent.drawing_from(3):
                results.append(method(obs))
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
    wider = np.zeros((2, OBS_DIM + 1), np.float32)
    with pytest.raises(ValueError, match=f"shape .{OBS_DIM + 1}"):
        act(wider)
    with pytest.raises(SpoiledBatchError, match="of observation 1 is NaN"):
        act(np.array([[0.0] * OBS_DIM, [np.nan] * OBS_DIM], np.float32))
    assert np.shape(act(obs[0])[0]) == np.shape(getattr(agent, name)(obs[0])[0])


def test_loops_act_by_the_framework_where_a_subclass_or_another_network_does() -> None:
    class Own(parl.Agent):
        def explore(self, obs: Any, **options: Any) -> Any:
            return super().explore(obs, **options)

    agent, obs = an_agent(PPO, actor_critic), observations()
    own = Own(agent.alg)
    assert Acting(own, len(obs)).steady("explore", obs) == own.explore
    replaced = Acting(agent, len(obs))
    agent.explore = own.explore
    assert replaced.steady("explore", obs) != agent.explore
    pictures = np.zeros((2, 4, 8, 8), np.float32)
    assert Acting(agent, 2).steady("explore", pictures) == agent.explore


def test_layers_are_looked_at_once_in_a_fragment_and_in_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Parts] = []
    are_same = Parts.are_same

    def look(parts: Parts) -> bool:
        looks.append(parts)
        return are_same(parts)

    monkeypatch.setattr(Parts, "are_same", look)
    make = partial(an_agent, IMPALA, lambda: ActorCritic(2, (8,)), sample_batch_steps=16)
    actor = CollectingActor(make, 16, 0.99, 0.95, env="CartPole-v1", env_kwargs={}, lives={0: 0}, size=2, seed=1)
    learner = make()
    learner.predict(np.zeros(4, np.float32))
    actor.collect(Task(0, 0), 0, learner.get_weights())
    looks.clear()
    actor.collect(Task(0, 1), 0, None)
    assert len(looks) == 1
    agent = an_agent(PPO, lambda: ActorCritic(2, (8,)))
    with make_vector_env("CartPole-v1", 2) as envs:
        collector = RolloutCollector(agent, envs, 16, 1)
        collector.collect()
        looks.clear()
        collector.collect()
    assert len(looks) <= 3  # for the values after the rollout, too


@pytest.mark.parametrize("method", ["sample", "explore", "predict"])
@pytest.mark.parametrize("kind", [PPO, A2C])
@pytest.mark.parametrize(("make", "settings"), [(actor_critic, {}), (several, {"nvec": SIZES})])
def test_masks_are_those_of_the_framework(
    kind: Any, make: Any, settings: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = an_agent(kind, make, **settings)
    mask = np.ones((6, sum(SIZES) if settings else ACT_DIM), np.bool_)
    mask[:4, 0] = mask[3:, 1] = False
    mask[4, 0] = True

    def act(agent: Any) -> Any:
        seed_everything(8)
        return [getattr(agent, method)(observations(), action_mask=mask) for _ in range(20)]

    found, expected = act(agent), by_framework(agent, monkeypatch, act)
    assert acts_on_host(agent, "sample_actions" if method == "sample" else method)
    for one, other in zip(found, expected, strict=True):
        for part, wanted in zip(*((one, other) if isinstance(one, tuple) else ([one], [other])), strict=True):
            np.testing.assert_allclose(part, wanted, rtol=1e-6, atol=1e-6)


def test_frequencies_of_draws_are_the_probabilities() -> None:
    agent = an_agent(PPO, actor_critic)
    agent.explore(observations())
    seed_everything(3)
    assign(agent.alg.model.policy_head.bias, [0.0, 1.0, -1.0])
    drawn = np.concatenate([agent.explore(np.zeros((50, OBS_DIM), np.float32))[1] for _ in range(200)])
    shares = np.bincount(drawn, minlength=ACT_DIM) / len(drawn)
    powers = np.exp([0.0, 1.0, -1.0])
    np.testing.assert_allclose(shares, powers / powers.sum(), atol=0.02)


def test_masks_of_methods_without_them_or_of_another_shape_are_refused() -> None:
    agent, impala = an_agent(PPO, actor_critic), an_agent(IMPALA, actor_critic, sample_batch_steps=4)
    impala.sample(observations())
    with pytest.raises(TypeError):
        impala.sample(observations(), action_mask=np.ones((6, ACT_DIM), np.bool_))
    agent.explore(observations())
    with pytest.raises(ValueError, match="mask"):
        agent.explore(observations(), action_mask=np.ones((6, ACT_DIM + 1), np.bool_))
    with pytest.raises(TypeError):
        agent.value(observations(), action_mask=np.ones((6, ACT_DIM), np.bool_))


class Wrong(ActorCritic):
    """A policy that gives something else than its kind of actions asks for."""

    def __init__(self, means: int, deviations: int) -> None:
        super().__init__(means, (32, 32))
        self.deviations = parl.layers.create_parameter([deviations], default_initializer=0.0) if deviations else None

    def policy(self, obs: Any) -> Any:
        means = super().policy(obs)
        return means if self.deviations is None else (means, self.deviations.exp())


Wrong.__module__ = ActorCritic.__module__
Wrong.policy.__module__ = ActorCritic.__module__


@pytest.mark.parametrize(("means", "deviations", "settings"), [(3, 0, CONTINUOUS), (1, 3, CONTINUOUS), (3, 3, {})])
@pytest.mark.parametrize("method", ["sample", "explore"])
def test_policies_of_another_kind_are_left_to_the_framework(
    means: int, deviations: int, settings: Any, method: str
) -> None:
    agent = an_agent(PPO, lambda: Wrong(means, deviations), **settings)
    for _ in range(2):
        with pytest.raises((ValueError, TypeError, RuntimeError, AttributeError)):
            getattr(agent, method)(observations())


class Doubled(DQN):
    """A subclass with another `predict`."""

    def predict(self, obs: Any) -> Any:
        return -super().predict(obs)


def test_subclasses_with_another_predict_act_by_it() -> None:
    plain, other = an_agent(DQN, q_network), an_agent(Doubled, q_network)
    obs = observations()
    expected = -plain._forward(plain.alg.predict, obs)
    np.testing.assert_allclose(other._forward(other.alg.predict, obs), expected, rtol=0.0, atol=1e-6)


def test_an_update_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, obs = an_agent(DQN, q_network, lr=0.1), observations()
    before = agent._forward(agent.alg.predict, obs)
    reward = np.ones(6, np.float32)
    agent.learn(obs, np.arange(6) % ACT_DIM, reward, obs, np.zeros(6, np.float32))
    after = agent._forward(agent.alg.predict, obs)
    assert np.abs(after - before).max() > 1e-3
    expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(agent.alg.predict, obs))
    np.testing.assert_allclose(after, expected, rtol=0.0, atol=1e-6)


def test_what_is_returned_is_not_changed_by_later_calls() -> None:
    agent = an_agent(IMPALA, actor_critic, sample_batch_steps=4)
    first = agent.logits(observations())
    kept = first.copy()
    agent.logits(2.0 * observations())
    np.testing.assert_array_equal(first, kept)


def test_models_that_change_are_looked_at_again() -> None:
    agent, obs = an_agent(DQN, q_network), observations()
    before = agent._forward(agent.alg.predict, obs)
    for name in ("weight", "bias"):
        parameter = getattr(agent.alg.model.head, name)
        parameter.data = (2.0 * parameter).detach()
    np.testing.assert_allclose(agent._forward(agent.alg.predict, obs), 2.0 * before, rtol=1e-5, atol=1e-6)


def test_hooks_are_called_with_what_the_agent_was_given() -> None:
    agent, seen = an_agent(DQN, q_network), []
    agent.predict(observations())
    for _ in range(2):
        head = agent.alg.model.head
        hooked = head.register_forward_hook if NAME == "torch" else head.register_forward_post_hook
        hook = hooked(lambda _layer, _inputs, output: seen.append(len(output)))  # noqa: B023 - of this run
        agent.predict(observations())
        agent.predict(observations())
        hook.remove()
        agent.predict(observations())
        assert seen == [6, 6]
        assert acts_on_host(agent, "predict")
        agent, seen = an_agent(DQN, q_network), []
        agent.alg.model.value(tensor(observations()))  # so that it is there, and hooks are before the first action


def test_forward_methods_put_into_a_layer_are_called() -> None:
    agent, seen = an_agent(DQN, Elu), []
    layer = agent.alg.model.net[0]
    forward = layer.forward

    def counted(rows: Any) -> Any:
        seen.append(len(rows))
        return forward(rows)

    layer.forward = counted
    agent.predict(observations())
    agent.predict(observations())
    assert seen == [6, 6]


def test_many_rows_and_other_kinds_of_observations_go_to_the_framework() -> None:
    agent = an_agent(DQN, lambda: QNetwork(ACT_DIM, (128, 128)))
    assert agent.predict(observations(4000)).shape == (4000,)
    assert agent.predict(np.ones((2, OBS_DIM), np.int64)).shape == (2,)
    assert agent.predict(framework.ones([2, OBS_DIM])).shape == (2,)


def test_observations_of_another_size_are_explained() -> None:
    agent = an_agent(DQN, q_network)
    agent.predict(observations())
    with pytest.raises(ValueError, match="until now it was given"):
        agent.predict(np.ones((2, OBS_DIM + 1), np.float32))


def test_a_policy_that_diverged_is_named() -> None:
    agent = an_agent(PPO, actor_critic)
    agent.explore(observations())
    assign(agent.alg.model.policy_head.bias, np.nan)
    with pytest.raises(DivergedError):
        agent.explore(observations())


def test_copies_act_with_their_own_weights() -> None:
    agent, obs = an_agent(DQN, Elu), observations()
    before = agent._forward(agent.alg.predict, obs)
    pickled = parl.Agent(pickle.loads(pickle.dumps(agent.alg)))
    for other in (copy.deepcopy(agent), pickled):
        for parameter in other.alg.model.parameters():
            assign(parameter, 0.0)
        assert not np.any(other._forward(other.alg.predict, obs))
    np.testing.assert_array_equal(agent._forward(agent.alg.predict, obs), before)


class Normed(parl.Model):
    def __init__(self) -> None:
        self.first, self.norm, self.last = parl.layers.fc(8), parl.layers.batch_norm(), parl.layers.fc(ACT_DIM)

    def policy(self, obs: Any) -> Any:
        return self.last(self.norm(self.first(obs)))

    def value(self, obs: Any) -> Any:
        return self.policy(obs)[:, :1]


class Opposite(Trunk):
    """A policy and a value that are not those of the common pass."""

    def policy(self, obs: Any) -> Any:
        return self.v(self.trunk(obs)) - super().policy(obs)

    def value(self, obs: Any) -> Any:
        return self.pi(self.trunk(obs))[:, :1]


class OneNumber(parl.Model):
    """A deterministic policy of one number, as `[n]`."""

    def __init__(self) -> None:
        self.mean, self.worth = nn.Linear(OBS_DIM, 1), nn.Linear(OBS_DIM + 1, 1)

    def policy(self, obs: Any) -> Any:
        return self.mean(obs).tanh().squeeze(-1)

    def value(self, obs: Any, action: Any) -> Any:
        return self.worth(parl.layers.concat([obs, action.reshape([-1, 1])], 1))

    def get_actor_params(self) -> list[Any]:
        return list(self.mean.parameters())

    def get_critic_params(self) -> list[Any]:
        return list(self.worth.parameters())


@pytest.mark.parametrize(("kind", "method"), [(PPO, "predict"), (PPO, "explore"), (A2C, "sample"), (IMPALA, "sample")])
def test_acting_leaves_the_statistics_of_batches_as_they_are(kind: Any, method: str) -> None:
    agent = an_agent(kind, Normed, **FRAGMENTS if kind is IMPALA else {})
    agent.alg.model.policy(tensor(observations()))  # which gives the layers their shapes
    before = agent.alg.model.get_weights()
    getattr(agent, method)(observations())
    assert all(np.array_equal(value, before[name]) for name, value in agent.alg.model.get_weights().items())


@pytest.mark.parametrize(("kind", "method"), [(PPO, "predict"), (PPO, "value"), (IMPALA, "logits")])
def test_methods_of_the_model_that_differ_from_its_common_pass_count(
    kind: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, obs = an_agent(kind, Opposite, **FRAGMENTS if kind is IMPALA else {}), observations()
    bound = getattr(agent.alg, method)
    expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(bound, obs))
    np.testing.assert_allclose(agent._forward(bound, obs), expected, rtol=0.0, atol=1e-6)


def test_a_policy_of_one_number_keeps_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, obs = an_agent(DDPG, OneNumber), observations()
    for given in (obs, obs[0]):
        found = agent.predict(given)
        assert acts_on_host(agent, "predict")
        expected = by_framework(agent, monkeypatch, lambda agent: agent.predict(given))  # noqa: B023 - called at once
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


def test_another_model_method_or_activation_is_used_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, obs = an_agent(TD3, lambda: TwinActorCritic(ACT_DIM, (32, 32))), observations()
    assert agent.predict(obs).any()
    other = copy.deepcopy(agent.alg.model)
    for parameter in other.parameters():
        assign(parameter, 0.0)
    agent.alg.model = other
    assert not agent.predict(obs).any()
    agent.alg.predict = lambda obs: framework.full([len(obs), ACT_DIM], 0.5)
    assert (agent.predict(obs) == 0.5).all()
    del agent.alg.predict
    monkeypatch.setattr(TD3, "predict", lambda self, obs: framework.full([len(obs), ACT_DIM], 0.25))
    assert (agent.predict(obs) == 0.25).all()
    agent = an_agent(DQN, q_network)
    agent.predict(obs)
    layer = next(layer for layer in layers_of(agent.alg.model) if getattr(layer, "act", None) is not None)
    layer.act = functional.sigmoid
    found = agent._forward(agent.alg.predict, obs)
    expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(agent.alg.predict, obs))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


class Given(Elu):
    """A network that is told its activation, and may get more layers."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.squash, self.more = nn.Linear(OBS_DIM, OBS_DIM), framework.tanh, nn.Sequential()

    def value(self, obs: Any) -> Any:
        return self.net(self.more(self.squash(self.square(obs))))


def turned(model: Any) -> None:
    model.square.weight.data = model.square.weight.detach().t()


def cut(model: Any) -> None:
    model.squash = functional.relu


def steepened(model: Any) -> None:
    setattr(model.net[1], "alpha" if NAME == "torch" else "_alpha", 5.0)


def patched(model: Any) -> None:
    model.square.forward = framework.abs


def grown(model: Any) -> None:
    setattr(model.more, "0", nn.Linear(OBS_DIM, OBS_DIM))


@pytest.mark.parametrize("change", [turned, cut, steepened, patched, grown])
def test_changes_of_a_layer_are_followed(change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    agent, obs = an_agent(DQN, Given), observations()
    before = agent._forward(agent.alg.predict, obs)
    assert acts_on_host(agent, "predict")
    change(agent.alg.model)
    found = agent._forward(agent.alg.predict, obs)
    expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(agent.alg.predict, obs))
    assert not np.allclose(found, before)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


class Switched(SharedActorCritic):
    """A ready-made network with a helper of its own, which may do something else another time."""

    sharp = False

    def _distributed(self, output: Any) -> Any:
        return 4.0 - output if self.sharp else output


class Longer(SharedActorCritic):
    """A ready-made network with a helper of its own that is only layers."""

    def __init__(self) -> None:
        super().__init__(ACT_DIM, (32,))
        self.more = nn.Linear(ACT_DIM, ACT_DIM)

    def _distributed(self, output: Any) -> Any:
        return self.more(output)


def test_a_helper_that_a_ready_made_network_is_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    obs, agent = observations(), an_agent(A2C, lambda: Switched(ACT_DIM, (32,)))
    before = agent.predict(obs)
    agent.alg.model.sharp = True
    after = agent.predict(obs)
    assert (before != after).any()
    np.testing.assert_array_equal(after, by_framework(agent, monkeypatch, lambda agent: agent.predict(obs)))
    agent = an_agent(A2C, Longer)
    agent.predict(obs)
    assert acts_on_host(agent, "predict")


def test_observations_beyond_the_range_of_the_weights_are_infinite() -> None:
    agent = an_agent(DQN, q_network)
    with warnings.catch_warnings(action="error"):
        assert agent.predict(np.full((2, OBS_DIM), 1e300)).shape == (2,)
    assert acts_on_host(agent, "predict")


class Code(Elu):
    """ELU as a function, with a slope below 0 of its own."""

    def value(self, obs: Any) -> Any:
        return self.net[2](functional.elu(self.net[0](obs), 0.7))


class Slope(Elu):
    def __init__(self) -> None:
        super().__init__()
        self.net[1] = nn.ELU(0.7)


class Act(parl.Model):
    """A layer of ours with an activation that a user wrote."""

    def __init__(self) -> None:
        self.first, self.last = parl.layers.fc(8, act="elu"), parl.layers.fc(ACT_DIM)
        self.first.act = lambda rows: functional.elu(rows, 0.7)

    def value(self, obs: Any) -> Any:
        return self.last(self.first(obs))


class Turned(parl.Model):
    """A layer of ours that computes something else."""

    def __init__(self) -> None:
        self.first, self.last = parl.layers.fc(OBS_DIM, act="tanh"), parl.layers.fc(ACT_DIM)
        options = {} if NAME == "torch" else {"transpose_y": True}
        self.first.compute = lambda rows: framework.matmul(rows, self.first.weight, **options) + self.first.bias

    def value(self, obs: Any) -> Any:
        return self.last(self.first(obs))


class Dropping(parl.Model):
    def __init__(self) -> None:
        self.first, self.dropout, self.last = nn.Linear(OBS_DIM, 64), nn.Dropout(0.5), nn.Linear(64, ACT_DIM)

    def value(self, obs: Any) -> Any:
        return self.last(self.dropout(self.first(obs)))


@pytest.mark.parametrize("make", [Code, Slope, Act, Turned, Dropping])
def test_what_a_graph_may_not_tell_counts(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, obs = an_agent(DQN, make), observations()
    for _ in range(2):
        found = agent._forward(agent.alg.predict, obs)
        expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(agent.alg.predict, obs))
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


def by_name(model: Any, other: Any) -> None:
    model.set_weights(other.get_weights())


def by_state(model: Any, other: Any) -> None:
    (model.load_state_dict if NAME == "torch" else model.set_state_dict)(other.state_dict())


def by_blending(model: Any, other: Any) -> None:
    other.sync_weights_to(model, 0.0)


def in_place(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assign(mine, theirs.detach().numpy())


def in_numpy(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.detach().copy_(theirs) if NAME == "torch" else mine.set_value(theirs.numpy())


def in_another_dtype_and_back(model: Any, other: Any) -> None:
    model.to(dtype=framework.float64)
    by_name(model, other)
    model.to(dtype=framework.float32)


@pytest.mark.parametrize("give", [by_name, by_state, by_blending, in_place, in_numpy, in_another_dtype_and_back])
def test_weights_count_from_when_they_are_given(give: Callable[[Any, Any], None]) -> None:
    agent, other, obs = an_agent(DQN, q_network), parl.Agent(DQN(q_network(), device="cpu")), observations()
    wanted = other._forward(other.alg.predict, obs)
    assert not np.allclose(agent._forward(agent.alg.predict, obs), wanted)
    give(agent.alg.model, other.alg.model)
    assert acts_on_host(agent, "predict")
    np.testing.assert_array_equal(agent._forward(agent.alg.predict, obs), wanted)


class Boastful(PPO):
    """A subclass with another helper, and the same methods."""

    def _policy_and_value(self, obs: Any) -> Any:
        output, value = super()._policy_and_value(obs)
        return output, value + 1.0


def test_subclasses_with_another_helper_act_by_it() -> None:
    plain, other = an_agent(PPO, actor_critic), an_agent(Boastful, actor_critic)
    np.testing.assert_allclose(other.explore(observations())[0], plain.explore(observations())[0] + 1.0, atol=1e-6)


@pytest.mark.parametrize("place", ["first", "head"])
def test_weights_that_are_not_numbers_act_as_in_the_framework(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, obs = an_agent(PPO, Ramps), observations()
    agent.predict(obs)
    agent.value(obs)
    assign(getattr(agent.alg.model, place).bias, [np.nan, *[0.0] * (ACT_DIM - 1)])
    for method in ("predict", "value"):
        expected = by_framework(agent, monkeypatch, lambda agent: getattr(agent, method)(obs))  # noqa: B023 - at once
        np.testing.assert_allclose(getattr(agent, method)(obs), expected, rtol=0.0, atol=1e-6)
    assert acts_on_host(agent, "predict")


class Ramps(parl.Model):
    def __init__(self) -> None:
        self.first, self.head = parl.layers.fc(ACT_DIM, act="relu"), parl.layers.fc(ACT_DIM)
        self.worth = parl.layers.fc(1)

    def policy(self, obs: Any) -> Any:
        return self.head(self.first(obs))

    def value(self, obs: Any) -> Any:
        return self.worth(self.first(obs))
