"""A gated recurrent unit over whole sequences, with a gradient of its own on a CPU.

    r, z    = sigmoid(inputs' and hidden state's parts)
    n       = tanh(inputs' part + r * hidden state's part)
    h_t     = n + z * (h_tm1 - n)

PyTorch's layer records a dozen operations per step and differentiates them one by one. Here, one product for all steps
computes everything that does not depend on the previous step; the backward pass takes three operations per step.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from parl_torch._rows import weight_gradient
from parl_torch._tensors import is_followed, tanh_

__all__ = ["GRULayer"]

_tanh_backward = torch.ops.aten.tanh_backward.default
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


class GRULayer(nn.GRU):
    """`torch.nn.GRU` of one layer with `batch_first`, faster on a CPU; its results are the same up to rounding."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size, batch_first=True)

    def forward(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # one kind of input
        """Return the outputs `[rows, T, size]`, and the state `[1, rows, size]` after the last step.

        Args:
            inputs: `[rows, T, size]`.
            hidden: The state before the first step, `[1, rows, size]`.
        """
        # PyTorch's layer is as fast for one step, and transforms, modes and traces can follow it.
        if inputs.shape[1] == 1 or inputs.device.type != "cpu" or is_followed():
            found: tuple[Tensor, Tensor] = super().forward(inputs, hidden)
            return found
        self.check_forward_args(inputs, hidden, None)
        weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        outputs: Tensor = _Unrolled.apply(inputs.transpose(0, 1).contiguous(), hidden[0].contiguous(), *weights)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        return outputs, outputs[:, -1].unsqueeze(0).clone()


class _Unrolled(torch.autograd.Function):
    """Outputs `[rows, T, size]` of inputs `[T, rows, size]` and a state `[rows, size]`."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # PyTorch leaves it untyped
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, *weights: Tensor) -> Tensor:
        weight_ih, weight_hh, bias_ih, bias_hh = weights
        steps, rows, size = inputs.shape
        both_ih, new_ih = torch.split(weight_ih.t(), [2 * size, size], 1)
        # BLAS takes a sixth less for contiguous weights.
        both_hh, new_hh = (part.t().contiguous() for part in torch.split(weight_hh, [2 * size, size]))
        both_bias = bias_ih[: 2 * size] + bias_hh[: 2 * size]
        new_bias, state_bias = bias_ih[2 * size :], bias_hh[2 * size :]

        flat = inputs.flatten(0, 1)
        both = torch.addmm(both_bias, flat, both_ih).view(steps, rows, 2 * size)
        new = torch.addmm(new_bias, flat, new_ih).view(steps, rows, size)
        to_new = torch.empty_like(new)
        states = new.new_empty(steps + 1, rows, size)
        states[0] = hidden
        resets, updates = (part.unbind(0) for part in torch.split(both, size, 2))
        state = states.unbind(0)
        for t, (gates, values, change) in enumerate(zip(both.unbind(0), new.unbind(0), to_new.unbind(0), strict=True)):
            gates.addmm_(state[t], both_hh).sigmoid_()
            torch.addmm(state_bias, state[t], new_hh, out=change)
            tanh_(values.addcmul_(resets[t], change))
            torch.lerp(values, state[t], updates[t], out=state[t + 1])
        ctx.save_for_backward(inputs, hidden, *weights, both, new, to_new, states)
        # A copy, because callers may overwrite it.
        return states[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # PyTorch leaves it untyped
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        inputs, hidden, weight_ih, weight_hh, bias_ih, bias_hh, both, new, to_new, states = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            given = (inputs, hidden, weight_ih, weight_hh, bias_ih, bias_hh)
            outputs, _ = torch.gru(inputs, hidden.unsqueeze(0), given[2:], True, 1, 0.0, True, False, False)
            asked = [part for part, wanted in zip(given, ctx.needs_input_grad, strict=True) if wanted]
            found = iter(torch.autograd.grad(outputs, asked, slopes.transpose(0, 1), create_graph=True))
            return tuple(next(found) if wanted else None for wanted in ctx.needs_input_grad)
        steps, rows, size = inputs.shape
        reset, update = torch.split(both, size, 2)
        before = states[:-1]
        # Derivatives of an output by the input of each gate's nonlinearity.
        by_new = _tanh_backward(1.0 - update, new)
        by_gates = new.new_empty(steps, rows, 3 * size)
        by_reset, by_update, by_recurrent = torch.split(by_gates, size, 2)
        torch.mul(by_new, reset, out=by_recurrent)
        _sigmoid_backward(by_new * to_new, reset, grad_input=by_reset)
        _sigmoid_backward(before - new, update, grad_input=by_update)

        slopes = slopes.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        through = torch.empty_like(slopes[0])
        gate, kept, slope = by_gates.view(steps, rows, 3, size).unbind(0), update.unbind(0), slopes.unbind(0)
        flat = by_gates.unbind(0)
        for t in range(steps - 1, -1, -1):
            gate[t].mul_(slope[t].unsqueeze(1))
            onto = slope[t - 1] if t else through.zero_()
            onto.addcmul_(slope[t], kept[t]).addmm_(flat[t], weight_hh)

        rows_of_gates = by_gates.flatten(0, 1)
        turned, ones = rows_of_gates.t(), rows_of_gates.new_ones(len(rows_of_gates))
        of_weight_hh, of_bias_hh = weight_gradient(rows_of_gates, before.flatten(0, 1)), turned @ ones
        torch.mul(by_new, slopes, out=by_recurrent)  # the inputs' part of n is not multiplied by r
        of_weight_ih, of_bias_ih = weight_gradient(rows_of_gates, inputs.flatten(0, 1)), turned @ ones
        of_inputs = (rows_of_gates @ weight_ih).view_as(inputs) if ctx.needs_input_grad[0] else None
        return of_inputs, through, of_weight_ih, of_weight_hh, of_bias_ih, of_bias_hh
