"""One update step, beside paddle's own optimizer."""

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn

from parl_core.errors import WeightsMismatchError
from parl_paddle import layers
from parl_paddle.agent import Agent
from parl_paddle.algorithms import DDPG, TD3
from parl_paddle.model import Model
from parl_paddle.networks import DeterministicActorCritic, TwinActorCritic
from parl_paddle.optim import Adam, _Slot


class TwoParts(Model):
    def __init__(self) -> None:
        self.one = nn.Linear(3, 2)
        self.two = nn.Linear(3, 2)
        self.unused = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.one(inputs).tanh() + self.two(inputs).square()
        return output


def _twins() -> tuple[TwoParts, TwoParts]:
    one, other = TwoParts(), TwoParts()
    one.sync_weights_to(other)
    return one, other


@pytest.mark.parametrize("max_grad_norm", [None, 0.1, 1e6])
def test_steps_are_those_of_paddle_s_adam(max_grad_norm: float | None) -> None:
    mine, theirs = _twins()
    adam = Adam(mine, lr=0.01, eps=1e-5, max_grad_norm=max_grad_norm)
    clip = None if max_grad_norm is None else nn.ClipGradByGlobalNorm(max_grad_norm)
    peer = paddle.optimizer.Adam(0.01, epsilon=1e-5, parameters=theirs.parameters(), grad_clip=clip)
    rates: list[Any] = [None, None, np.float32(0.05), None]
    for lr in rates:
        inputs = paddle.randn([8, 3])
        adam.minimize(mine(inputs).square().mean(), lr)
        peer.clear_grad()
        theirs(inputs).square().mean().backward()
        peer.set_lr(0.01 if lr is None else float(lr))
        peer.step()
    for name, array in theirs.get_weights().items():
        np.testing.assert_allclose(mine.get_weights()[name], array, atol=1e-6, err_msg=name)


def test_only_the_named_part_is_updated() -> None:
    model, before = _twins()
    Adam(model, lr=0.1, part="two").minimize(model(paddle.randn([8, 3])).mean())
    changed = {name for name, array in model.get_weights().items() if (array != before.get_weights()[name]).any()}
    assert changed == {"two.weight", "two.bias"}


def test_parameters_without_a_gradient_stay_and_have_no_state() -> None:
    model, before = _twins()
    adam = Adam(model, lr=0.1)
    adam.minimize(model(paddle.randn([8, 3])).mean())
    np.testing.assert_array_equal(model.get_weights()["unused.weight"], before.get_weights()["unused.weight"])
    assert {name.split("/")[1] for name in adam.get_state()} == {"one.weight", "one.bias", "two.weight", "two.bias"}


def test_a_state_is_a_copy_that_continues_as_the_original() -> None:
    one, other = _twins()
    adam, twin = Adam(one, lr=0.1), Adam(other, lr=0.1)
    adam.minimize(one(paddle.ones([8, 3])).mean())
    state = adam.get_state()
    one.sync_weights_to(other)
    twin.set_state(state)
    for i in range(3):
        inputs = paddle.full([8, 3], 0.1 * i)
        adam.minimize(one(inputs).mean())
        twin.minimize(other(inputs).mean())
    for name, array in one.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array, err_msg=name)
    assert state["step/one.bias"] == 1


def test_an_empty_state_starts_again() -> None:
    one, other = _twins()
    adam = Adam(one, lr=0.1)
    adam.minimize(one(paddle.ones([8, 3])).mean())
    adam.set_state({})
    assert adam.get_state() == {}
    other.sync_weights_to(one)
    for model, optimizer in ((one, adam), (other, Adam(other, lr=0.1))):
        optimizer.minimize(model(paddle.ones([8, 3])).mean())
    for name, array in one.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array, err_msg=name)


def test_moments_of_reduced_precision_are_kept_in_float32() -> None:
    # Paddle has no bfloat16 arithmetic on CPUs: only the state can be looked at here.
    slot = _Slot.of(nn.Linear(3, 3).to(dtype="bfloat16").weight)
    assert slot.moment1.dtype == slot.moment2.dtype == slot.beta1_power.dtype == paddle.float32


@pytest.mark.parametrize("break_it", ["shape", "missing"])
def test_a_state_that_does_not_fit_is_refused(break_it: str) -> None:
    model, _ = _twins()
    adam = Adam(model, lr=0.1)
    adam.minimize(model(paddle.ones([8, 3])).mean())
    state: dict[str, Any] = adam.get_state()
    if break_it == "shape":
        state["moment1/one.bias"] = np.zeros(5)
    else:
        del state["moment2/one.bias"]
    with pytest.raises(WeightsMismatchError, match=r"one\.bias"):
        adam.set_state(state)


def test_batch_normalisation_in_the_model_does_not_disturb_the_state() -> None:
    class Normalised(Model):
        def __init__(self) -> None:
            self.norm = layers.batch_norm()

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.norm(inputs)
            return output

    model = Normalised()
    adam = Adam(model, lr=0.1)
    adam.minimize(model(paddle.randn([8, 3])).square().mean())
    adam.set_state(adam.get_state())
    adam.minimize(model(paddle.randn([8, 3])).square().mean())


@pytest.mark.parametrize("kind", [DDPG, TD3])
def test_frozen_parameters_stay_frozen_in_the_steps_of_other_parts(kind: Any) -> None:
    model = (DeterministicActorCritic if kind is DDPG else TwinActorCritic)(2, (8,))
    agent, rng = Agent(kind(model, device="cpu")), np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 6, 3)).astype(np.float32)
    batch = obs, np.zeros((6, 2), np.float32), np.ones(6, np.float32), next_obs, np.zeros(6, np.bool_)
    for _ in range(4):
        agent.learn(*batch)
    frozen = [part()[0] for part in (model.get_actor_params, model.get_critic_params)]
    others = [part()[1] for part in (model.get_actor_params, model.get_critic_params)]
    for parameter in frozen:
        parameter.stop_gradient = True
    before = [parameter.numpy().copy() for parameter in (*frozen, *others)]
    for _ in range(2):
        agent.learn(*batch)
    same = [np.array_equal(now.numpy(), then) for now, then in zip((*frozen, *others), before, strict=True)]
    assert same == [True, True, False, False]
    assert all(parameter.stop_gradient for parameter in frozen)
