"""Updates without autograd: the numbers of autograd for chains, and autograd for everything else."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parl_core._small_networks import Layer
from parl_core.contracts.batches import Fragment, Rollout, Transitions
from parl_core.schedules import linear
from parl_torch import layers
from parl_torch._chains import Chain
from parl_torch.agent import Agent
from parl_torch.algorithms import A2C, DDPG, DDQN, DQN, IMPALA, PPO, TD3, ReBRAC
from parl_torch.model import Model
from parl_torch.networks import ActorCritic, DeterministicActorCritic, QNetwork, TwinActorCritic

OBS_DIM, ACT_DIM, ROWS = 5, 3, 32


class Functional(Model):
    """Written with functions, as most examples of PyTorch are."""

    def __init__(self) -> None:
        self.fc1, self.fc2, self.fc3 = nn.Linear(OBS_DIM, 16), nn.Linear(16, 12), nn.Linear(12, ACT_DIM)

    def forward(self, obs: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(obs.float() if obs.dtype == torch.int64 else obs))
        return self.fc3(torch.tanh(self.fc2(hidden)))


class Plain(Functional):
    def forward(self, obs: Tensor) -> Tensor:
        hidden = torch.tanh(self.fc2(F.relu(self.fc1(obs))))
        return self.fc3(hidden)


class Stacked(Model):
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.ELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, ACT_DIM))

    def value(self, obs: Tensor) -> Tensor:
        return self.net(obs)


class Looped(Model):
    def __init__(self) -> None:
        self.hidden = nn.ModuleList([nn.Linear(OBS_DIM, 16), nn.Linear(16, 16)])
        self.out = layers.fc(ACT_DIM)

    def value(self, obs: Tensor) -> Tensor:
        for layer in self.hidden:
            obs = layer(obs).relu()
        return self.out(obs)


class Bodies(nn.Module):
    """Layers that another module calls."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.ReLU()), nn.Linear(16, ACT_DIM)


class Nested(Model):
    def __init__(self) -> None:
        self.parts = Bodies()

    def value(self, obs: Tensor) -> Tensor:
        return self.parts.head(self.parts.body(obs))


class Heads(Model):
    """Policy and value of their own layers, the value without its last dimension."""

    def __init__(self) -> None:
        self.policy_net = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.Tanh(), nn.Linear(16, ACT_DIM))
        self.value_net = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def policy(self, obs: Tensor) -> Tensor:
        return self.policy_net(obs)

    def value(self, obs: Tensor) -> Tensor:
        return self.value_net(obs).squeeze(-1)


class Trunk(Model):
    """Policy and value over common layers, in one pass."""

    def __init__(self) -> None:
        self.trunk = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.Tanh(), nn.Linear(16, 12), nn.ReLU())
        self.pi, self.v = nn.Linear(12, ACT_DIM), nn.Linear(12, 1)

    def policy(self, obs: Tensor) -> Tensor:
        return self.pi(self.trunk(obs))

    def value(self, obs: Tensor) -> Tensor:
        return self.v(self.trunk(obs))

    def policy_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.pi(features), self.v(features)


class LongerTrunk(Model):
    """Policy and value of two methods over common layers, the value with a layer more."""

    def __init__(self) -> None:
        self.trunk = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.ReLU())
        self.pi, self.v = nn.Linear(16, ACT_DIM), nn.Sequential(nn.Linear(16, 8), nn.ELU(), nn.Linear(8, 1))

    def policy(self, obs: Tensor) -> Tensor:
        return self.pi(self.trunk(obs))

    def value(self, obs: Tensor) -> Tensor:
        return self.v(self.trunk(obs)).squeeze(-1)


class Critics(Model):
    """An actor and two critics, written with functions, as many examples of PyTorch are."""

    def __init__(self) -> None:
        self.pi1, self.pi2 = nn.Linear(OBS_DIM, 16), nn.Linear(16, ACT_DIM)
        self.l1, self.l2 = nn.Linear(OBS_DIM + ACT_DIM, 16), nn.Linear(16, 1)
        self.l4, self.l5 = nn.Linear(OBS_DIM + ACT_DIM, 16), nn.Linear(16, 1)

    def policy(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.pi2(F.relu(self.pi1(obs))))

    def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([obs, action], 1)
        return self.l2(F.relu(self.l1(both))), self.l5(F.elu(self.l4(both)))

    def Q1(self, obs: Tensor, action: Tensor) -> Tensor:  # noqa: N802 - the name that TD3 asks for
        return self.l2(F.relu(self.l1(torch.cat((obs, action), dim=-1))))

    def get_actor_params(self) -> list[Any]:
        return [*self.pi1.parameters(), *self.pi2.parameters()]


