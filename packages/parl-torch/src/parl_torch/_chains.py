"""Updates of small networks without autograd: chains of linear layers, ReLU, tanh and ELU, differentiated by hand.

    loss(batch) ─────> graph ────────> backward ────────┐
    slopes(batch) ──> Chain.forward ──> Chain.backward ─┴─> gradients ──> Adam's fused kernel

Of small networks, recording a graph and following it back takes as long as the arithmetic. What a model computes is
looked at once, in the graph of one pass through it, so that it does not matter how it is written. Python code in which
anything but such a pass happens, or may happen another time, is left to autograd, and so is whatever a user has
attached: hooks, frozen or shared parameters, losses and algorithms of one's own. The numbers are those of autograd in
another order of rounding; parameters, their `grad` and the optimizer's state are the same tensors either way.
"""

import dis
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parl_torch._parts import Parts

__all__ = ["Chain", "Figures", "Networks", "Plan", "Written", "chain_of", "written"]

Figures = Callable[[], tuple[Tensor, dict[str, Tensor]]] | None
"""Returns what a loss does; None where a batch needs the loss itself."""
Networks = Sequence[tuple[Any, str, bool]]
_Loss = TypeVar("_Loss", bound=Callable[..., Any])

_PLAIN_LAYERS = frozenset((nn.Linear, nn.ReLU, nn.Tanh, nn.ELU, nn.Identity, nn.Sequential, nn.ModuleList))
_OUR_LAYERS = frozenset(("parl_core.networks", "parl_torch.networks", "parl_torch.layers"))
_FUNCTIONS = (torch.relu, torch.relu_, torch.tanh, torch.tanh_, F.relu, F.tanh, F.elu)
_NAMES = frozenset(("nn", "functional", "relu", "relu_", "tanh", "tanh_", "elu", "elu_", "float", "squeeze"))
_PASSES: tuple[str, ...] = (
    "COPY",
    "SWAP",
    "NOP",
    "GET_ITER",
    "FOR_ITER",
    "JUMP_BACKWARD",
    "END_FOR",
    "POP_ITER",
    "CACHE",
)
_PASSES += (
    "LOAD",
    "STORE_FAST",
    "CALL",
    "PRECALL",
    "RETURN",
    "PUSH_NULL",
    "POP_TOP",
    "KW_NAMES",
    "RESUME",
    "NOT_TAKEN",
)
_ACTIVATIONS = {"ReluBackward0": "relu", "TanhBackward0": "tanh", "EluBackward0": "elu"}
_SHAPING = ("SqueezeBackward", "ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward")

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_elu_backward = torch.ops.aten.elu_backward.grad_input
_attached = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks", "requires_grad")


class Layer(NamedTuple):
    """A linear layer and what follows it: relu, tanh, elu (of `alpha`) or nothing."""

    weight: Tensor
    bias: Tensor
    activation: str | None
    alpha: float


class Chain:
    """Layers one after the other, on the memory of the model's own parameters.

    Attributes:
        layers: with the model's parameters.
        gradients: where `backward` writes, a weight's and a bias's by turns; of a chain that is trained.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.gradients: list[Tensor] = []
        self._steps = [(bias.detach(), weight.detach().t(), kind, alpha) for weight, bias, kind, alpha in layers]
        self._weights = [layer.weight.detach() for layer in layers]
        self._ones = self._weights[0].new_ones(1)

    @property
    def parameters(self) -> list[Tensor]:
        """Return weights and biases by turns."""
        return [part for layer in self.layers for part in layer[:2]]

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the inputs `[n, in]` and what each layer makes of them, the output last."""
        kept = [inputs]
        for bias, turned, activation, alpha in self._steps:
            inputs = torch.addmm(bias, inputs, turned)
            if activation == "relu":
                torch.relu_(inputs)
            elif activation == "tanh":
                torch.tanh_(inputs)
            elif activation == "elu":
                F.elu_(inputs, alpha)
            kept.append(inputs)
        return kept

    def backward(self, kept: Sequence[Tensor], slope: Tensor) -> None:
        """Write the gradients of a loss.

        Args:
            kept: what `forward` returned.
            slope: the loss's gradient by the output, `[n, out]`; overwritten.
        """
        if len(self._ones) != len(slope):
            self._ones = slope.new_ones(len(slope))
        for i in range(len(self._steps) - 1, -1, -1):
            *_, activation, alpha = self._steps[i]
            if activation == "relu":
                _relu_backward(slope, kept[i + 1], 0, grad_input=slope)
            elif activation == "tanh":
                _tanh_backward(slope, kept[i + 1], grad_input=slope)
            elif activation == "elu":
                _elu_backward(slope, alpha, 1, 1, True, kept[i + 1], grad_input=slope)
            turned = slope.t()
            torch.mm(turned, kept[i], out=self.gradients[2 * i])
            torch.mv(turned, self._ones, out=self.gradients[2 * i + 1])
            if i:
                slope = torch.mm(slope, self._weights[i])


