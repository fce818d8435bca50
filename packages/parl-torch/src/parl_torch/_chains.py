"""Updates of small networks without autograd: hand-written gradients of chains of linear layers, ReLU, tanh and ELU.

    loss(batch) ─────> graph ────────> backward ────────┐
    slopes(batch) ──> Chain.forward ──> Chain.backward ─┴─> gradients ──> Adam's fused kernel

For small networks, autograd takes as long to record and follow a graph as the arithmetic itself. Which models are
chains is decided in `parl_core._small_networks`. Autograd is still used for all others, and for hooks, frozen or shared
parameters, and the losses and algorithms of users. The results are those of autograd up to rounding; parameters, their
`grad` and the optimizer's state are the same tensors.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from parl_core._small_networks import Layer, Output, Parts, common_layers, outputs_of
from parl_torch._graphs import TORCH

__all__ = [
    "Chain",
    "Fork",
    "HandWrittenLoss",
    "LossReader",
    "Network",
    "Networks",
    "Plan",
    "chains_of",
    "hand_written",
]

LossReader = Callable[[], tuple[Tensor, dict[str, Tensor]]] | None
"""Function that returns the results of a loss; None if a batch needs the loss itself."""
_Loss = TypeVar("_Loss", bound=Callable[..., Any])

_relu_backward = torch.ops.aten.threshold_backward.grad_input._op
_tanh_backward = torch.ops.aten.tanh_backward.grad_input._op
_elu_backward = torch.ops.aten.elu_backward.grad_input._op
_attached = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks", "requires_grad")

_NARROW, _TALL = 16, 256
"""Number of inputs below which BLAS is twice as fast for a layer's transposed gradient; twice that in tall batches."""


class Network(NamedTuple):
    """Methods of a model that take the same inputs.

    Attributes:
        model: The model.
        methods: Names of its methods.
        learns: True if the loss trains their layers.
        of_actions: True if the methods take observations and actions, which the first layer receives joined.
    """

    model: Any
    methods: Sequence[str]
    learns: bool
    of_actions: bool = False

    def inputs(self, batch: Any) -> Any:
        """Return the arguments of the methods."""
        return (batch.obs, batch.action) if self.of_actions else batch.obs


Networks = Sequence[Network]