class CommonCritics(Critics):
    """Both critics over a common layer."""

    def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.l1(torch.cat([obs, action], 1)))
        return self.l2(features).squeeze(-1), self.l5(features).squeeze(-1)

    def Q1(self, obs: Tensor, action: Tensor) -> Tensor:  # noqa: N802
        return self.l2(torch.relu(self.l1(torch.cat([obs, action], 1)))).squeeze(-1)


class Turned(Critics):
    """Takes actions in front of observations."""

    def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([action, obs], 1)
        return self.l2(F.relu(self.l1(both))), self.l5(F.elu(self.l4(both)))


class Halved(Critics):
    """Takes half of the observations."""

    def value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([0.5 * obs, action], 1)
        return self.l2(F.relu(self.l1(both))), self.l5(F.elu(self.l4(both)))


class SharedLayer(Critics):
    """The actor's middle layer is also a critic's."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(16, 16)

    def policy(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.pi2(F.relu(self.shared(F.relu(self.pi1(obs))))))

    def Q1(self, obs: Tensor, action: Tensor) -> Tensor:  # noqa: N802
        return self.l2(F.relu(self.shared(F.relu(self.l1(torch.cat([obs, action], 1))))))

    def get_actor_params(self) -> list[Any]:
        return [*super().get_actor_params(), *self.shared.parameters()]


class OneCritic(Critics):
    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.l2(torch.tanh(self.l1(torch.cat([obs, action], 1)))).squeeze(1)


class OwnTD3(TD3):
    """As `OwnDQN`."""


class OwnDDPG(DDPG):
    """As `OwnDQN`."""


class OwnReBRAC(ReBRAC):
    """As `OwnDQN`."""


class OwnDQN(DQN):
    """A subclass, which autograd serves."""


class OwnPPO(PPO):
    """As `OwnDQN`."""


class OwnA2C(A2C):
    """As `OwnDQN`."""


class OwnIMPALA(IMPALA):
    """As `OwnDQN`."""


def a_model(make: Callable[[], Model], exact: bool = False) -> Any:
    torch.manual_seed(3)
    model = make()
    return model.double() if exact else model


def transitions(rng: np.random.Generator, kind: type[Any], extras: bool = False) -> Transitions:
    obs, next_obs = rng.normal(size=(2, ROWS, OBS_DIM)).astype(kind)
    more = {"weights": rng.uniform(0.2, 1.0, ROWS), "discount": rng.uniform(0.8, 1.0, ROWS)} if extras else {}
    return Transitions(
        obs,
        rng.integers(ACT_DIM, size=ROWS),
        rng.normal(scale=2.0, size=ROWS).astype(kind),
        next_obs,
        rng.random(ROWS) < 0.3,
        **{name: column.astype(kind) for name, column in more.items()},
    )


def rollout(rng: np.random.Generator, kind: type[Any]) -> Rollout:
    columns = rng.normal(size=(4, ROWS)).astype(kind)
    return Rollout(rng.normal(size=(ROWS, OBS_DIM)).astype(kind), rng.integers(ACT_DIM, size=ROWS), *columns)


def fragments(rng: np.random.Generator, kind: type[Any], ends: bool = True, steps: int = 4) -> Fragment:
    done = rng.random(ROWS) < 0.3
    rows = np.flatnonzero(done)[::2]
    optional = {"final_rows": rows, "final_obs": rng.normal(size=(len(rows), OBS_DIM)).astype(kind)} if ends else {}
    return Fragment(
        rng.normal(size=(ROWS, OBS_DIM)).astype(kind),
        rng.integers(ACT_DIM, size=ROWS),
        rng.normal(size=(ROWS, ACT_DIM)).astype(kind),
        rng.normal(scale=2.0, size=ROWS).astype(kind),
        done,
        last_obs=rng.normal(size=(ROWS // steps, OBS_DIM)).astype(kind),
        **optional,
    )


def moves(rng: np.random.Generator, kind: type[Any], extras: bool = False) -> Transitions:
    """Return transitions with actions of numbers."""
    columns = transitions(rng, kind, extras).named()
    return Transitions(**{**columns, "action": rng.uniform(-1.0, 1.0, (ROWS, ACT_DIM)).astype(kind)})


def planned(algorithm: Any) -> bool:
    """Return whether each optimizer's last plan has chains."""
    found = [algorithm.optimizer] if hasattr(algorithm, "optimizer") else []
    found = found or [algorithm.actor_optimizer, algorithm.critic_optimizer]
    return all(any(plan is not None and plan._forks for plan in one._plans.values()) for one in found)


