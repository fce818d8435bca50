"""The layer of gated recurrent units computes what PyTorch's does, and the same gradients."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parl_torch._gru import GRULayer
from parl_torch._tensors import tanh_


def both(dtype: torch.dtype = torch.float64) -> tuple[GRULayer, nn.GRU]:
    torch.manual_seed(0)
    ours, theirs = GRULayer(5).to(dtype), nn.GRU(5, 5, batch_first=True).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def results(layer: Any, steps: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return outputs, the last state, and the gradients of a sum of both by everything."""
    numbers = torch.Generator().manual_seed(1)
    inputs, hidden, by_outputs, by_state = (
        torch.randn(shape, generator=numbers, dtype=dtype)
        for shape in ((3, steps, 5), (1, 3, 5), (3, steps, 5), (1, 3, 5))
    )
    given = [inputs.requires_grad_(), hidden.requires_grad_(), *layer.parameters()]
    outputs, after = layer(inputs, hidden)
    loss = (outputs * by_outputs).sum() + (after * by_state).sum()
    return [outputs, after, *torch.autograd.grad(loss, given)]


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_outputs_and_gradients_are_those_of_pytorch(steps: int) -> None:
    ours, theirs = both()
    torch.testing.assert_close(results(ours, steps), results(theirs, steps), rtol=1e-10, atol=1e-12)


def test_single_precision_is_as_exact_as_pytorch() -> None:
    ours, theirs = both(torch.float32)
    found, expected = results(ours, 40, torch.float32), results(theirs, 40, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_as_exact_as_pytorch() -> None:
    ours, theirs = both(torch.bfloat16)
    found, expected = results(ours, 4, torch.bfloat16), results(theirs, 4, torch.bfloat16)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tanh_in_place_is_pytorchs(threads: int, dtype: torch.dtype) -> None:
    values = torch.linspace(-9, 9, 3000).to(dtype).view(3, 1000).t()
    expected = torch.tanh(values)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = tanh_(values)
    finally:
        torch.set_num_threads(before)
    assert found is values
    torch.testing.assert_close(values, expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize("has_avx512", [False, True])
@pytest.mark.parametrize("count", [1_000, 100_000])
def test_tanh_of_any_processor_is_pytorchs(has_avx512: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_torch._tensors._HAS_AVX512", has_avx512)
    values = torch.linspace(-9, 9, count)
    expected = torch.tanh(values)
    torch.testing.assert_close(tanh_(values), expected, rtol=0, atol=5e-7)


def test_outputs_without_gradients_are_the_same() -> None:
    ours, _ = both()
    inputs, hidden = torch.randn(3, 6, 5).double(), torch.randn(1, 3, 5).double()
    with torch.no_grad():
        outputs, after = ours(inputs, hidden)
    torch.testing.assert_close((outputs, after), ours(inputs, hidden))
    assert (*outputs.shape, *after.shape) == (3, 6, 5, 1, 3, 5)


def test_inputs_that_are_given_stay_as_they_are() -> None:
    ours, _ = both()
    inputs, hidden = torch.randn(3, 6, 5).double(), torch.randn(1, 3, 5).double()
    kept = inputs.clone(), hidden.clone()
    outputs, _ = ours(inputs, hidden)
    slope = torch.randn_like(outputs)
    before = slope.clone()
    outputs.backward(slope)
    torch.testing.assert_close((inputs, hidden, slope), (*kept, before), rtol=0, atol=0)


@pytest.mark.parametrize("written", ["outputs", "state"])
def test_outputs_and_states_may_be_written_over(written: str) -> None:
    found = []
    for layer in both():
        inputs = torch.linspace(-1.0, 1.0, 90).double().reshape(3, 6, 5)
        outputs, after = layer(inputs, torch.zeros(1, 3, 5).double())
        (outputs if written == "outputs" else after).mul_(0.5)
        loss = outputs.square().sum() + after.sum()
        found.append([outputs, after, *torch.autograd.grad(loss, list(layer.parameters()))])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("shapes", [((3, 6, 5), (1, 1, 5)), ((3, 6, 4), (1, 3, 5))])
def test_inputs_of_other_shapes_are_refused(shapes: Any) -> None:
    for layer in both():
        with pytest.raises(RuntimeError, match="Expected"):
            layer(*(torch.zeros(shape).double() for shape in shapes))


def test_frozen_weights_get_no_gradients() -> None:
    ours, theirs = both()
    for layer in (ours, theirs):
        layer.weight_hh_l0.requires_grad_(False)
        inputs = torch.ones(2, 4, 5).double().requires_grad_()
        layer(inputs, torch.zeros(1, 2, 5).double())[0].square().sum().backward()
        assert layer.weight_hh_l0.grad is None
    torch.testing.assert_close(ours.bias_hh_l0.grad, theirs.bias_hh_l0.grad)


def test_it_computes_in_single_precision_where_others_are_cast() -> None:
    ours, _ = both(torch.float32)
    inputs, hidden = torch.randn(3, 6, 5, requires_grad=True), torch.randn(1, 3, 5)
    expected = ours(inputs, hidden)[0]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = ours(inputs, hidden)[0]
    outputs.sum().backward()
    torch.testing.assert_close(outputs, expected)
    assert inputs.grad is not None
    assert inputs.grad.dtype == torch.float32


def test_copies_are_the_same_layer() -> None:
    ours, _ = both()
    torch.testing.assert_close(results(copy.deepcopy(ours), 4), results(ours, 4))


def test_transforms_of_pytorch_follow_it() -> None:
    ours, theirs = both()
    inputs, hidden = torch.randn(3, 6, 5).double(), torch.randn(1, 3, 5).double()

    def slope(layer: nn.GRU) -> Any:
        return torch.func.grad(lambda given: layer(given, hidden)[0].square().sum())(inputs)

    torch.testing.assert_close(slope(ours), slope(theirs))


def test_second_derivatives_are_those_of_pytorch() -> None:
    found = []
    for layer in both():
        inputs = torch.linspace(-1.0, 1.0, 90).double().reshape(3, 6, 5).requires_grad_()
        outputs, _ = layer(inputs, torch.zeros(1, 3, 5).double())
        (slope,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [inputs, *layer.parameters()]))
    torch.testing.assert_close(*found)
