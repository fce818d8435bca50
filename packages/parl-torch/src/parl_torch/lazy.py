"""Layers that take their shapes from the first batch, or from weights that are set before it.

A layer draws a seed when it is made, and its initial weights from that seed when it learns its shapes. So a deepcopy
made before the first batch starts from the same weights as the original, whichever runs first, and `torch.manual_seed`
before the model is made decides them.
"""

from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from parl_torch.activations import Activation, activation

__all__ = ["LazyLayer", "Shapes"]

Shapes = Mapping[str, tuple[int, ...]]


class LazyLayer(nn.Module):
    """Base of the lazily shaped layers: parameters exist from the start, shapes and values come later.

    Args:
        act: name of the activation applied to the output, or None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    PARAMETERS: ClassVar[tuple[str, ...]] = ("weight", "bias")
    BUFFERS: ClassVar[tuple[str, ...]] = ()
    TAKES_INDICES: ClassVar[bool] = False

    def __init__(self, act: str | None = None, bias: bool = True) -> None:
        super().__init__()
        self.seed = int(torch.randint(2**62, ()).item())
        self.act: Activation | None = activation(act)
        self.shaped = False
        for name in self.PARAMETERS:
            wanted = name != "bias" or bias
            self.register_parameter(name, cast(nn.Parameter, nn.UninitializedParameter()) if wanted else None)
        for name in self.BUFFERS:
            self.register_buffer(name, torch.empty(0))

    def shapes_for(self, inputs: Tensor) -> Shapes:
        """Shapes of all parameters for an input."""
        raise NotImplementedError

    def accepts(self, shapes: Shapes) -> bool:
        """Whether weights of these shapes could belong to this layer."""
        raise NotImplementedError

    def draw(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Initial values of one parameter or buffer, on the CPU."""
        raise NotImplementedError

    def compute(self, inputs: Tensor) -> Tensor:
        """The layer's output before the activation."""
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the layer; the first call settles its shapes."""
        if not self.shaped:
            self.materialise(self.shapes_for(inputs))
        if not (inputs.is_floating_point() or self.TAKES_INDICES):
            inputs = inputs.to(self.weight.dtype)  # pixels, counts, one-hot rows: what else could be meant
        outputs = self.compute(inputs)
        return outputs if self.act is None else self.act(outputs)

    @torch.no_grad()
    def materialise(self, shapes: Shapes) -> None:
        """Create parameters of these shapes with their initial values."""
        generator = torch.Generator().manual_seed(self.seed)
        for name in self.PARAMETERS:
            parameter = getattr(self, name)
            if isinstance(parameter, nn.UninitializedParameter):
                parameter.materialize(shapes[name])
                parameter.copy_(self.draw(name, shapes[name], generator))
        for name in self.BUFFERS:
            setattr(self, name, self.draw(name, shapes[name], generator).to(getattr(self, name)))
        self.shaped = True