def pairs(ours: type[Any], own: type[Any], make: Callable[[], Model], exact: bool, **settings: Any) -> tuple[Any, Any]:
    made = [kind(a_model(make, exact), device="cpu", **settings) for kind in (ours, own)]
    return Agent(made[0]), Agent(made[1])


def assert_equal_weights(one: Any, other: Any, *, atol: float) -> None:
    state, other_state = one.alg.get_state(), other.alg.get_state()
    assert state.arrays.keys() == other_state.arrays.keys()
    for name, array in state.arrays.items():
        np.testing.assert_allclose(array, other_state.arrays[name], rtol=0.0, atol=atol, err_msg=name)


Q_MODELS = [lambda: QNetwork(ACT_DIM, (16, 16)), Plain, Stacked, Looped, Nested]


@pytest.mark.parametrize("make", Q_MODELS, ids=["ready-made", "functions", "sequential", "loop", "nested"])
@pytest.mark.parametrize("settings", [{}, {"double": True, "huber": 0.5}, {"max_grad_norm": 0.1, "sync_every": 3}])
@pytest.mark.parametrize("extras", [False, True])
def test_dqn_in_float64_is_that_of_autograd(make: Any, settings: dict[str, Any], extras: bool) -> None:
    agent, other = pairs(DQN, OwnDQN, make, True, lr=1e-2, **settings)
    rng = np.random.default_rng(1)
    for _ in range(10):
        batch = transitions(rng, np.float64, extras)
        found, expected = agent.learn(batch), other.learn(batch)
        np.testing.assert_allclose(found[0] if extras else found, expected[0] if extras else expected, rtol=1e-12)
        if extras:
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-11, atol=1e-12)
    assert planned(agent.alg)
    assert not planned(other.alg)
    assert_equal_weights(agent, other, atol=1e-12)


CRITICS = [
    (TD3, OwnTD3, lambda: TwinActorCritic(ACT_DIM, (16, 16))),
    (TD3, OwnTD3, Critics),
    (TD3, OwnTD3, CommonCritics),
    (DDPG, OwnDDPG, lambda: DeterministicActorCritic(ACT_DIM, (16, 16))),
    (DDPG, OwnDDPG, OneCritic),
]


@pytest.mark.parametrize(("ours", "own", "make"), CRITICS)
@pytest.mark.parametrize("extras", [False, True])
def test_critics_in_float64_are_those_of_autograd(ours: Any, own: Any, make: Any, extras: bool) -> None:
    agents = pairs(ours, own, make, True, actor_lr=1e-2, critic_lr=1e-2, tau=0.1)
    rng = np.random.default_rng(1)
    for step in range(10):
        batch = moves(rng, np.float64, extras)
        found = []
        for agent in agents:
            with agent.drawing_from(step):
                found.append(agent.learn(batch))
        for one, other in zip(*found, strict=True):
            if one is None or other is None:
                assert one is other
            else:
                np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
    assert planned(agents[0].alg)
    assert not planned(agents[1].alg)
    assert_equal_weights(*agents, atol=1e-11)


@pytest.mark.parametrize("make", [Turned, Halved, SharedLayer])
def test_other_critics_are_differentiated_by_autograd(make: Any) -> None:
    agents = pairs(TD3, OwnTD3, make, True)
    rng = np.random.default_rng(1)
    for step in range(4):
        batch = moves(rng, np.float64)
        for agent in agents:
            with agent.drawing_from(step):
                agent.learn(batch)
    assert not planned(agents[0].alg)
    assert_equal_weights(*agents, atol=1e-12)


