"""The interface of `parl_core._small_networks` to the framework: chains of layers are read from the graph of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import Tensor, nn

from parl_core._small_networks import Deviation, Framework, Layer, Output, flat
from parl_paddle.distributions import IMPOSSIBLE, SMALLEST

__all__ = ["PADDLE"]

_ACTIVATIONS = {"ReluGradNode": "relu", "TanhGradNode": "tanh", "EluGradNode": "elu"}
_SHAPING = ("SqueezeGradNode", "ReshapeGradNode")
_DTYPES = {np.dtype(np.float32): paddle.float32, np.dtype(np.float64): paddle.float64}

_Parameters = Mapping[int, Tensor]


def _attributes() -> frozenset[str]:
    with paddle.utils.unique_name.guard():  # so that the next layer gets the name that it would have without this one
        return frozenset(vars(nn.Layer()))


class _Paddle(Framework):
    package, backend = "paddle", "parl_paddle"
    module, tensor, is_turned = nn.Layer, Tensor, False
    state: ClassVar = _attributes()
    children, hooks = "_sub_layers", ("_forward_pre_hooks", "_forward_post_hooks")
    layers: ClassVar = frozenset((nn.Linear, nn.ReLU, nn.Tanh, nn.ELU, nn.Identity, nn.Sequential, nn.LayerList))
    passes = (nn.Sequential.forward, nn.Layer.forward)
    activations = (F.relu, F.relu_, F.tanh, F.tanh_, paddle.tanh, paddle.tanh_)
    address, strides = staticmethod(Tensor.data_ptr), attrgetter("strides")

    def modules(self, model: Any) -> Iterable[nn.Layer]:
        found: Iterable[nn.Layer] = model.sublayers(include_self=True)
        return found

    def is_waiting(self, tensor: Any) -> bool:  # noqa: ARG002 - lazily shaped layers have none until then
        return False

    def rows(self, model: Any, width: int) -> Tensor | None:
        example = next(iter(model.parameters()), None)  # lazily shaped layers have none yet; they get paddle's default
        if not hasattr(Tensor, "__dlpack__") or (example is not None and not _is_array(example)):
            return None
        dtype = paddle.get_default_dtype() if example is None else example.dtype
        return paddle.zeros([2, width], dtype).cpu()

    def read(self, model: Any, method: str, like: Tensor) -> list[Output | Deviation | None]:
        with paddle.enable_grad():
            probe = paddle.zeros_like(like[:2])
            probe.stop_gradient = False
            outputs = flat(getattr(model, method)(probe))
        if not hasattr(probe.grad_fn, "node_ptr"):  # older releases of paddle lack it
            return [None]
        known = {_place(part.grad_fn): part for part in (probe, *model.parameters()) if not part.stop_gradient}
        found = [_read(output, known, probe) for output in outputs]
        is_known = _has_plain_elu(model)
        return [None if not is_known and _uses_elu(each) else each for each in found]

    def view(self, parameter: Tensor) -> NDArray[Any]:
        return np.from_dlpack(parameter.detach())

    def impossible(self, dtype: Any) -> float:
        return max(IMPOSSIBLE, float(np.finfo(dtype).min))

    def choose(self, logits: NDArray[Any], log_probabilities: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002
        uniform = paddle.uniform(logits.shape, _DTYPES[logits.dtype], SMALLEST, 1.0).numpy()
        return np.asarray((logits - np.log(-np.log(uniform) + logits.dtype.type(SMALLEST))).argmax(1))

    def normal(self, like: NDArray[Any]) -> NDArray[Any]:
        return paddle.randn(like.shape, _DTYPES[like.dtype]).numpy()


PADDLE = _Paddle()


def _is_array(parameter: Tensor) -> bool:
    return parameter.place.is_cpu_place() and parameter.dtype in _DTYPES.values()


def _place(node: Any) -> int:
    return int(node.node_ptr())


def _has_plain_elu(model: Any) -> bool:
    """Return whether the slope of each ELU, which the graph does not tell, is 1."""
    layers = PADDLE.modules(model)
    acts = [getattr(layer, "act", None) for layer in layers]
    return all(getattr(layer, "_alpha", 1.0) == 1.0 for layer in layers if isinstance(layer, nn.ELU)) and all(
        act is None or any(act is plain for plain in (*PADDLE.activations, F.elu)) for act in acts
    )


def _uses_elu(output: Output | Deviation | None) -> bool:
    return isinstance(output, Output) and any(layer.activation == "elu" for layer in output.layers)


def _read(output: Any, known: _Parameters, probe: Tensor) -> Output | Deviation | None:
    node = output.grad_fn if isinstance(output, Tensor) else None
    if node is not None and node.name() == "ExpGradNode":
        logarithm = _parameter(node.next_functions[0], known)
        return None if logarithm is None else Deviation(logarithm)
    layers = _layers(node, known, probe)
    return None if layers is None or output.ndim > 2 else Output(layers, output.ndim == 1)


def _parameter(node: Any, known: _Parameters) -> Tensor | None:
    found = None if node is None else known.get(_place(node))
    return found if found is not None and _is_array(found) else None


def _layers(node: Any, known: _Parameters, probe: Tensor) -> list[Layer] | None:
    """Return the layers whose graph ends in a node."""
    shaped = False
    while node is not None and node.name() in _SHAPING:
        node, shaped = node.next_functions[0], True
    found: list[Layer] = []
    while node is not None and known.get(_place(node)) is not probe:
        activation = _ACTIVATIONS.get(node.name())
        if activation is not None:
            node = node.next_functions[0]
        if node is None or node.name() != "AddGradNode":
            return None
        product, shift = node.next_functions
        if product is None or product.name() != "MatmulGradNode":
            return None
        node, turned = product.next_functions
        weight, bias = _parameter(turned, known), _parameter(shift, known)
        if weight is None or bias is None or bias.shape != weight.shape[1:]:
            return None
        found.insert(0, Layer(weight, bias, activation))
    return None if node is None or not found or (shaped and found[-1].bias.shape != [1]) else found
