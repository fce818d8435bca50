"""Layers that agents share compute for many rows what they compute for a few, and the same gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parl_torch import layers
from parl_torch.networks import PerAgent

AGENTS, FEW, MANY = 3, 100, 400
"""Teams: of many, more than a thousand rows."""


def made(acts: tuple[str | None, ...] = ("tanh", "tanh"), dtype: torch.dtype = torch.float64, **given: Any) -> PerAgent:
    torch.manual_seed(0)
    layer = PerAgent((0,) * AGENTS, lambda: nn.Sequential(*(layers.fc(size=6, act=act) for act in acts)), **given)
    layer(*sides(torch.float32, 1))  # which shapes it
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.to(dtype)


def sides(dtype: torch.dtype = torch.float64, teams: int = MANY) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(1)
    shapes = ((teams, AGENTS, 4), (teams, 5), (teams, AGENTS, 2))
    exact = (torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in shapes)
    return [side.to(dtype).requires_grad_() for side in exact]


def in_parts(layer: PerAgent, *given: Tensor) -> Tensor:
    """Return the outputs, computed a few rows at a time."""
    return torch.cat([layer(*part) for part in zip(*(torch.split(side, FEW) for side in given), strict=True)])


def results(layer: PerAgent, run: Any, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return outputs, and the gradients of a sum of them by everything."""
    given = sides(dtype)
    outputs = run(*given)
    slopes = torch.linspace(-1.0, 1.0, outputs.numel(), dtype=dtype).view_as(outputs)
    return [outputs, *torch.autograd.grad(outputs, [*given, *layer.parameters()], slopes)]


def is_ours(outputs: Tensor) -> bool:
    """Return whether the gradient is that of layers of many rows."""
    nodes = [outputs.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            if "ManyRows" in node.name():
                return True
            nodes += [part for part, _ in node.next_functions]
    return False


@pytest.mark.parametrize("ids", [True, False], ids=["numbered", "alike"])
@pytest.mark.parametrize("acts", [("tanh", "tanh"), ("relu", "relu", None), (None,), ("tanh",)], ids=str)
def test_outputs_and_gradients_are_those_of_few_rows(acts: tuple[str | None, ...], ids: bool) -> None:
    layer = made(acts, ids=ids)
    assert is_ours(layer(*sides()))
    assert not is_ours(in_parts(layer, *sides()))
    found, expected = results(layer, layer), results(layer, lambda *given: in_parts(layer, *given))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_single_precision_is_as_exact_as_pytorch() -> None:
    layer = made(dtype=torch.float32)
    double = made()
    exact = results(double, double)
    for run in (layer, lambda *given: in_parts(layer, *given)):
        found = [tensor.double() for tensor in results(layer, run, torch.float32)]
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)


def test_wide_layers_have_the_same_gradients() -> None:
    torch.manual_seed(0)
    layer = PerAgent((0,) * AGENTS, lambda: nn.Sequential(layers.fc(size=40, act="relu"), layers.fc(size=20)))
    layer(*sides(torch.float32, 1))
    layer.double()
    found, expected = results(layer, layer), results(layer, lambda *given: in_parts(layer, *given))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_gradients_of_several_pieces_of_rows_are_those_of_few_rows() -> None:
    torch.manual_seed(0)
    layer = PerAgent((0,) * AGENTS, lambda: nn.Sequential(layers.fc(size=20, act="relu"), layers.fc(size=17)))
    layer(*sides(torch.float32, 1))
    layer.double()
    given, found = sides(teams=2_051), []  # two pieces of features of all agents, and a row that is left
    for run in (layer, lambda *part: in_parts(layer, *part)):
        outputs = run(*given)
        slopes = torch.linspace(-1.0, 1.0, outputs.numel(), dtype=torch.float64).view_as(outputs)
        found.append(torch.autograd.grad(outputs, [*given, *layer.parameters()], slopes))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [(0,) * AGENTS, tuple(range(AGENTS))], ids=["shared", "own"])
def test_a_layer_that_is_used_twice_counts_twice(groups: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    twice = layers.fc(size=6, act="tanh")
    layer = PerAgent(groups, lambda: nn.Sequential(layers.fc(size=6, act="relu"), twice, twice))
    given = sides(torch.float32)
    expected = layer(*given)  # layers without shapes are run one by one
    assert twice.shaped
    torch.testing.assert_close(layer(*given), expected)


def test_outputs_without_gradients_are_the_same() -> None:
    layer, given = made(), sides()
    expected = layer(*given)
    with torch.no_grad():
        torch.testing.assert_close(layer(*given), expected, rtol=0, atol=0)
    with torch.inference_mode():
        torch.testing.assert_close(layer(*given), expected, rtol=0, atol=0)


def test_inputs_and_slopes_that_are_given_stay_as_they_are() -> None:
    for acts in (("tanh", "relu"), ("relu", None), (None,)):
        layer, given = made(acts), sides()
        kept = [side.detach().clone() for side in given]
        outputs = layer(*given)
        slopes = torch.randn_like(outputs)
        before = slopes.clone()
        outputs.backward(slopes)
        torch.testing.assert_close([*given, slopes], [*kept, before], rtol=0, atol=0)


def test_frozen_weights_get_no_gradients() -> None:
    layer = made()
    first, *others = layer.parameters()
    first.requires_grad_(False)
    outputs = layer(*sides())
    assert is_ours(outputs)
    outputs.square().sum().backward()
    assert first.grad is None
    assert all(other.grad is not None for other in others)


def test_hooks_of_its_layers_see_their_rows() -> None:
    layer = made()
    seen: list[Any] = []
    layer.parts[0][1].register_forward_hook(lambda _, given, found: seen.append((given[0].shape, found.shape)))
    outputs = layer(*sides())
    assert not is_ours(outputs)
    assert seen == [((MANY * AGENTS, 6), (MANY * AGENTS, 6))]


def test_hooks_of_layers_of_each_agent_see_their_rows() -> None:
    layer = PerAgent(tuple(range(AGENTS)), lambda: nn.Sequential(layers.fc(size=6, act="tanh"), layers.fc(size=2)))
    layer(*sides(torch.float32, 1))
    seen: list[Any] = []
    layer.parts[1][1].register_forward_hook(lambda _, given, found: seen.append((given[0].shape, found.shape)))
    layer(*sides(torch.float32))
    assert seen == [((MANY, 6), (MANY, 2))]


def test_layers_with_other_activations_are_followed_by_pytorch() -> None:
    layer = made(("swish",))
    assert not is_ours(layer(*sides()))
    found, expected = results(layer, layer), results(layer, lambda *given: in_parts(layer, *given))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_transforms_of_pytorch_follow_it() -> None:
    layer = made()
    first, *others = (side.detach() for side in sides())
    found = torch.func.grad(lambda given: layer(given, *others).square().sum())(first)
    expected = torch.func.grad(lambda given: in_parts(layer, given, *others).square().sum())(first)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_second_derivatives_are_those_of_few_rows() -> None:
    layer = made()
    found = []
    for run in (layer, lambda *given: in_parts(layer, *given)):
        given = sides()
        slopes = torch.autograd.grad(run(*given).square().sum(), given, create_graph=True)
        loss = sum((slope.square().sum() for slope in slopes), torch.zeros(()))
        found.append(torch.autograd.grad(loss, [*given, *layer.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
