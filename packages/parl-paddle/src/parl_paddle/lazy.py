"""Layers that take their shapes from the first batch, or from weights that are set before it.

A layer draws a seed when it is made, and its initial weights from that seed when it learns its shapes. So a deepcopy
made before the first batch starts from the same weights as the original, whichever runs first, and `paddle.seed`
before the model is made decides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from parl_paddle.activations import activation
from parl_paddle.programs import eager

__all__ = ["LazyLayer", "Shapes"]

Shapes = Mapping[str, tuple[int, ...]]


class LazyLayer(paddle.nn.Layer):
    """Base of the lazily shaped layers: names of parameters are known from the start, they themselves come later.

    Args:
        act: name of the activation applied to the output, or None.
        bias: whether there is a parameter called `bias`.

    Attributes:
        seed: the initial weights are drawn from it.
        shaped: whether the parameters exist.
        device: where they are created, in paddle's spelling; None is paddle's current device.
        dtype: which they will have; None is paddle's default.
    """

    weight: Tensor
    bias: Tensor | None

    PARAMETERS: ClassVar[tuple[str, ...]] = ("weight", "bias")
    BUFFERS: ClassVar[tuple[str, ...]] = ()
    TRANSPOSED: ClassVar[bool] = False
    """Whether the shared layout, which is PyTorch's, has this layer's weight the other way round."""
    TAKES_INDICES: ClassVar[bool] = False

    def __init__(self, act: str | None = None, bias: bool = True) -> None:
        super().__init__()
        with eager():
            self.seed = int(paddle.randint(0, 2**31 - 1, [1]).numpy()[0])
        self.act = activation(act)
        self.shaped = False
        self.device: str | None = None
        self.dtype: Any = None
        self._named = tuple(name for name in self.PARAMETERS if name != "bias" or bias)
        for name in (*self.PARAMETERS, *self.BUFFERS):
            setattr(self, name, None)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of the parameters and buffers that do not exist yet."""
        return () if self.shaped else (*self._named, *self.BUFFERS)

    def shapes_for(self, inputs: Tensor) -> Shapes:
        """Shapes of all parameters for an input."""
        raise NotImplementedError

    def accepts(self, shapes: Shapes) -> bool:
        """Whether weights of these shapes could belong to this layer."""
        raise NotImplementedError

    def draw(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
        """Initial values of one parameter."""
        raise NotImplementedError

    def compute(self, inputs: Tensor) -> Tensor:
        """The layer's output before the activation."""
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the layer; the first call settles its shapes."""
        if not self.shaped:
            self.materialise(self.shapes_for(inputs))
        if inputs.dtype != self.weight.dtype and not (self.TAKES_INDICES or paddle.is_floating_point(inputs)):
            inputs = inputs.astype(self.weight.dtype)  # pixels, counts, one-hot rows: what else could be meant
        outputs = self.compute(inputs)
        return outputs if self.act is None else self.act(outputs)

    def materialise(self, shapes: Shapes) -> None:
        """Create parameters of these shapes with their initial values, also while a program is being built."""
        generator = np.random.default_rng(self.seed)
        zero = paddle.nn.initializer.Constant(0.0)
        with eager():
            for name in self._named:
                parameter = self.create_parameter(list(shapes[name]), dtype=self.dtype, default_initializer=zero)
                values = self.draw(name, shapes[name], generator)
                parameter.set_value(paddle.to_tensor(values, dtype=parameter.dtype, place=parameter.place))
                setattr(self, name, parameter)
            for name in self.BUFFERS:
                values = self.draw(name, shapes[name], generator)
                delattr(self, name)
                self.register_buffer(name, paddle.to_tensor(values, dtype=self.weight.dtype))
            if self.device is not None:
                self.to(device=self.device)
        self.shaped = True