class Chain:
    """A sequence of layers, on the memory of the model's parameters.

    Attributes:
        layers: The layers, with the model's parameters.
        gradients: The arrays for the gradients of a trained chain, weights and biases in turn; empty for other chains.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.gradients: list[Tensor] = []
        self._steps = [(bias.detach(), weight.detach().t(), kind, alpha) for weight, bias, kind, alpha in layers]
        self._weights = [layer.weight.detach() for layer in layers]
        narrow = [weight.shape[1] < 2 * _NARROW for weight in self._weights]
        self._turned = [w.new_empty(w.shape[::-1]) if yes else w for w, yes in zip(self._weights, narrow, strict=True)]
        self._ones = self._weights[0].new_ones(1)
        self._nowhere: list[Any] = [None] * len(self._steps)
        self._room = [self._ones.new_empty(0)]

    @property
    def parameters(self) -> list[Tensor]:
        """Return weights and biases in turn."""
        return [part for layer in self.layers for part in layer[:2]]

    def forward(self, inputs: Tensor, *, again: bool = False) -> list[Tensor]:
        """Return the inputs `[n, in]` and the output of each layer.

        Args:
            inputs: The inputs.
            again: True to reuse the arrays of the last such call if it had as many rows: its result is overwritten.
        """
        kept, room = [inputs], self._room if again else self._nowhere
        if again and room[0].shape[0] != inputs.shape[0]:
            self._room = room = [bias.new_empty(inputs.shape[0], bias.shape[0]) for bias, *_ in self._steps]
        for (bias, turned, activation, alpha), out in zip(self._steps, room, strict=True):
            inputs = torch.addmm(bias, inputs, turned, out=out)
            if activation == "relu":
                torch.relu_(inputs)
            elif activation == "tanh":
                values = inputs.numpy()  # numpy's tanh takes a sixth of the time of PyTorch's
                np.tanh(values, out=values)
            elif activation == "elu":
                F.elu_(inputs, alpha)
            kept.append(inputs)
        return kept

    def backward(self, kept: Sequence[Tensor], slope: Tensor, *, onward: int | None = None) -> Tensor:
        """Write the gradients of a loss if the chain is trained, and optionally return its gradient by the inputs.

        Args:
            kept: The result of `forward`.
            slope: Gradient of the loss by the output, `[n, out]`; it is overwritten.
            onward: The column of the inputs from which on to return the gradient by them; None for no such gradient.
        """
        rows = slope.shape[0]
        if self._ones.shape[0] != rows:
            self._ones = slope.new_ones(rows)
        narrow = _NARROW if rows < _TALL else 2 * _NARROW
        for i in range(len(self._steps) - 1, -1, -1):
            _, weight, activation, alpha = self._steps[i]
            if activation == "relu":
                _relu_backward(slope, kept[i + 1], 0, grad_input=slope)
            elif activation == "tanh":
                _tanh_backward(slope, kept[i + 1], grad_input=slope)
            elif activation == "elu":
                _elu_backward(slope, alpha, 1, 1, True, kept[i + 1], grad_input=slope)
            if self.gradients:
                turned = slope.t()
                if 1 < weight.shape[0] < narrow:
                    torch.mm(kept[i].t(), slope, out=self._turned[i])
                    self.gradients[2 * i].copy_(self._turned[i].t())
                else:
                    torch.mm(turned, kept[i], out=self.gradients[2 * i])
                torch.mv(turned, self._ones, out=self.gradients[2 * i + 1])
            if i:
                slope = torch.mm(slope, self._weights[i])
            elif onward is not None:
                slope = torch.mm(slope, self._weights[0][:, onward:])
        return slope


class Fork:
    """Chains with the same inputs, such as a policy and a value, which may share their first layers.

    Attributes:
        trunk: The common layers, if there are any.
        heads: The other layers of each output.
        chains: All chains.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        layers = [chain.layers for chain in chains]
        shared = common_layers(layers)
        self.trunk = Chain(layers[0][:shared]) if shared else None
        self.heads = tuple(Chain(each[shared:]) for each in layers)
        self.chains = self.heads if self.trunk is None else (self.trunk, *self.heads)

    def forward(self, inputs: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Return the outputs of the common layers, and those of the other layers of each output."""
        trunk = [inputs] if self.trunk is None else self.trunk.forward(inputs)
        return trunk, [head.forward(trunk[-1]) for head in self.heads]

    def outputs(self, inputs: Tensor) -> list[Tensor]:
        """Return the outputs, `[n, out]` each."""
        return [kept[-1] for kept in self.forward(inputs)[1]]

    def backward(self, kept: tuple[list[Tensor], list[list[Tensor]]], slopes: Sequence[Tensor]) -> None:
        """Write the gradients of a loss.

        Args:
            kept: The result of `forward`.
            slopes: Gradients of the loss by the outputs, `[n, out]` each; they are overwritten.
        """
        trunk, heads = kept
        onward = None if self.trunk is None else 0
        parts = zip(self.heads, heads, slopes, strict=True)
        found = [head.backward(values, slope, onward=onward) for head, values, slope in parts]
        if self.trunk is not None:
            self.trunk.backward(trunk, sum(found[1:], start=found[0]))


class HandWrittenLoss(NamedTuple):
    """A loss with a hand-written gradient.

    Attributes:
        networks: Function that takes the algorithm and returns its networks; none if the settings select another loss.
        slopes: Function that takes the algorithm, a `Fork` for each network, and the arguments of the loss, and
            computes the gradients.
    """

    networks: Callable[[Any], Networks]
    slopes: Callable[..., LossReader]


def hand_written(networks: Callable[[Any], Networks], slopes: Callable[..., LossReader]) -> Callable[[_Loss], _Loss]:
    """Return a decorator that adds a gradient, described as in `HandWrittenLoss`, to an algorithm's `loss`."""

    def mark(loss: _Loss) -> _Loss:
        loss.hand_written = HandWrittenLoss(networks, slopes)  # type: ignore[attr-defined]  # which optimizers look for
        return loss

    return mark


class Plan:
    """The chains of one loss, the memory of its gradients, and the parts on which both depend.

    Args:
        loss: A bound method of an algorithm, with `hand_written`.
        parameters: Function that returns the parameters of the optimizer, after layers have shapes.
        batch: The first batch, for the size of its observations.

    Attributes:
        parts: The models, layers, parameters and methods from which it was made; it is valid while they are the same.
        reached: Whether each parameter of the optimizer has an influence on the loss.
        gradients: The gradients of these parameters.
        flat: All gradients side by side.
    """

    def __init__(self, loss: Any, parameters: Callable[[], Sequence[Tensor]], batch: Any) -> None:
        self._algorithm, self._slopes = loss.__self__, loss.hand_written.slopes
        self.reached: list[bool] = []
        self.gradients: list[Tensor] = []
        self._forks: list[Fork] = []
        is_ours = type(self._algorithm).__module__.startswith("parl_torch.algorithms.")
        networks = loss.hand_written.networks(self._algorithm) if is_ours else ()
        found = [chains_of(each.model, each.methods, each.inputs(batch)) for each in networks]
        looked_at = [(each.model, method) for each in networks for method in each.methods]
        models = [each.model for each in networks]
        known = set(map(id, models))
        held = [(self._algorithm, name) for name, value in vars(self._algorithm).items() if id(value) in known]
        self.parts = Parts(TORCH, models, looked_at + held)
        if networks and None not in found:
            forks = [Fork(chains) for chains in found if chains is not None]
            self._lay_out(forks, [each.learns for each in networks], parameters())

    def __call__(self, batch: Any, *settings: Any) -> LossReader:
        """Compute the gradients; return None if autograd has to compute them."""
        if not self._forks or any(self.parts.hooks) or list(map(_attached, self._trained)) != self._free:
            return None
        if batch.extra is not None or batch.obs.dim() != 2 or batch.obs.dtype != self.flat.dtype:
            return None
        for part, piece in zip(self._trained, self._pieces, strict=True):
            part.grad = piece
        figures: LossReader = self._slopes(self._algorithm, self._forks, batch, *settings)
        return figures

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copied optimizer makes its own plan, on its own parameters."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()

    def _lay_out(self, forks: Sequence[Fork], learns: Sequence[bool], parameters: Sequence[Tensor]) -> None:
        """Place the gradients of all trained chains in one block of memory, unless layers are shared in another way."""
        chains = [chain for each, yes in zip(forks, learns, strict=True) if yes for chain in each.chains]
        trained = [part for chain in chains for part in chain.parameters]
        others = [part for each in forks for chain in each.chains if chain not in chains for part in chain.parameters]
        known = set(map(id, trained))
        if len(known) < len(trained) or not known <= set(map(id, parameters)) or not known.isdisjoint(map(id, others)):
            return
        sizes = [part.numel() for part in trained]
        self.flat = trained[0].detach().new_empty(sum(sizes))
        pieces = [piece.view_as(part) for piece, part in zip(torch.split(self.flat, sizes), trained, strict=True)]
        found = {id(part): piece for part, piece in zip(trained, pieces, strict=True)}
        self.reached = [id(parameter) in found for parameter in parameters]
        self.gradients = [found[id(parameter)] for parameter in parameters if id(parameter) in found]
        left = iter(pieces)
        for chain in chains:
            chain.gradients = [next(left) for _ in chain.parameters]
        self._forks, self._trained, self._pieces = list(forks), trained, pieces
        self._free = [(None, None, True)] * len(trained)


def chains_of(model: Any, methods: Sequence[str], inputs: Any) -> list[Chain] | None:
    """Return the chains that methods of a model compute; None if one is not a chain.

    A method may return several outputs, each a chain. Lazily shaped layers get their shapes.

    Args:
        model: The model.
        methods: Names of methods that take the same inputs.
        inputs: Observations `[n, in]`, or a tuple of observations and actions.
    """
    found = outputs_of(TORCH, model, methods, inputs)
    chains = [Chain(output.layers) for output in found or () if isinstance(output, Output)]
    return chains if found is not None and len(chains) == len(found) else None