class Written(NamedTuple):
    """A loss whose gradient is written out.

    Attributes:
        networks: takes the algorithm and returns its networks as (model, method, is trained); none where its settings
            ask for another loss.
        slopes: takes the algorithm, the chains and the loss's arguments, and computes the gradients.
    """

    networks: Callable[[Any], Networks]
    slopes: Callable[..., Figures]


def written(networks: Callable[[Any], Networks], slopes: Callable[..., Figures]) -> Callable[[_Loss], _Loss]:
    """Say beside an algorithm's `loss` how its gradient is computed without autograd; arguments as of `Written`."""

    def mark(loss: _Loss) -> _Loss:
        loss.written = Written(networks, slopes)  # type: ignore[attr-defined]  # which optimizers look for
        return loss

    return mark


class Plan:
    """The chains of one loss, the memory of its gradients, and all that has to stay as it is.

    Args:
        loss: a bound method of an algorithm, with `written`.
        parameters: returns those of the optimizer, once layers have shapes.
        batch: the first batch, for the size of its observations.

    Attributes:
        gradients: one for each parameter, None for those without influence on the loss.
        flat: all of them side by side.
    """

    def __init__(self, loss: Any, parameters: Callable[[], Sequence[Tensor]], batch: Any) -> None:
        self._algorithm, self._slopes = loss.__self__, loss.written.slopes
        self.gradients: list[Tensor | None] = []
        self._chains: list[Chain] = []
        is_ours = type(self._algorithm).__module__.startswith("parl_torch.algorithms.")
        networks = loss.written.networks(self._algorithm) if is_ours else ()
        chains = [chain_of(model, method, batch.obs) for model, method, _ in networks]
        self._parts = Parts([model for model, *_ in networks], [(model, method) for model, method, _ in networks])
        if chains and None not in chains:
            self._lay_out(chains, [learns for *_, learns in networks], parameters())

    def is_stale(self) -> bool:
        """Return whether a layer, a parameter, its memory or a method is another one than it was."""
        return not self._parts.are_same()

    def __call__(self, batch: Any, *settings: Any) -> Figures:
        """Compute the gradients; None where autograd has to."""
        if not self._chains or self._parts.have_hooks() or list(map(_attached, self._trained)) != self._free:
            return None
        if batch.extra is not None or batch.obs.dim() != 2 or batch.obs.dtype != self.flat.dtype:
            return None
        for part, piece in zip(self._trained, self._pieces, strict=True):
            part.grad = piece
        figures: Figures = self._slopes(self._algorithm, self._chains, batch, *settings)
        return figures

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return nothing: a copied optimizer makes its own plan, on its own parameters."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()

    def _lay_out(self, chains: Sequence[Any], learns: Sequence[bool], parameters: Sequence[Tensor]) -> None:
        """Give the gradients of all chains that learn one block of memory, unless layers are shared."""
        trained = [part for chain, yes in zip(chains, learns, strict=True) if yes for part in chain.parameters]
        places = {id(parameter): i for i, parameter in enumerate(parameters)}
        if len(set(map(id, trained))) < len(trained) or not all(id(part) in places for part in trained):
            return
        sizes = [part.numel() for part in trained]
        self.gradients = [None] * len(parameters)
        self.flat = torch.empty(sum(sizes), dtype=trained[0].dtype)
        pieces = [piece.view_as(part) for piece, part in zip(torch.split(self.flat, sizes), trained, strict=True)]
        for part, piece in zip(trained, pieces, strict=True):
            self.gradients[places[id(part)]] = piece
        left = iter(pieces)
        for chain, yes in zip(chains, learns, strict=True):
            chain.gradients = [next(left) for _ in chain.parameters] if yes else []
        self._chains, self._trained, self._pieces = list(chains), trained, pieces
        self._free = [(None, None, True)] * len(trained)


