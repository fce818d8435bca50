"""Ready-made models: shapes, heads, first weights."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from parl_torch import layers, networks
from parl_torch.agent import Agent
from parl_torch.algorithms import DQN, PPO
from parl_torch.networks import ActorCritic, AtariActorCritic, AtariQNetwork, CausalTransformer, DuelingHead
from parl_torch.transformer import TrajectoryTransformer


def test_the_dueling_head_s_mean_is_the_state_s_value() -> None:
    head = DuelingHead(4)
    features = torch.randn(5, 8)
    torch.testing.assert_close(head(features).mean(dim=1, keepdim=True), head.state_value(features))


def test_the_atari_q_network_takes_uint8_frames() -> None:
    agent = Agent(DQN(AtariQNetwork(6, dueling=True), device="cpu"))
    frames = np.random.default_rng(1).integers(256, size=(2, 4, 84, 84), dtype=np.uint8)
    assert agent.predict(frames).shape == (2,)
    assert isinstance(agent.predict(frames[0]), int)
    assert agent.get_weights()["trunk.3.weight"].shape == (512, 64 * 7 * 7)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3, 6])
def test_convolutions_learn_with_channels_last(channels: int, dtype: type[np.generic]) -> None:
    trunk = networks.NatureCNN()
    images = torch.from_numpy(np.random.default_rng(1).integers(256, size=(3, channels, 40, 40)).astype(dtype))
    trunk(images)
    layouts: list[tuple[int, ...]] = []
    trunk[0].register_forward_pre_hook(lambda _, inputs: layouts.append(inputs[0].stride()))
    found = trunk(images)
    (gradient,) = torch.autograd.grad(found.square().sum(), trunk[0].weight)
    plain = (images / 255.0).contiguous()
    for layer in trunk:
        plain = layer(plain)
    (expected,) = torch.autograd.grad(plain.square().sum(), trunk[0].weight)
    assert [stride[1] for stride in layouts] == [1, 40 * 40]
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(gradient, expected)


def test_images_may_ask_for_a_gradient() -> None:
    trunk = networks.NatureCNN()
    images = torch.rand(2, 3, 40, 40, requires_grad=True)
    trunk(images).sum().backward()
    assert images.grad is not None


def test_the_atari_actor_critic_passes_its_trunk_once() -> None:
    model = AtariActorCritic(6)
    agent = Agent(PPO(model, device="cpu"))
    passes: list[int] = []
    model.trunk.register_forward_hook(lambda *_: passes.append(1))
    value, action, _, _ = agent.sample(np.zeros((2, 4, 84, 84), np.uint8))
    assert value.shape == action.shape == (2,)
    assert len(passes) == 1


def test_actor_critics_begin_nearly_uniform_with_orthogonal_layers() -> None:
    model = ActorCritic(4)
    obs = torch.randn(10, 8)
    policy = model.policy(obs)
    assert isinstance(policy, torch.Tensor)
    assert policy.abs().max() < 0.1
    model.value(obs)
    weight = model.get_weights()["policy_trunk.1.weight"]
    np.testing.assert_allclose(weight @ weight.T, 2.0 * np.eye(64), atol=1e-5)


def test_a_transformer_of_trajectories_attends_in_half_precision() -> None:
    torch.manual_seed(0)
    model = TrajectoryTransformer(3, 2, hidden=16, layers=1).eval()
    mask = torch.tensor([[0.0, 1.0, 1.0, 1.0], [1.0] * 4])
    windows = [torch.randn(2, 4, 3), torch.randn(2, 4, 2), torch.randn(2, 4, 1), torch.arange(4).repeat(2, 1), mask]
    expected = model(*windows)
    for dtype in (torch.float16, torch.bfloat16):
        model.to(dtype)
        found = model(*[part.to(dtype) if part.is_floating_point() else part for part in windows])
        torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0.0)
        model.float()


def test_a_memory_of_the_last_steps_attends_in_half_precision() -> None:
    torch.manual_seed(0)
    memory = CausalTransformer(8, reach=3, blocks=2)
    features, begins = torch.randn(10, 4), torch.zeros(10)
    begins[3] = begins[8] = 1.0
    state = {name: torch.zeros(2, *shape) for name, shape in memory.shapes.items()}
    expected, _ = memory(features, state, begins)
    for dtype in (torch.float16, torch.bfloat16):
        memory.to(dtype)
        found, _ = memory(features.to(dtype), {name: part.to(dtype) for name, part in state.items()}, begins)
        torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.0)
        memory.float()


def test_a_layer_s_tanh_of_many_values_and_its_two_derivatives_are_pytorch_s() -> None:
    inputs = torch.randn(1100, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    layer = layers.fc(128, act="tanh")
    found = layer(inputs)
    expected = torch.tanh(torch.nn.functional.linear(inputs, layer.weight, layer.bias))
    assert found.grad_fn.name() != expected.grad_fn.name()

    def derivatives(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (slope,) = torch.autograd.grad((values**2).sum(), inputs, create_graph=True)
        return values, slope, *torch.autograd.grad((slope**2).sum(), layer.weight)

    torch.testing.assert_close(found, expected, rtol=0.0, atol=4e-7)
    torch.testing.assert_close(derivatives(found), derivatives(expected), rtol=1e-4, atol=1e-3)


def test_a_layer_s_tanh_of_few_values_is_pytorch_s() -> None:
    assert layers.fc(64, act="tanh")(torch.ones(1100, 8)).grad_fn.name() == "TanhBackward0"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own, of make_dual
def test_a_layer_s_tanh_of_many_values_has_a_forward_derivative() -> None:
    layer = layers.fc(128, act="tanh")
    inputs, tangent = torch.randn(2, 1100, 8, generator=torch.Generator().manual_seed(0))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(inputs, tangent)))
    slope = 1.0 - found.primal**2
    torch.testing.assert_close(found.tangent, slope * torch.nn.functional.linear(tangent, layer.weight))


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_layer_s_tanh_of_many_values_is_traced(pre_dispatch: bool) -> None:
    layer = layers.fc(128, act="tanh")
    inputs, others = torch.randn(2, 1100, 8, generator=torch.Generator().manual_seed(0))
    layer(inputs)  # gives it its shapes
    traced = make_fx(layer, tracing_mode="real", pre_dispatch=pre_dispatch)(inputs)
    torch.testing.assert_close(traced(others), layer(others))
