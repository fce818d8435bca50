"""One update step: the fused kernel beside PyTorch's own optimizer."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parl_core.errors import WeightsMismatchError
from parl_torch._compiled import gradients_of
from parl_torch.model import Model
from parl_torch.optim import Adam

PARTS = ("one", "two", "unused")


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
def test_steps_are_those_of_pytorch_s_adam(max_grad_norm: float | None) -> None:
    mine, theirs = _twins()
    adam = Adam(mine, lr=0.01, eps=1e-5, max_grad_norm=max_grad_norm)
    peer = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    for lr in (None, None, 0.05, None):
        inputs = torch.randn(8, 3)
        norm = adam.minimize(mine(inputs).square().mean(), lr)
        peer.zero_grad()
        theirs(inputs).square().mean().backward()
        if max_grad_norm is not None:
            expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
            torch.testing.assert_close(norm, expected)
        peer.param_groups[0]["lr"] = 0.01 if lr is None else lr
        peer.step()
    for name, array in theirs.get_weights().items():
        np.testing.assert_allclose(mine.get_weights()[name], array, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("restored", [False, True], ids=["running", "restored"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
def test_each_parameter_counts_the_steps_it_has_taken(max_grad_norm: float | None, restored: bool) -> None:
    mine, theirs = _twins()
    adam = Adam(mine, lr=0.01, max_grad_norm=max_grad_norm)
    peer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for parts in (("one", "two"), ("one",), ("one", "two"), ("two",), ("two", "unused"), ("one", "unused"), ("one",)):
        inputs = torch.randn(8, 3)

        def loss(model: TwoParts, inputs: Tensor = inputs, parts: tuple[str, ...] = parts) -> Tensor:
            return torch.stack([getattr(model, part)(inputs).square().mean() for part in parts]).sum()

        adam.minimize(loss(mine))
        peer.zero_grad()
        loss(theirs).backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        peer.step()
        if restored:
            adam.set_state(adam.get_state())
    counted = {name.removeprefix("step/"): int(step) for name, step in adam.get_state().items() if "step/" in name}
    assert counted == {f"{part}.{of}": n for part, n in zip(PARTS, (5, 4, 2), strict=True) for of in ("weight", "bias")}
    for name, array in theirs.get_weights().items():
        np.testing.assert_allclose(mine.get_weights()[name], array, atol=1e-6, err_msg=name)


def test_only_the_named_part_is_updated() -> None:
    model, before = _twins()
    Adam(model, lr=0.1, part="two").minimize(model(torch.randn(8, 3)).mean())
    changed = {name for name, array in model.get_weights().items() if (array != before.get_weights()[name]).any()}
    assert changed == {"two.weight", "two.bias"}


def test_parameters_without_a_gradient_stay_and_have_no_state() -> None:
    model, before = _twins()
    adam = Adam(model, lr=0.1)
    adam.minimize(model(torch.randn(8, 3)).mean())
    np.testing.assert_array_equal(model.get_weights()["unused.weight"], before.get_weights()["unused.weight"])
    assert {name.split("/")[1] for name in adam.get_state()} == {"one.weight", "one.bias", "two.weight", "two.bias"}


def test_a_state_is_a_copy_that_continues_as_the_original() -> None:
    one, other = _twins()
    adam, twin = Adam(one, lr=0.1), Adam(other, lr=0.1)
    adam.minimize(one(torch.ones(8, 3)).mean())
    state = adam.get_state()
    one.sync_weights_to(other)
    twin.set_state(state)
    for i in range(3):
        inputs = torch.full((8, 3), 0.1 * i)
        adam.minimize(one(inputs).mean())
        twin.minimize(other(inputs).mean())
    for name, array in one.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array, err_msg=name)
    assert state["step/one.bias"] == 1


class OneConvolution(Model):
    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.conv(images.contiguous(memory_format=torch.channels_last)).square().mean()
        return output


def test_gradients_lie_in_memory_as_their_parameters_do() -> None:
    model = OneConvolution()
    gradient, _ = gradients_of(model(torch.randn(8, 3, 9, 9)), [*model.parameters()])
    assert gradient is not None
    assert gradient.stride() == model.conv.weight.stride()  # that of the images, which the kernel would take for it


def test_a_restored_state_fits_weights_with_channels_last() -> None:
    one = OneConvolution().to(memory_format=torch.channels_last)
    other = copy.deepcopy(one)
    adam, twin = Adam(one, lr=0.1), Adam(other, lr=0.1)
    adam.minimize(one(torch.randn(8, 3, 9, 9)))
    twin.set_state({name: np.array(array, order="C") for name, array in adam.get_state().items()})  # as files have it
    one.sync_weights_to(other)
    images = torch.randn(8, 3, 9, 9)
    adam.minimize(one(images))
    twin.minimize(other(images))
    np.testing.assert_array_equal(other.get_weights()["conv.weight"], one.get_weights()["conv.weight"])


@pytest.mark.parametrize("break_it", ["shape", "missing"])
def test_a_state_that_does_not_fit_is_refused(break_it: str) -> None:
    model, _ = _twins()
    adam = Adam(model, lr=0.1)
    adam.minimize(model(torch.ones(8, 3)).mean())
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
            self.norm = nn.BatchNorm1d(3)

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.norm(inputs)
            return output

    model = Normalised()
    adam = Adam(model, lr=0.1)
    adam.minimize(model(torch.randn(8, 3)).square().mean())
    adam.set_state(adam.get_state())
    adam.minimize(model(torch.randn(8, 3)).square().mean())