def chain_of(model: Any, method: str, obs: Tensor) -> Chain | None:
    """Return the chain that a method of a model computes of observations `[n, in]`; None where it is something else.

    Layers without shapes get them.
    """
    layers = [layer for layer in model.modules() if type(layer) not in _PLAIN_LAYERS]
    if not all(_is_plain(getattr(layer, method if layer is model else "forward"), layer) for layer in layers):
        return None
    with torch.enable_grad():
        probe = torch.zeros_like(obs[:2]).requires_grad_()
        output = getattr(model, method)(probe)
        found = _layers(output.grad_fn, probe) if isinstance(output, Tensor) else None
    return None if found is None else Chain(found)


def _layers(node: Any, probe: Tensor) -> list[Layer] | None:
    """Return the layers whose graph ends in a node."""
    shaped = False
    while node is not None and node.name().startswith(_SHAPING):
        node, shaped = node.next_functions[0][0], True
    found: list[Layer] = []
    while getattr(node, "variable", None) is not probe:
        activation, alpha = None, 1.0
        if node is not None and node.name() in _ACTIVATIONS:
            activation = _ACTIVATIONS[node.name()]
            if activation == "elu":
                alpha = node._saved_alpha
                if not (node._saved_scale == node._saved_input_scale == 1.0 and alpha >= 0.0):
                    return None
            node = node.next_functions[0][0]
        if node is None or node.name() != "AddmmBackward0":
            return None
        bias, inputs, turned = (part for part, _ in node.next_functions)
        weight = turned.next_functions[0][0] if turned is not None and turned.name() == "TBackward0" else None
        parts = [getattr(part, "variable", None) for part in (weight, bias)]
        if any(part is None or not part.requires_grad or part.device.type != "cpu" for part in parts):
            return None
        found.insert(0, Layer(parts[0], parts[1], activation, alpha))  # type: ignore[arg-type]  # none is None
        node = inputs
    return None if not found or (shaped and len(found[-1].bias) != 1) else found


def _is_plain(method: Any, layer: nn.Module) -> bool:
    """Return whether the code of a layer's method only calls layers and activations, each time the same ones."""
    if not isinstance(method, MethodType) or method.__self__ is not layer:
        return False
    if type(layer).__call__ is not nn.Module.__call__:
        return False
    return _is_pass(method.__func__, layer)


def _is_pass(function: Any, layer: nn.Module) -> bool:
    if not isinstance(function, FunctionType):
        return False
    if function.__module__ in _OUR_LAYERS or function in (nn.Sequential.forward, nn.Module.forward):
        return True
    code = function.__code__
    if code.co_freevars or not all(step.opname.startswith(_PASSES) for step in dis.get_instructions(code)):
        return False
    return all(_is_known(name, function, layer) for name in code.co_names)


def _is_known(name: str, function: FunctionType, layer: nn.Module) -> bool:
    given = function.__globals__.get(name)
    if given is not None:
        is_torch = isinstance(given, ModuleType) and given.__name__.partition(".")[0] == "torch"
        return is_torch or _is_activation(given)
    if name in _NAMES or any(name in part._modules for part in layer.modules()):
        return True
    if name in vars(layer):
        return _is_activation(vars(layer)[name])
    own = getattr(type(layer), name, None)
    return own is not function and _is_pass(own, layer)


def _is_activation(value: Any) -> bool:
    return any(value is function for function in _FUNCTIONS)
