"""Layers that several agents share, for many rows on a CPU, with a gradient of their own.

    features of each agent      [n, agents, in] ─┐
    features of all agents      [n, in] ─────────┼─> one product each ──> activation ──> other layers
    number of each agent, one-hot ───────────────┘

Features that are the same for all agents, such as the global state, are multiplied once for all of them. The numbers of
the agents are not multiplied at all, because each selects a column of the weights. Other values are changed in place,
because memory outside the processor's cache takes longer than the arithmetic.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.nn import functional as F

from parl_torch._tensors import tanh_

__all__ = ["ACTIVATIONS", "Shape", "many_rows", "weight_gradient"]

ACTIVATIONS = (None, "relu", "tanh")
"""The activations of the layers."""

_NARROW = 16
"""Number of outputs up to which BLAS is faster if a row of the gradient is as long as the layer's inputs."""


_PIECE = 1024
"""Number of rows that fit into the cache: BLAS computes a weight's gradient faster by pieces of so many."""


class Shape(NamedTuple):
    """A description of layers.

    Attributes:
        activations: The activation of each layer.
        agents: Number of agents.
        has_numbers: True if the first layer gets the number of each agent, one-hot, beside its features.
    """

    activations: Sequence[str | None]
    agents: int
    has_numbers: bool