def test_an_algorithm_with_other_targets_is_differentiated_by_autograd() -> None:
    agents = pairs(ReBRAC, OwnReBRAC, Critics, True)
    rng = np.random.default_rng(1)
    for step in range(4):
        batch = moves(rng, np.float64)
        batch = Transitions(**batch.named(), extra={"next_action": batch.action[::-1].copy()})
        for agent in agents:
            with agent.drawing_from(step):
                agent.learn(batch)
    assert_equal_weights(*agents, atol=0.0)


def test_wide_and_tall_batches_have_the_gradients_of_autograd() -> None:
    for rows, width in ((8, 2), (8, 15), (8, 16), (256, 16), (256, 31), (256, 32), (1, 5), (300, 1)):
        model = nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, 3)).double()
        chain = Chain([Layer(model[0].weight, model[0].bias, "relu"), Layer(model[2].weight, model[2].bias, None)])
        chain.gradients = [torch.empty_like(part) for part in chain.parameters]
        inputs, slope = torch.randn(rows, width).double().requires_grad_(), torch.randn(rows, 3).double()
        wanted = torch.autograd.grad(model(inputs), [inputs, *chain.parameters], slope)
        with torch.no_grad():
            found = [chain.backward(chain.forward(inputs), slope.clone(), onward=0), *chain.gradients]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-12)


ACTOR_CRITICS = [lambda: ActorCritic(ACT_DIM, (16, 16)), Heads, Trunk, LongerTrunk]
OF_ACTOR_CRITICS = pytest.mark.parametrize("make", ACTOR_CRITICS, ids=["ready-made", "own", "trunk", "two methods"])


@OF_ACTOR_CRITICS
@pytest.mark.parametrize("clips", [False, True])
def test_ppo_in_float64_is_that_of_autograd(make: Any, clips: bool) -> None:
    settings = {"clip_param": linear(0.2, 0.1, 20), "initial_lr": 1e-2, "use_clipped_value_loss": clips}
    agent, other = pairs(PPO, OwnPPO, make, True, **settings)
    rng = np.random.default_rng(2)
    for _ in range(10):
        batch = rollout(rng, np.float64)
        np.testing.assert_allclose(agent.learn(batch), other.learn(batch), rtol=1e-12, atol=1e-13)
    assert planned(agent.alg)
    assert not planned(other.alg)
    assert_equal_weights(agent, other, atol=1e-12)


@OF_ACTOR_CRITICS
def test_a2c_in_float64_is_that_of_autograd(make: Any) -> None:
    agent, other = pairs(A2C, OwnA2C, make, True, learning_rate=1e-2)
    rng = np.random.default_rng(2)
    for _ in range(10):
        batch = rollout(rng, np.float64)
        np.testing.assert_allclose(agent.learn(batch), other.learn(batch), rtol=1e-12, atol=1e-12)
    assert planned(agent.alg)
    assert not planned(other.alg)
    assert_equal_weights(agent, other, atol=1e-12)


@OF_ACTOR_CRITICS
@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_impala_in_float64_is_that_of_autograd(make: Any, bound: float) -> None:
    settings = {"sample_batch_steps": 4, "learning_rate": 1e-2, "max_grad_norm": 5.0, "clip_rho_threshold": bound}
    agent, other = pairs(IMPALA, OwnIMPALA, make, True, entropy_coeff=linear(-0.02, -0.01, 20), **settings)
    rng = np.random.default_rng(2)
    for step in range(10):
        batch = fragments(rng, np.float64, ends=step % 2 == 0)
        found, expected = agent.learn(batch), other.learn(batch)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-11, atol=1e-12)
    assert planned(agent.alg)
    assert not planned(other.alg)
    assert_equal_weights(agent, other, atol=1e-11)


def test_fragments_whose_last_step_only_bootstraps_are_left_to_autograd() -> None:
    settings = {"sample_batch_steps": 4, "learning_rate": 1e-2}
    agent, other = pairs(IMPALA, OwnIMPALA, Trunk, False, **settings)
    rng = np.random.default_rng(3)
    for with_last in (True, False, True):
        batch = fragments(rng, np.float32, ends=False)
        columns = batch.named()
        if not with_last:
            del columns["last_obs"]
        agent.learn(Fragment(**columns))
        other.learn(Fragment(**columns))
    assert_equal_weights(agent, other, atol=1e-4)


