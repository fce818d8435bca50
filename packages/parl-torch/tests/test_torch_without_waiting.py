"""No update waits for the device: on CUDA PyTorch is told to refuse it, on the CPU each way to ask is refused here."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from parl_torch import _graphs, algorithms, networks
from parl_torch.losses import vtrace
from parl_torch.transformer import TrajectoryTransformer

ROWS, WINDOW = 64, 5
CONTINUOUS = {
    "CQL": networks.SquashedActorCritic,
    "DDPG": networks.DeterministicActorCritic,
    "IQL": networks.ImplicitActorCritic,
    "OAC": networks.SquashedActorCritic,
    "SAC": networks.SquashedActorCritic,
    "TD3": networks.TwinActorCritic,
}
OTHERS = ("A2C", "DQN", "DecisionTransformer", "IMPALA", "OfflineQ", "PPO", "PolicyGradient", "SeparatePPO")
ALL = (*OTHERS, *CONTINUOUS)
COMPILED = ("DDPG", "DQN", "OAC", "PPO", "SAC", "TD3")

# What a host must wait for: the numbers themselves, or a size that depends on them.
_ASKS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.nonzero.default,
)
_ASKING = ("__array__", "__bool__", "__float__", "__index__", "__int__", "cpu", "item", "numpy", "tolist")


class NoWaiting(TorchDispatchMode):
    """Refuses kernels whose result the host has to read."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        waits = func in _ASKS or masks
        assert not waits, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


class NoReading(TorchFunctionMode):
    """Refuses the methods that read a tensor without a kernel of their own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in _ASKING, f"Tensor.{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode does not notice all of it
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("waiting_is_an_error")
@pytest.mark.filterwarnings("ignore")  # those of PyTorch: of this mode, and while it compiles
@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in ALL), *((name, True) for name in COMPILED)])
def test_an_update_on_cuda_does_not_wait_for_the_device(name: str, compiled: bool) -> None:
    learn = _learner(name, "cuda", **({"compile": True} if compiled else {}))
    for _ in range(5):  # shapes, compilation, capture
        learn()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(3):
        learn()


@pytest.mark.parametrize("name", ALL)
def test_an_update_asks_for_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vtrace, "_is_of_the_host", lambda tensor: False)
    monkeypatch.setattr(_graphs, "_is_array", lambda parameter: False)  # as on a device
    learn = _learner(name, "cpu")
    learn()
    with NoWaiting(), NoReading():
        for _ in range(2):
            learn()


@pytest.mark.parametrize(
    "ask",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.numpy(),
        lambda tensor: bool(tensor[0]),
        lambda tensor: float(tensor[0]),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.nonzero(),
        lambda tensor: torch.equal(tensor, tensor),
    ],
)
def test_whatever_waits_would_be_noticed(ask: Callable[[Tensor], object]) -> None:
    with NoWaiting(), NoReading(), pytest.raises(AssertionError, match="waits for the device"):
        ask(torch.ones(3))


def _learner(name: str, device: str, **options: Any) -> Callable[[], object]:
    """One update of an algorithm, on tensors that are on the device."""

    def tensor(*shape: int) -> Tensor:
        return torch.rand(shape, device=device)

    make = getattr(algorithms, "PPO" if name == "SeparatePPO" else name)
    options["device"] = device
    obs, ones, chosen = tensor(ROWS, 4), tensor(ROWS), torch.zeros(ROWS, dtype=torch.int64, device=device)
    action, critic = tensor(ROWS, 2), networks.ActorCritic
    batch: Sequence[Any]
    extra: dict[str, Any] = {}
    if name in CONTINUOUS:
        alg, batch = make(CONTINUOUS[name](2), **options), (obs, action, ones, obs, 0.0 * ones)
        extra = {} if name == "IQL" else {"weights": ones, "discount": ones}
    elif name in ("DQN", "OfflineQ"):
        double = {"double": True, "sync_every": 2} if name == "DQN" else {}
        alg, batch = make(networks.QNetwork(2), **double, **options), (obs, chosen, ones, obs, 0.0 * ones)
        extra = {"weights": ones, "next_action_mask": torch.ones(ROWS, 2, dtype=torch.bool, device=device)}
    elif name == "PPO":
        alg, batch = make(critic(2), **options), (obs, chosen, ones, ones, -ones, ones)
        extra = {"action_mask": torch.ones(ROWS, 2, dtype=torch.bool, device=device)}
    elif name == "SeparatePPO":
        gaussian = _Separate()
        alg = make(gaussian, act_dim=2, policy_lr=1e-3, value_lr=1e-3, **options)
        return lambda: (alg.policy_learn(obs, action, ones), alg.value_learn(obs, ones))
    elif name == "A2C":
        alg, batch = make(critic(2), **options), (obs, chosen, ones, ones)
    elif name == "IMPALA":
        alg = make(critic(2), sample_batch_steps=8, **options)
        batch = (obs, chosen, action, ones, torch.zeros(ROWS, dtype=torch.bool, device=device))
    elif name == "PolicyGradient":
        alg, batch = make(_Probabilities(), **options), (obs, chosen, ones)
    else:
        alg = make(TrajectoryTransformer(4, 2, hidden=8, layers=1), **options)
        steps = torch.arange(WINDOW, device=device).expand(ROWS, WINDOW)
        windows = (tensor(ROWS, WINDOW, size) for size in (4, 2, 1))
        batch = (*windows, steps, torch.ones(ROWS, WINDOW, device=device))
    return lambda: alg.learn(*batch, **extra)


class _Probabilities(networks.ActorCritic):
    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.softmax(self.policy_head(self.policy_trunk(obs)), dim=-1)


class _Separate(networks.ActorCritic):
    def __init__(self) -> None:
        super().__init__(2, continuous=True)

    def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = super().policy(obs)
        return mean, std.log().expand_as(mean)
