"""Ready-made models: shapes, heads, first weights."""

import numpy as np
import paddle

from parl_paddle.agent import Agent
from parl_paddle.algorithms import DQN, PPO
from parl_paddle.networks import ActorCritic, AtariActorCritic, AtariQNetwork, DuelingHead


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
