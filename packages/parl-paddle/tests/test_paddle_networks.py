"""Ready-made models: shapes, heads, first weights."""

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from parl_paddle.agent import Agent
from parl_paddle.algorithms import DQN, PPO
from parl_paddle.networks import GRU, ActorCritic, AtariActorCritic, AtariQNetwork, DuelingHead


def test_the_dueling_head_s_mean_is_the_state_s_value() -> None:
    head = DuelingHead(4)
    features = paddle.randn([5, 8])
    mean = head(features).mean(axis=1, keepdim=True)
    np.testing.assert_allclose(mean.numpy(), head.state_value(features).numpy(), atol=1e-5)


def test_the_atari_q_network_takes_uint8_frames() -> None:
    agent = Agent(DQN(AtariQNetwork(6, dueling=True), device="cpu"))
    frames = np.random.default_rng(1).integers(256, size=(2, 4, 84, 84), dtype=np.uint8)
    assert agent.predict(frames).shape == (2,)
    assert isinstance(agent.predict(frames[0]), int)
    assert agent.get_weights()["trunk.3.weight"].shape == (64 * 7 * 7, 512)


def test_the_atari_actor_critic_passes_its_trunk_once() -> None:
    model = AtariActorCritic(6)
    agent = Agent(PPO(model, device="cpu"))
    passes: list[int] = []
    model.trunk.register_forward_post_hook(lambda *_: passes.append(1))  # type: ignore[arg-type]  # paddle allows None
    value, action, _, _ = agent.sample(np.zeros((2, 4, 84, 84), np.uint8))
    assert value.shape == action.shape == (2,)
    assert len(passes) == 1


def test_actor_critics_begin_nearly_uniform_with_orthogonal_layers() -> None:
    model = ActorCritic(4)
    obs = paddle.randn([10, 8])
    policy = model.policy(obs)
    assert isinstance(policy, paddle.Tensor)
    assert policy.abs().max() < 0.1
    model.value(obs)
    weight = model.get_weights()["policy_trunk.1.weight"]
    np.testing.assert_allclose(weight @ weight.T, 2.0 * np.eye(64), atol=1e-5)


def _gradients(reset: float) -> list[NDArray[Any]]:
    """Return the gradients of a GRU's weights and features, with one reset gate whose bias is `reset`."""
    paddle.seed(1)
    memory, rng = GRU(8), np.random.default_rng(2)
    features = paddle.to_tensor(rng.normal(size=(3 * 5, 4)).astype(np.float32), place="cpu", stop_gradient=False)
    begins = paddle.to_tensor(rng.random(15) < 0.2, place="cpu")
    state = {"hidden": paddle.to_tensor(rng.normal(size=(3, 8)).astype(np.float32), place="cpu")}
    memory(features, state)
    bias = memory.cell.bias_ih_l0.numpy()
    bias[0] = reset
    memory.cell.bias_ih_l0.set_value(paddle.to_tensor(bias, place="cpu"))
    outputs, after = memory(features, state, begins)
    (outputs.square().sum() + after["hidden"].sum()).backward()
    return [parameter.grad.numpy() for parameter in (*memory.parameters(), features)]


def test_a_reset_gate_that_is_0_has_the_gradients_of_one_that_is_almost_0() -> None:
    for closed, almost in zip(_gradients(-200.0), _gradients(-60.0), strict=True):
        np.testing.assert_allclose(closed, almost, rtol=1e-4, atol=1e-6)
