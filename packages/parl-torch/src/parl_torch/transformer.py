"""The network of the Decision Transformer on PyTorch; `parl_core.networks` describes and defines it."""

from functools import partial

from torch import nn
from torch.nn import functional

from parl_core import networks as contract
from parl_torch import layers
from parl_torch.model import Model

__all__ = ["TrajectoryTransformer"]


class _Block(contract.TransformerBlock, nn.Module):
    _layers, _linear, _norm, _dropout = layers, nn.Linear, nn.LayerNorm, nn.Dropout
    _gelu = staticmethod(partial(functional.gelu, approximate="tanh"))


class TrajectoryTransformer(contract.TrajectoryTransformer, Model):
    _layers, _layer_list, _embedding, _block = layers, nn.ModuleList, nn.Embedding, _Block

    def _start(self) -> None:
        for layer in self.modules():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                nn.init.normal_(layer.weight, std=0.02)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)
