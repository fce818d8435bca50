"""Small networks act in numpy: the actions of the framework, and the framework for everything else."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parl_core._small_networks import HostActing
from parl_core.errors import DivergedError
from parl_torch import layers
from parl_torch.agent import Agent
from parl_torch.algorithms import A2C, DDPG, DDQN, DQN, IMPALA, PPO, TD3
from parl_torch.model import Model
from parl_torch.networks import ActorCritic, DeterministicActorCritic, QNetwork, SharedActorCritic, TwinActorCritic

OBS_DIM, ACT_DIM, SIZES = 5, 3, (3, 2, 4)
CONTINUOUS, FRAGMENTS = {"continuous_action": True}, {"sample_batch_steps": 4}


class Elu(Model):
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(OBS_DIM, 32), nn.ELU(0.7), nn.Linear(32, ACT_DIM), nn.Tanh())

    def value(self, obs: Tensor) -> Tensor:
        return self.net(obs)


class Trunk(Model):
    """Policy and value over common layers, in one pass."""

    def __init__(self) -> None:
        self.trunk = nn.Sequential(nn.Linear(OBS_DIM, 32), nn.ELU())
        self.pi, self.v = nn.Linear(32, ACT_DIM), nn.Linear(32, 1)

    def policy(self, obs: Tensor) -> Tensor:
        return self.pi(self.trunk(obs))

    def value(self, obs: Tensor) -> Tensor:
        return self.v(self.trunk(obs))

    def policy_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.pi(features), self.v(features)


def an_agent(kind: type[Any], make: Callable[[], Any], **settings: Any) -> Any:
    torch.manual_seed(4)
    return Agent(kind(make(), device="cpu", **settings), seed=1)


def actor_critic() -> Any:
    return ActorCritic(ACT_DIM, (32, 32))


def gaussian() -> Any:
    return moved(ActorCritic(ACT_DIM, (32, 32), continuous=True))


def shared_gaussian() -> Any:
    return moved(SharedActorCritic(ACT_DIM, (32, 32), continuous=True))


def moved(model: Any) -> Any:
    """Return a model whose standard deviations are not 1."""
    model.log_std.data.copy_(torch.linspace(-0.7, 0.4, ACT_DIM))
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_draws_are_those_of_the_framework(
    kind: Any, make: Any, method: str, settings: Any, dtype: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = an_agent(kind, make, **settings)
    getattr(agent, method)(observations())
    agent.alg.model.to(dtype)

    def draw(agent: Any) -> Any:
        torch.manual_seed(8)
        return [getattr(agent, method)(observations(rows)) for _ in range(20)]

    found, expected = draw(agent), by_framework(agent, monkeypatch, draw)
    assert acts_on_host(agent, "sample_actions" if method == "sample" else method)
    for one, other in zip(found, expected, strict=True):
        for part, wanted in zip(one, other, strict=True):
            assert (part.shape, part.dtype) == (wanted.shape, wanted.dtype)
            tolerance = 1e-6 if dtype is torch.float32 else 1e-12
            np.testing.assert_allclose(part, wanted, rtol=tolerance, atol=tolerance)


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
        torch.manual_seed(8)
        return [getattr(agent, method)(observations(), action_mask=mask) for _ in range(20)]

    found, expected = act(agent), by_framework(agent, monkeypatch, act)
    assert acts_on_host(agent, "sample_actions" if method == "sample" else method)
    for one, other in zip(found, expected, strict=True):
        for part, wanted in zip(*((one, other) if isinstance(one, tuple) else ([one], [other])), strict=True):
            np.testing.assert_allclose(part, wanted, rtol=1e-6, atol=1e-6)


def test_frequencies_of_draws_are_the_probabilities() -> None:
    agent = an_agent(PPO, actor_critic)
    agent.explore(observations())
    torch.manual_seed(3)
    agent.alg.model.policy_head.bias.data.copy_(torch.tensor([0.0, 1.0, -1.0]))
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
        self.deviations = nn.Parameter(torch.zeros(deviations))

    def policy(self, obs: Tensor) -> Any:
        means = super().policy(obs)
        return (means, self.deviations.exp()) if len(self.deviations) else means


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
    agent.alg.model.head.weight.data = 2.0 * agent.alg.model.head.weight.data
    agent.alg.model.head.bias.data = 2.0 * agent.alg.model.head.bias.data
    np.testing.assert_allclose(agent._forward(agent.alg.predict, obs), 2.0 * before, rtol=1e-5, atol=1e-6)


def test_hooks_are_called() -> None:
    agent, heard = an_agent(DQN, q_network), []
    agent.predict(observations())
    agent.alg.model.head.register_forward_hook(lambda *_: heard.append(1))
    agent.predict(observations())
    assert heard


def test_many_rows_and_other_kinds_of_observations_go_to_the_framework() -> None:
    agent = an_agent(DQN, lambda: QNetwork(ACT_DIM, (128, 128)))
    assert agent.predict(observations(4000)).shape == (4000,)
    assert agent.predict(np.ones((2, OBS_DIM), np.int64)).shape == (2,)
    assert agent.predict(torch.ones(2, OBS_DIM)).shape == (2,)


def test_observations_of_another_size_are_explained() -> None:
    agent = an_agent(DQN, q_network)
    agent.predict(observations())
    with pytest.raises(ValueError, match="until now it was given"):
        agent.predict(np.ones((2, OBS_DIM + 1), np.float32))


def test_a_policy_that_diverged_is_named() -> None:
    agent = an_agent(PPO, actor_critic)
    agent.explore(observations())
    with torch.no_grad():
        agent.alg.model.policy_head.bias.fill_(torch.nan)
    with pytest.raises(DivergedError):
        agent.explore(observations())


def test_copies_act_with_their_own_weights() -> None:
    agent, obs = an_agent(DQN, Elu), observations()
    before = agent._forward(agent.alg.predict, obs)
    pickled = Agent(pickle.loads(pickle.dumps(agent.alg)))
    for other in (copy.deepcopy(agent), pickled):
        with torch.no_grad():
            for parameter in other.alg.model.parameters():
                parameter.zero_()
        assert not np.any(other._forward(other.alg.predict, obs))
    np.testing.assert_array_equal(agent._forward(agent.alg.predict, obs), before)


class Normed(Model):
    def __init__(self) -> None:
        self.first, self.norm, self.last = layers.fc(8), layers.batch_norm(), layers.fc(ACT_DIM)

    def policy(self, obs: Tensor) -> Tensor:
        return self.last(self.norm(self.first(obs)))

    def value(self, obs: Tensor) -> Tensor:
        return self.policy(obs)[:, :1]


class Opposite(Trunk):
    """A policy and a value that are not those of the common pass."""

    def policy(self, obs: Tensor) -> Tensor:
        return self.v(self.trunk(obs)).repeat(1, ACT_DIM) - super().policy(obs)

    def value(self, obs: Tensor) -> Tensor:
        return self.pi(self.trunk(obs))[:, :1]


class OneNumber(Model):
    """A deterministic policy of one number, as `[n]`."""

    def __init__(self) -> None:
        self.mean, self.worth = nn.Linear(OBS_DIM, 1), nn.Linear(OBS_DIM + 1, 1)

    def policy(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.mean(obs)).squeeze(-1)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.worth(torch.cat([obs, action.reshape(-1, 1)], 1))

    def get_actor_params(self) -> list[Any]:
        return list(self.mean.parameters())

    def get_critic_params(self) -> list[Any]:
        return list(self.worth.parameters())


@pytest.mark.parametrize(("kind", "method"), [(PPO, "predict"), (PPO, "explore"), (A2C, "sample"), (IMPALA, "sample")])
def test_acting_leaves_the_statistics_of_batches_as_they_are(kind: Any, method: str) -> None:
    agent = an_agent(kind, Normed, **FRAGMENTS if kind is IMPALA else {})
    agent.alg.model.policy(torch.from_numpy(observations()))  # which gives the layers their shapes
    before = copy.deepcopy(agent.alg.model.state_dict())
    getattr(agent, method)(observations())
    assert all(torch.equal(value, before[name]) for name, value in agent.alg.model.state_dict().items())


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
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    agent.alg.model = other
    assert not agent.predict(obs).any()
    agent.alg.predict = lambda obs: torch.full((len(obs), ACT_DIM), 0.5)
    assert (agent.predict(obs) == 0.5).all()
    del agent.alg.predict
    monkeypatch.setattr(TD3, "predict", lambda self, obs: torch.full((len(obs), ACT_DIM), 0.25))
    assert (agent.predict(obs) == 0.25).all()
    agent = an_agent(DQN, q_network)
    agent.predict(obs)
    layer = next(layer for layer in agent.alg.model.modules() if getattr(layer, "act", None) is not None)
    layer.act = torch.sigmoid
    found = agent._forward(agent.alg.predict, obs)
    expected = by_framework(agent, monkeypatch, lambda agent: agent._forward(agent.alg.predict, obs))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


class Given(Elu):
    """A network that is told its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.squash = nn.Linear(OBS_DIM, OBS_DIM), torch.tanh

    def value(self, obs: Tensor) -> Tensor:
        return self.net(self.squash(self.square(obs)))


def turned(model: Any) -> None:
    model.square.weight.data = model.square.weight.data.t()


def cut(model: Any) -> None:
    model.squash = torch.relu


def steepened(model: Any) -> None:
    model.net[1].alpha = 5.0


def patched(model: Any) -> None:
    model.square.forward = torch.neg


@pytest.mark.parametrize("change", [turned, cut, steepened, patched])
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
