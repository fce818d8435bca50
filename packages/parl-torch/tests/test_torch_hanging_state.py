"""A saved agent has the state of whatever of PyTorch hangs on its algorithm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.small_batches import eight_transitions
from parl_core.errors import CheckpointError, ModelContractError
from parl_torch.agent import Agent
from parl_torch.algorithm import Algorithm
from parl_torch.algorithms import DQN
from parl_torch.model import Model


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARL_DEVICE", "cpu")  # where the parts of `Own` are


class Net(Model):
    def __init__(self) -> None:
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, obs: Any) -> Any:
        return self.fc(obs)


class Own(Algorithm):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.novelty = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        self.critics = [Net(), Net()]
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.scale = torch.ones(2)
        owners = [self.model, self.novelty, *self.critics]
        parameters = [parameter for owner in owners for parameter in owner.parameters()]
        self.optimizers = {
            "adam": torch.optim.Adam(parameters, 1e-2),
            "sgd": torch.optim.SGD([self.log_alpha], 0.1, 0.9),
        }
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizers["adam"], 0.1, total_steps=20)
        self.noise = torch.Generator().manual_seed(3)
        self.rng = np.random.default_rng(3)

    def predict(self, obs: Any) -> Any:
        return self.model(obs)

    def learn(self, obs: Any) -> Any:
        shifted = obs + torch.randn(obs.shape, generator=self.noise) + float(self.rng.normal())
        loss = self.model(shifted).square().mean() + self.novelty(shifted).abs().mean() + self.log_alpha.exp()
        loss = loss + sum(critic(shifted).square().mean() for critic in self.critics)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.scheduler.step()
        return loss.detach()


def test_all_of_it_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    agent = Agent(Own(Net()))
    for _ in range(3):
        agent.learn(obs)
    agent.save(tmp_path / "agent.ckpt")
    expected = [agent.learn(obs) for _ in range(4)]
    torch.manual_seed(5)
    other = Agent(Own(Net()))
    other.restore(tmp_path / "agent.ckpt")
    assert [other.learn(obs) for _ in range(4)] == expected


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    obs = np.ones((8, 4), np.float32)
    agent = Agent(Own(Net()))
    agent.learn(obs)
    agent.save(tmp_path / "agent.ckpt")
    other = Agent(Own(Net()))
    other.alg.novelty = torch.nn.Linear(7, 2)
    before = other.get_weights()
    with pytest.raises(CheckpointError, match=r"Own\.novelty, a Linear, does not take the state"):
        other.restore(tmp_path / "agent.ckpt")
    for name, weight in other.get_weights().items():
        np.testing.assert_array_equal(weight, before[name])


def test_a_file_without_its_state_says_that_it_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(Own(Net()))
    del agent.alg.scheduler
    agent.save(tmp_path / "agent.ckpt")
    Agent(Own(Net())).restore(tmp_path / "agent.ckpt")
    assert "Own.scheduler keeps its initial state" in caplog.text


def test_a_generator_keeps_its_state_where_the_saved_one_is_that_of_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(Own(Net()))
    state = agent.alg.get_state()
    assert state.arrays["noise"].shape == agent.alg.noise.get_state().shape
    state.arrays["noise"] = np.zeros(16, np.uint8)  # a seed and an offset
    before = agent.alg.noise.get_state()
    agent.alg.set_state(state)
    assert torch.equal(agent.alg.noise.get_state(), before)
    assert "A generator on the cpu keeps its state, because the saved state is of another device" in caplog.text


def test_a_state_that_no_file_holds_is_named(tmp_path: Path) -> None:
    agent = Agent(Own(Net()))

    class Strange:
        def state_dict(self) -> dict[str, Any]:
            return {"rule": lambda: 1}

        def load_state_dict(self, state: Any) -> None: ...

    agent.alg.strange = Strange()
    with pytest.raises(CheckpointError, match="strange/rule cannot be saved"):
        agent.save(tmp_path / "agent.ckpt")


class Counting(Model):
    """Changes tensors, a number and generators, of its own and of a layer, in each pass."""

    largest: torch.Tensor
    passes: torch.Tensor

    def __init__(self) -> None:
        self.fc = torch.nn.Linear(4, 2)
        self.inner = torch.nn.Sequential(Scaled())
        self.mean = torch.zeros(4)
        self.register_buffer("largest", torch.zeros(4), persistent=False)
        self.register_buffer("passes", torch.zeros(()))  # which is among the weights
        self.rng = np.random.default_rng(3)
        self.noise = torch.Generator().manual_seed(3)
        self.table = torch.arange(4.0)  # which nothing changes

    def value(self, obs: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * obs.mean(0)
        self.largest = torch.maximum(self.largest, obs.abs().amax(0))
        self.passes += 1.0
        obs = obs + float(self.rng.normal()) + torch.randn(4, generator=self.noise)
        return self.fc(self.inner((obs - self.mean) / (1.0 + self.largest))) / self.passes


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, obs: Any) -> Any:
        self.scale *= 0.9
        return obs * self.scale


def test_what_a_model_changes_beside_its_weights_goes_on_too(tmp_path: Path) -> None:
    batch = eight_transitions()
    agent = Agent(DQN(Counting()))
    for _ in range(3):
        agent.learn(batch)
    state = agent.alg.get_state()
    changed = {"model.mean", "model.largest", "model.rng", "model.noise", "model.inner.0.scale"}
    assert changed <= set(state.others)
    assert not any("table" in name for name in state.others)
    agent.save(tmp_path / "agent.ckpt")
    expected = [agent.learn(batch) for _ in range(4)]
    other = Agent(DQN(Counting()))
    other.restore(tmp_path / "agent.ckpt")
    assert [other.learn(batch) for _ in range(4)] == expected
    agent.restore(tmp_path / "agent.ckpt")
    assert [agent.learn(batch) for _ in range(4)] == expected


def test_a_value_of_a_layer_that_is_gone_says_that_it_stays_unused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(DQN(Counting()))
    agent.alg.model.inner[0].scale = 0.5
    agent.save(tmp_path / "agent.ckpt")
    other = Agent(DQN(Counting()))
    other.alg.model.inner = other.alg.target_model.inner = torch.nn.Identity()
    other.restore(tmp_path / "agent.ckpt")
    assert "DQN has no model.inner.0.scale" in caplog.text


@pytest.mark.parametrize(
    "held",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.ones(2).to(torch.float8_e4m3fn),
        lambda: torch.ones(2, device="meta"),
    ],
    ids=["sparse", "float8", "meta"],
)
def test_tensors_that_numpy_has_no_array_for_are_left_as_they_are(held: Any) -> None:
    class Holding(Model):
        def __init__(self, held: Any) -> None:
            self.fc = torch.nn.Linear(4, 2)
            self.held = held

        def value(self, obs: Any) -> Any:
            return self.fc(obs)

    model = Holding(held())
    kept = model.held
    agent = Agent(DQN(model))
    agent.learn(eight_transitions())
    assert model.held is kept
    assert agent.alg.get_state().others == {}


def test_settings_of_pytorch_s_own_lazy_layers_are_no_state() -> None:
    class Lazy(Model):
        def __init__(self, eps: float) -> None:
            self.first = torch.nn.LazyLinear(3)
            self.norm = torch.nn.LazyBatchNorm1d(eps=eps)
            self.last = torch.nn.LazyLinear(2)

        def value(self, obs: Any) -> Any:
            return self.last(self.norm(self.first(obs)))

    agents = [Agent(DQN(Lazy(eps))) for eps in (1e-5, 1e-2)]
    for agent in agents:
        agent.learn(eight_transitions())
    agents[1].alg.set_state(agents[0].alg.get_state())
    assert agents[1].alg.model.norm.eps == 1e-2


def test_a_lazy_model_that_has_not_run_does_not_become_a_copy_of_another_one() -> None:
    class Lazy(Model):
        def __init__(self) -> None:
            self.fc = torch.nn.LazyLinear(2)

        def forward(self, obs: Any) -> Any:
            return self.fc(obs)

    class Two(Algorithm):
        def __init__(self, model: Any, other: Any) -> None:
            super().__init__(model)
            self.other = self._place(other, self.device)

        def predict(self, obs: Any) -> Any:
            return self.model(obs)

    algorithm = Two(Lazy(), Lazy())
    algorithm.model(torch.zeros(1, 4))
    with pytest.raises(ModelContractError, match=r"Lazy: the shape of fc\.weight is not known"):
        algorithm.get_state()
    algorithm.other(torch.zeros(1, 4))
    state = algorithm.get_state()
    assert not np.array_equal(state.arrays["model/fc.weight"], state.arrays["other/fc.weight"])