def test_three_hundred_updates_in_float32_stay_beside_those_of_autograd() -> None:
    agent, other = pairs(DQN, OwnDQN, Q_MODELS[0], False, lr=1e-3, sync_every=10)
    rng = np.random.default_rng(4)
    for _ in range(300):
        batch = transitions(rng, np.float32)
        agent.learn(batch)
        other.learn(batch)
    assert planned(agent.alg)
    # Adam divides by roots of tiny second moments, so that rounding grows; weights are of size 0.1 to 1.
    assert_equal_weights(agent, other, atol=0.02)


def test_gradients_are_where_autograd_leaves_them() -> None:
    agent, other = pairs(DQN, OwnDQN, Plain, True)
    batch = transitions(np.random.default_rng(5), np.float64)
    agent.learn(batch)
    other.learn(batch)
    for one, two in zip(agent.alg.model.parameters(), other.alg.model.parameters(), strict=True):
        np.testing.assert_allclose(one.grad, two.grad, rtol=0.0, atol=1e-13)


class Clamped(Plain):
    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs.clamp(-5.0, 5.0))


class Branching(Plain):
    def forward(self, obs: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(obs))
        if obs.sum() > 0.0:
            hidden = 2.0 * hidden
        return self.fc3(torch.tanh(self.fc2(hidden)))


class Remembering(Plain):
    def forward(self, obs: Tensor) -> Tensor:
        self.seen = obs
        return self.fc3(torch.tanh(self.fc2(F.relu(self.fc1(obs)))))


class Counting(Plain):
    calls: list[int]

    def forward(self, obs: Tensor) -> Tensor:
        self.calls.append(len(obs))
        return self.fc3(torch.tanh(self.fc2(F.relu(self.fc1(obs)))))


class Residual(Plain):
    def forward(self, obs: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(obs))
        return self.fc3(torch.tanh(self.fc2(hidden + hidden)))


class Dropping(Model):
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(OBS_DIM, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, ACT_DIM))

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs)


class Tied(Model):
    def __init__(self) -> None:
        self.fc1, self.fc2, self.fc3 = nn.Linear(OBS_DIM, 8), nn.Linear(8, 8), nn.Linear(8, ACT_DIM)

    def forward(self, obs: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc2(torch.relu(self.fc1(obs)))))))


class Unbiased(Model):
    def __init__(self) -> None:
        self.fc1, self.fc2 = nn.Linear(OBS_DIM, 8, bias=False), nn.Linear(8, ACT_DIM)

    def forward(self, obs: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(obs)))


class Noisy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)


class WithOwnLayer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.fc2 = Noisy(16, 12)


OTHERS = [Functional, Clamped, Branching, Remembering, Residual, Dropping, Tied, Unbiased, WithOwnLayer]


@pytest.mark.parametrize("make", [*OTHERS, lambda: QNetwork(ACT_DIM, (8,), dueling=True)])
def test_other_models_are_differentiated_by_autograd(make: Any) -> None:
    agent, other = pairs(DQN, OwnDQN, make, False, lr=1e-2, sync_every=2)
    rng = np.random.default_rng(6)
    for _ in range(5):
        batch = transitions(rng, np.float32)
        assert agent.learn(batch) == other.learn(batch)
    assert not planned(agent.alg)
    assert_equal_weights(agent, other, atol=0.0)


def test_code_with_side_effects_runs_as_often_as_without_plans() -> None:
    counts = []
    for kind in (DQN, OwnDQN):
        model = a_model(Counting)
        model.calls = []
        agent = Agent(kind(model, device="cpu"))
        for _ in range(3):
            agent.learn(transitions(np.random.default_rng(7), np.float32))
        counts.append(model.calls)
    assert counts[0] == counts[1]


def attach_layer_hook(algorithm: Any, heard: list[Any]) -> None:
    algorithm.model.fc2.register_forward_hook(lambda *_: heard.append("layer"))


def attach_gradient_hook(algorithm: Any, heard: list[Any]) -> None:
    algorithm.model.fc2.weight.register_hook(lambda _: heard.append("gradient"))


def attach_global_hook(_: Any, heard: list[Any]) -> Any:
    return nn.modules.module.register_module_forward_hook(lambda *_: heard.append("any layer"))