def many_rows(shape: Shape, features: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return the outputs of layers, `[n, agents, out]`.

    Args:
        shape: Description of the layers.
        features: Inputs of the first layer, side by side: `[n, agents, in]` of each agent, first, or `[n, in]` of all.
        parameters: Weights and biases in turn.
    """
    outputs: Tensor = _ManyRows.apply(shape, len(features), *features, *parameters)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    return outputs.view(-1, shape.agents, outputs.shape[-1])


class _ManyRows(torch.autograd.Function):
    """Outputs `[n * agents, out]`."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # PyTorch leaves it untyped
    def forward(ctx: Any, shape: Shape, count: int, *tensors: Tensor) -> Tensor:
        features, (weights, biases) = tensors[:count], _by_kind(tensors[count:])
        activations, agents, _ = shape
        parts, base = _first_layer(shape, features, weights[0], biases[0])
        found = torch.mm(_flat(features[0]), parts[0].t())
        for part, weight in zip(features[1:], parts[1:], strict=True):
            if part.dim() == 3:
                found.addmm_(_flat(part), weight.t())
            else:
                found.view(-1, agents, found.shape[1]).add_(torch.mm(part, weight.t()).unsqueeze(1))
        found.view(-1, base.numel()).add_(base.view(-1))
        _activate(found, activations[0])
        kept = [found]
        for weight, bias, activation in zip(weights[1:], biases[1:], activations[1:], strict=True):
            found = torch.addmm(bias, found, weight.t())
            _activate(found, activation)
            kept.append(found)
        ctx.save_for_backward(*tensors, *kept)
        ctx.shape, ctx.count = shape, count
        return found

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # PyTorch leaves it untyped
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        shape, count, wanted = ctx.shape, ctx.count, ctx.needs_input_grad[2:]
        activations, agents, has_numbers = shape
        tensors, kept = ctx.saved_tensors[: len(wanted)], ctx.saved_tensors[len(wanted) :]
        features, (weights, biases) = tensors[:count], _by_kind(tensors[count:])
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            asked = [tensor for tensor, wants in zip(tensors, wanted, strict=True) if wants]
            outputs = _composed(shape, features, weights, biases)
            found = iter(torch.autograd.grad(outputs, asked, slopes, create_graph=True))
            return None, None, *(next(found) if wants else None for wants in wanted)
        slope = slopes.contiguous()
        ones = slope.new_ones(len(slope))
        by_weights, by_biases = [*weights], [*biases]
        for i in range(len(weights) - 1, -1, -1):
            scratch = torch.empty_like(slope) if slope is slopes else slope
            slope = _slope_before(slope, kept[i], activations[i], scratch)
            if i:
                by_weights[i], by_biases[i] = weight_gradient(slope, kept[i - 1]), torch.mv(slope.t(), ones)
                slope = torch.mm(slope, weights[i])
        by_agent = slope.view(-1, agents, slope.shape[1])
        by_base = torch.mv(by_agent.flatten(1).t(), ones[: len(by_agent)]).view(agents, -1)
        by_all = by_agent.sum(1) if any(part.dim() == 2 for part in features) else slope
        slopes_of = [slope if part.dim() == 3 else by_all for part in features]
        columns = [weight_gradient(each, _flat(part)) for each, part in zip(slopes_of, features, strict=True)]
        by_weights[0] = torch.cat([*columns, by_base.t()] if has_numbers else columns, 1)
        by_biases[0] = by_base.sum(0)
        parts, _ = _first_layer(shape, features, weights[0], biases[0])
        of_features = [
            torch.mm(each, weight).view_as(part) if wants else None
            for each, weight, part, wants in zip(slopes_of, parts, features, wanted, strict=False)
        ]
        of_parameters = [part for pair in zip(by_weights, by_biases, strict=True) for part in pair]
        return None, None, *of_features, *of_parameters


def _by_kind(parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    return parameters[::2], parameters[1::2]


def _first_layer(shape: Shape, features: Sequence[Tensor], weight: Tensor, bias: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the weights of each of the features, and the constant part of each agent's outputs, `[agents, out]`."""
    widths = [part.shape[-1] for part in features]
    if not shape.has_numbers:
        return list(torch.split(weight, widths, 1)), bias.repeat(shape.agents, 1)
    *parts, of_numbers = torch.split(weight, [*widths, shape.agents], 1)
    return parts, of_numbers.t().contiguous() + bias


def _flat(features: Tensor) -> Tensor:
    return features.reshape(-1, features.shape[-1])


def weight_gradient(slope: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient by a weight `[out, in]`."""
    if slope.shape[1] < _NARROW:
        return torch.mm(slope.t(), inputs)
    pieces = len(slope) // _PIECE
    if pieces < 2:
        return torch.mm(inputs.t(), slope).t()
    rows = len(slope) // pieces * pieces
    columns = (part[:rows].view(pieces, -1, part.shape[1]) for part in (inputs, slope))
    found = torch.bmm(next(columns).mT, next(columns)).sum(0)
    return (found if rows == len(slope) else found.addmm_(inputs[rows:].t(), slope[rows:])).t()


def _activate(values: Tensor, activation: str | None) -> None:
    """Apply an activation in place."""
    if activation == "relu":
        values.relu_()
    elif activation == "tanh":
        tanh_(values)


def _slope_before(slope: Tensor, outputs: Tensor, activation: str | None, scratch: Tensor) -> Tensor:
    """Return the gradient by the inputs of an activation, written to `scratch`."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward.grad_input(slope, outputs, 0, grad_input=scratch)  # type: ignore[no-any-return]
    if activation == "tanh":
        return torch.ops.aten.tanh_backward.grad_input(slope, outputs, grad_input=scratch)  # type: ignore[no-any-return]
    return slope


def _composed(shape: Shape, features: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Return the same outputs, composed of operations that autograd can differentiate to any order."""
    sides = [part if part.dim() == 3 else part.unsqueeze(1).expand(-1, shape.agents, -1) for part in features]
    if shape.has_numbers:
        numbers = torch.eye(shape.agents, dtype=sides[0].dtype)
        sides.append(numbers.expand(len(sides[0]), -1, -1))
    rows = torch.cat(sides, -1).flatten(0, 1)
    for weight, bias, activation in zip(weights, biases, shape.activations, strict=True):
        rows = F.linear(rows, weight, bias)
        rows = rows if activation is None else getattr(torch, activation)(rows)
    return rows
