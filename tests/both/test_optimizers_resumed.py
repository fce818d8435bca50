"""Optimizers go on after a restore as they would have gone on, and reach layers that get their shapes late."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl
from parl_core import backends
from parl_core.seeding import seed_everything

framework: Any = importlib.import_module(backends.current().name)
torch: Any = framework if framework.__name__ == "torch" else None


class Q(parl.Model):
    def __init__(self) -> None:
        seed_everything(3)
        self.fc = framework.nn.Linear(4, 2)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)


def batch() -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    obs, next_obs = rng.normal(size=(2, 8, 4)).astype(np.float32)
    return obs, rng.integers(2, size=8), rng.normal(size=8).astype(np.float32), next_obs, np.ones(8, np.float32)


def made(**rate: Any) -> Any:
    """Return an agent of DQN with the framework's SGD, at a rate of 0.5 unless one is given."""
    model = Q()
    parameters = model.parameters()
    own = torch.optim.SGD(parameters, 0.5) if torch else framework.optimizer.SGD(0.5, parameters=parameters)
    return parl.Agent(parl.algorithms.DQN(model, optimizer=own, device="cpu", **rate))


def give_directly(optimizer: Any, rate: float) -> None:
    """Set the rate of the framework's optimizer itself, as its own schedulers do."""
    if torch:
        optimizer.param_groups[0]["lr"] = rate
    else:
        optimizer.set_lr(rate)


@pytest.mark.parametrize("rate", [{}, {"lr": 0.25}], ids=["of the optimizer", "of the constructor"])
@pytest.mark.parametrize("directly", [False, True], ids=["set_lr", "directly"])
def test_a_frameworks_optimizer_goes_on_at_the_rate_that_it_had(
    rate: dict[str, float], directly: bool, tmp_path: Path
) -> None:
    agent, other = made(**rate), made(**rate)
    agent.learn(*batch())
    if directly:
        give_directly(agent.alg.optimizer.optimizer, 0.125)
    else:
        agent.alg.optimizer.set_lr(0.125)
    agent.learn(*batch())
    assert agent.alg.optimizer.get_lr() == 0.125
    agent.save(tmp_path / "agent.ckpt")
    other.restore(tmp_path / "agent.ckpt")
    for one in (agent, other):
        one.learn(*batch())
        assert one.alg.optimizer.get_lr() == 0.125
    for name, weight in agent.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], weight)


def test_another_rate_of_the_constructor_takes_effect_after_a_restore(tmp_path: Path) -> None:
    agent, other = made(lr=0.25), made(lr=0.0625)
    agent.learn(*batch())
    agent.save(tmp_path / "agent.ckpt")
    other.restore(tmp_path / "agent.ckpt")
    other.learn(*batch())
    assert other.alg.optimizer.get_lr() == 0.0625


def test_the_rate_of_the_last_step_is_known_after_a_restore(tmp_path: Path) -> None:
    agents = [parl.Agent(parl.algorithms.DQN(Q(), lr=1e-3, device="cpu")) for _ in range(2)]
    agents[0].learn(*batch(), learning_rate=5e-4)
    agents[0].save(tmp_path / "agent.ckpt")
    agents[1].restore(tmp_path / "agent.ckpt")
    assert [agent.alg.optimizer.get_lr() for agent in agents] == [5e-4, 5e-4]


class TwoHeads(parl.Model):
    def __init__(self) -> None:
        seed_everything(3)
        self.body, self.policy_head, self.value_head = (parl.layers.fc(size=size) for size in (8, 2, 1))

    def policy(self, obs: Any) -> Any:
        return self.policy_head(self.body(obs))

    def value(self, obs: Any) -> Any:
        return self.value_head(self.body(obs))


@pytest.mark.usefixtures("on_the_cpu")
def test_layers_that_get_their_shapes_after_the_first_step_learn() -> None:
    model = TwoHeads()
    optimizer = parl.optim.Adam(model, lr=0.1)
    obs = framework.to_tensor(batch()[0]) if torch is None else torch.as_tensor(batch()[0])
    optimizer.minimize(model.policy(obs).mean())
    optimizer.minimize(model.value(obs).mean())
    before = model.get_weights()
    state = optimizer.get_state()
    optimizer.minimize(model.value(obs).mean())
    after = model.get_weights()
    assert np.abs(after["value_head.weight"] - before["value_head.weight"]).max() > 0.0
    assert int(state["step/value_head.weight"]) == 1

    other = TwoHeads()
    resumed = parl.optim.Adam(other, lr=0.1)
    resumed.minimize(other.policy(obs).mean())
    other.value(obs)
    other.set_weights(before)
    resumed.set_state(state)
    resumed.minimize(other.value(obs).mean())
    for name, weight in after.items():
        np.testing.assert_array_equal(other.get_weights()[name], weight)