@pytest.mark.parametrize("attach", [attach_layer_hook, attach_gradient_hook, attach_global_hook])
def test_hooks_are_called_from_the_moment_they_are_attached(attach: Any) -> None:
    agent, rng = Agent(DQN(a_model(Plain), device="cpu")), np.random.default_rng(8)
    agent.learn(transitions(rng, np.float32))
    heard: list[Any] = []
    handle = attach(agent.alg, heard)
    try:
        agent.learn(transitions(rng, np.float32))
    finally:
        if handle is not None:
            handle.remove()
    assert heard


def test_hooks_see_the_rows_of_batches_alone() -> None:
    agent, rng, seen = Agent(DQN(a_model(Plain), device="cpu")), np.random.default_rng(8), set[int]()
    batch = transitions(rng, np.float32)
    agent.learn(batch)  # which tries the model out
    agent.alg.optimizer = agent.alg._adam(agent.alg.model, lr=1e-3)
    agent.alg.model.fc2.register_forward_hook(lambda _layer, _inputs, output: seen.add(len(output)))
    agent.learn(batch)
    assert seen == {len(batch)}


def test_what_is_frozen_stays_and_what_is_thawed_learns() -> None:
    agent, rng = Agent(DQN(a_model(Plain), lr=1e-2, device="cpu")), np.random.default_rng(9)
    agent.learn(transitions(rng, np.float32))
    weight = agent.alg.model.fc1.weight
    before = weight.detach().clone()
    weight.requires_grad_(False)
    agent.learn(transitions(rng, np.float32))
    assert torch.equal(weight, before)
    weight.requires_grad_(True)
    agent.learn(transitions(rng, np.float32))
    assert not torch.equal(weight, before)


@pytest.mark.parametrize("change", ["layer", "memory", "method", "weights"])
def test_models_that_change_are_looked_at_again(change: str) -> None:
    agents = pairs(DQN, OwnDQN, Plain, True, lr=1e-2)
    rng = np.random.default_rng(10)
    for step in range(6):
        batch = transitions(rng, np.float64)
        for agent in agents:
            model = agent.alg.model
            if step == 3 and change == "memory":
                model.fc1.weight.data = model.fc1.weight.data.clone() * 0.5
            elif step == 3 and change == "layer":
                bias = model.fc3.bias
                model.fc3 = copy.deepcopy(model.fc3)
                model.fc3.bias = bias
                model.fc3.weight.requires_grad_(False)
            elif step == 3 and change == "method":
                whole = model.forward
                model.forward = lambda obs, whole=whole: 0.5 * whole(obs)
            elif step == 3:
                model.set_weights({name: array * 0.5 for name, array in model.get_weights().items()})
            agent.learn(batch)
    one, other = agents
    for name, array in one.alg.model.get_weights().items():
        np.testing.assert_allclose(array, other.alg.model.get_weights()[name], rtol=0.0, atol=1e-12, err_msg=name)


