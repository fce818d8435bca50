"""Actor-critics take a framework's optimizer for each part, and save their states, on the backend in use."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl
from parl_core import backends
from parl_core.contracts.batches import TeamRollout
from parl_core.errors import HyperparameterError
from parl_core.seeding import seed_everything

framework: Any = importlib.import_module(backends.current().name)
torch: Any = framework if framework.__name__ == "torch" else None
concatenate = torch.cat if torch else framework.concat


class Continuous(parl.Model):
    """Actor and critics as every algorithm with continuous actions wants them, but for BootstrappedDDPG."""

    def __init__(self, twin: bool, gaussian: bool) -> None:
        seed_everything(3)
        self.twin, self.gaussian = twin, gaussian
        self.actor, self.spread = framework.nn.Linear(4, 2), framework.nn.Linear(4, 2)
        self.q1, self.q2, self.state = framework.nn.Linear(6, 1), framework.nn.Linear(6, 1), framework.nn.Linear(4, 1)

    def policy(self, obs: Any) -> Any:
        mean = self.actor(obs).tanh()
        return (mean, self.spread(obs).tanh()) if self.gaussian else mean

    def q_value(self, obs: Any, action: Any) -> Any:
        both = concatenate([obs, action], 1)
        return self.q1(both), self.q2(both)

    def value(self, obs: Any, action: Any = None) -> Any:
        if action is None:
            return self.state(obs)
        return self.q_value(obs, action) if self.twin else self.q_value(obs, action)[0]

    def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the name that TD3 asks for
        return self.q_value(obs, action)[0]

    def get_actor_params(self) -> list[Any]:
        return [*self.actor.parameters(), *(self.spread.parameters() if self.gaussian else ())]

    def get_critic_params(self) -> list[Any]:
        return [*self.q1.parameters(), *(self.q2.parameters() if self.twin else ())]

    def get_value_params(self) -> list[Any]:
        return list(self.state.parameters())


APART = {
    "DDPG": (parl.algorithms.DDPG, False, False),
    "TD3": (parl.algorithms.TD3, True, False),
    "SAC": (parl.algorithms.SAC, True, True),
    "OAC": (parl.algorithms.OAC, True, True),
    "CQL": (parl.algorithms.CQL, True, True),
    "IQL": (parl.algorithms.IQL, True, True),
}
apart = pytest.mark.parametrize("name", APART)


def continuous_batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    obs, next_obs = rng.normal(size=(2, 8, 4)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (8, 2)).astype(np.float32)
    return obs, action, rng.normal(size=8).astype(np.float32), next_obs, np.zeros(8, np.float32)


def parts_of(name: str, model: Any) -> dict[str, Any]:
    parts = {"actor": model.get_actor_params(), "critic": model.get_critic_params()}
    return {**parts, "value": model.get_value_params()} if name == "IQL" else parts


def made(name: str, how: Callable[[Any], Any] | None, **settings: Any) -> Any:
    kind, twin, gaussian = APART[name]
    model = Continuous(twin, gaussian)
    optimizer = None if how is None else {part: how(listed) for part, listed in parts_of(name, model).items()}
    return parl.Agent(kind(model, optimizer=optimizer, device="cpu", **settings))


def sgd(listed: Any) -> Any:
    return torch.optim.SGD(listed, 0.5) if torch else framework.optimizer.SGD(0.5, parameters=listed)


def rate_of(optimizer: Any) -> float:
    return float(optimizer.param_groups[0]["lr"] if torch else optimizer.get_lr())


def adam(listed: Any) -> Any:
    return torch.optim.Adam(listed, 1e-2) if torch else framework.optimizer.Adam(1e-2, parameters=listed)


@apart
def test_actor_and_critic_take_steps_with_what_they_were_given(name: str) -> None:
    agent = made(name, sgd)
    before = agent.get_weights()
    agent.learn(*continuous_batch())
    agent.learn(*continuous_batch())  # TD3's actor learns at the second update
    after = agent.get_weights()
    idle = ("q2",) if name == "DDPG" else ()
    learns = {"actor.weight", "q1.weight"} | ({"state.weight"} if name == "IQL" else set())
    for weight in learns:
        assert np.abs(after[weight] - before[weight]).max() > 0.0
    for weight, array in after.items():
        if (weight.startswith(idle) and idle) or (name != "IQL" and weight.startswith("state")):
            np.testing.assert_array_equal(array, before[weight])


@apart
def test_the_optimizers_of_actor_and_critic_are_saved(name: str, tmp_path: Path) -> None:
    agent = made(name, adam)
    for _ in range(3):
        agent.learn(*continuous_batch())
    agent.save(tmp_path / "agent.ckpt")
    other = made(name, adam)
    other.restore(tmp_path / "agent.ckpt")
    for one in (agent, other):
        seed_everything(3)
        for _ in range(2):
            one.learn(*continuous_batch())
    found, expected = other.get_weights(), agent.get_weights()
    for weight, array in expected.items():
        np.testing.assert_array_equal(found[weight], array, err_msg=weight)


def test_optimizers_that_do_not_fit_their_part_are_refused() -> None:
    model = Continuous(False, False)
    one = sgd(model.parameters())
    with pytest.raises(HyperparameterError, match=r"optimizer= takes a dictionary, .'actor': ..., 'critic': ..."):
        parl.algorithms.DDPG(model, optimizer=one)
    with pytest.raises(HyperparameterError, match="has parameters of another part of the model"):
        parl.algorithms.DDPG(model, optimizer={"actor": one})
    with pytest.raises(HyperparameterError, match="updates its networks apart"):
        parl.algorithms.DDPG(model, optimizer={"value": one})


def test_a_part_keeps_the_rate_of_its_optimizer_unless_one_is_given() -> None:
    agent = made("DDPG", sgd, critic_lr=0.125)
    agent.learn(*continuous_batch())
    rates = [rate_of(part.optimizer) for part in (agent.alg.actor_optimizer, agent.alg.critic_optimizer)]
    assert rates == [0.5, 0.125]


class AgentsNetwork(parl.Model):
    def __init__(self) -> None:
        self.out = framework.nn.Linear(4, 2)

    def value(self, obs: Any) -> Any:
        return self.out(obs)


class Mixer(parl.Model):
    def __init__(self) -> None:
        self.out = framework.nn.Linear(2, 1)

    def forward(self, values: Any, state: Any) -> Any:
        return self.out(values)


def test_qmix_leaves_a_given_optimizer_its_rate_unless_one_is_given() -> None:
    agents, mixer = AgentsNetwork(), Mixer()
    optimizer = sgd([*agents.parameters(), *mixer.parameters()])
    assert parl.algorithms.QMIX(agents, mixer, optimizer=optimizer).lr is None
    assert parl.algorithms.QMIX(agents, mixer, lr=0.125, optimizer=optimizer).lr == 0.125
    assert parl.algorithms.QMIX(agents, mixer).lr == 5e-4


class TeamNetwork(parl.Model):
    def __init__(self) -> None:
        self.actor, self.critic = framework.nn.Linear(4, 2), framework.nn.Linear(4, 2)
        self.value_head = framework.nn.Linear(4, 1)

    def policy(self, obs: Any) -> Any:
        return self.actor(obs["obs"])

    def value(self, obs: Any) -> Any:
        return self.value_head(obs["obs"])

    def values(self, obs: Any, action: Any) -> Any:
        return self.critic(obs["obs"])

    def get_actor_params(self) -> list[Any]:
        return list(self.actor.parameters())

    def get_critic_params(self) -> list[Any]:
        return list(self.critic.parameters())


def team_rollout() -> TeamRollout:
    rng = np.random.default_rng(2)
    obs = {
        "obs": rng.normal(size=(6, 2, 4)).astype(np.float32),
        "state": rng.normal(size=(6, 3)).astype(np.float32),
        "alive": np.ones((6, 2), np.int8),
        "action_mask": np.ones((6, 2, 2), np.int8),
    }
    names = ("value", "return_", "log_prob", "advantage")
    columns = {name: -np.abs(rng.normal(size=(6, 2))).astype(np.float32) for name in names}
    return TeamRollout(obs=obs, action=np.zeros((6, 2), np.int64), active=np.ones((6, 2), np.float32), **columns)


def test_coma_leaves_given_optimizers_their_rates_unless_one_is_given() -> None:
    model = TeamNetwork()
    optimizer = {"actor": sgd(model.get_actor_params()), "critic": sgd(model.get_critic_params())}
    algorithm = parl.algorithms.COMA(model, 2, 2, critic_lr=0.125, optimizer=optimizer, device="cpu")
    parl.Agent(algorithm).learn_rollout(team_rollout(), rng=np.random.default_rng(0))
    assert [rate_of(optimizer[part]) for part in ("actor", "critic")] == [0.5, 0.125]
    with pytest.raises(HyperparameterError, match=r"optimizer= takes a dictionary, .'actor': ..., 'critic': ..."):
        parl.algorithms.COMA(model, 2, 2, optimizer=sgd(model.get_actor_params()))


@pytest.mark.parametrize(("given", "expected"), [({}, 0.5), ({"initial_lr": 0.125}, 0.125)])
def test_mappo_leaves_a_given_optimizer_its_rate_unless_one_is_given(given: dict[str, Any], expected: float) -> None:
    model = TeamNetwork()
    optimizer = sgd(model.parameters())
    agent = parl.Agent(parl.algorithms.MAPPO(model, optimizer=optimizer, device="cpu", **given))
    agent.learn_rollout(team_rollout(), rng=np.random.default_rng(0), epochs=1)
    assert rate_of(optimizer) == expected


def test_settings_of_mappo_that_are_none_have_the_defaults_of_mappo() -> None:
    none: dict[str, Any] = dict.fromkeys(
        ("clip_param", "value_loss_coef", "entropy_coef", "initial_lr", "max_grad_norm")
    )
    algorithm = parl.algorithms.MAPPO(TeamNetwork(), device="cpu", **none)
    assert (algorithm.clip_param, algorithm.value_loss_coef, algorithm.entropy_coef) == (0.2, 1.0, 0.01)
    assert (algorithm.lr, algorithm.max_grad_norm, algorithm.norm_adv) == (7e-4, 10.0, False)