def test_another_target_network_is_the_one_of_later_targets() -> None:
    rng = np.random.default_rng(14)
    kinds = [(DQN, OwnDQN, Plain, transitions), (DDPG, OwnDDPG, OneCritic, moves), (TD3, OwnTD3, Critics, moves)]
    for ours, own, make, drawn in kinds:
        agents = pairs(ours, own, make, True)
        for step in range(4):
            batch = drawn(rng, np.float64)
            for agent in agents:
                if step == 2:
                    agent.alg.target_model = copy.deepcopy(agent.alg.target_model)
                    agent.alg.target_model.set_weights(
                        {name: array * 3.0 for name, array in agent.alg.target_model.get_weights().items()}
                    )
                with agent.drawing_from(step):
                    agent.learn(batch)
        assert planned(agents[0].alg)
        assert_equal_weights(*agents, atol=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_updates_under_autocast_are_those_of_autograd(first: int) -> None:
    rng = np.random.default_rng(15)
    kinds = [(DQN, OwnDQN, Plain, transitions), (TD3, OwnTD3, Critics, moves)]
    for ours, own, make, drawn in kinds:
        agents = pairs(ours, own, make, False)
        for step in range(5):
            batch = drawn(rng, np.float32)
            for agent in agents:
                with agent.drawing_from(step), torch.autocast("cpu", torch.bfloat16, enabled=step == first):
                    agent.learn(batch)
        assert planned(agents[0].alg)
        assert_equal_weights(*agents, atol=1e-6)


def test_another_default_device_changes_nothing() -> None:
    agents = [Agent(DQN(a_model(Plain), device="cpu")) for _ in range(2)]
    batch = agents[0].alg._on_device(transitions(np.random.default_rng(16), np.float32))
    agents[0].alg.learn(batch)
    with torch.device("meta"):
        agents[1].alg.learn(batch)
    assert_equal_weights(*agents, atol=0.0)


@pytest.mark.parametrize("ours", [DDPG, OwnDDPG])
def test_a_part_may_have_frozen_parameters(ours: Any) -> None:
    agent, rng = Agent(ours(a_model(OneCritic), device="cpu")), np.random.default_rng(17)
    model = agent.alg.model
    frozen = [model.pi1.weight, model.l1.bias]
    for weight in frozen:
        weight.requires_grad_(False)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for _ in range(2):
        agent.learn(moves(rng, np.float32))
    same = {name for name, weight in model.named_parameters() if torch.equal(weight, before[name])}
    assert {"pi1.weight", "l1.bias"} <= same
    assert same.isdisjoint({"pi1.bias", "pi2.weight", "l1.weight", "l2.weight"})


def test_a_loss_of_ones_own_is_followed() -> None:
    agent = Agent(DQN(a_model(Plain), device="cpu"))
    batch = transitions(np.random.default_rng(11), np.float32)
    plain = agent.learn(batch)
    whole = agent.alg.loss
    agent.alg.loss = lambda batch: (whole(batch)[0] * 0.0 + 7.0, {})
    assert agent.learn(batch) == 7.0 != plain


@dataclass
class Scaled:
    """A loss that cannot be hashed."""

    whole: Callable[..., Any]
    scale: float

    def __call__(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return self.whole(batch)[0] * self.scale, {}


def test_a_loss_without_a_hash_is_followed() -> None:
    agent, other = (Agent(DQN(a_model(Plain), device="cpu")) for _ in range(2))
    agent.alg.loss = Scaled(agent.alg.loss, 3.0)
    batch = transitions(np.random.default_rng(11), np.float32)
    assert agent.learn(batch) == pytest.approx(3.0 * other.learn(batch))


def test_a_copy_and_a_restored_algorithm_go_on_with_the_same_bits() -> None:
    agent, rng = Agent(DDQN(a_model(Q_MODELS[0]), sync_every=2, device="cpu")), np.random.default_rng(12)
    for _ in range(3):
        agent.learn(transitions(rng, np.float32))
    copied, restored = copy.deepcopy(agent), Agent(DDQN(a_model(Q_MODELS[0]), sync_every=2, device="cpu"))
    restored.alg.set_state(agent.alg.get_state())
    for _ in range(3):
        batch = transitions(rng, np.float32)
        assert agent.learn(batch) == copied.learn(batch) == restored.learn(batch)
    assert planned(restored.alg)
    assert planned(copied.alg)
    assert_equal_weights(agent, copied, atol=0.0)
    assert_equal_weights(agent, restored, atol=0.0)


def test_copies_and_restored_actor_critics_go_on_with_the_same_bits() -> None:
    agent, rng = Agent(TD3(a_model(Critics), device="cpu")), np.random.default_rng(12)
    for _ in range(3):
        agent.learn(moves(rng, np.float32))
    copied, restored = copy.deepcopy(agent), Agent(TD3(a_model(Critics), device="cpu"))
    restored.alg.set_state(agent.alg.get_state())
    for step in range(4):
        batch, found = moves(rng, np.float32), []
        for one in (agent, copied, restored):
            with one.drawing_from(step):
                found.append(one.learn(batch))
        assert found[0] == found[1] == found[2]
    assert planned(restored.alg)
    assert_equal_weights(agent, copied, atol=0.0)
    assert_equal_weights(agent, restored, atol=0.0)


def test_what_learn_returns_may_be_computed_with() -> None:
    algorithm = DQN(a_model(Plain), device="cpu")
    batch = algorithm._on_device(transitions(np.random.default_rng(13), np.float32, extras=True))
    loss, td_error = algorithm.learn(batch)
    scale = torch.ones((), requires_grad=True)
    (scale * loss + (scale * td_error).sum()).backward()
    assert scale.grad is not None
