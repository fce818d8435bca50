"""The network of the Decision Transformer on PaddlePaddle; `parl_core.networks` describes and defines it."""

from __future__ import annotations

from functools import partial

from paddle import nn
from paddle.nn import functional

from parl_core import networks as contract
from parl_paddle import layers
from parl_paddle.model import Model

__all__ = ["TrajectoryTransformer"]


def _start() -> nn.initializer.Normal:
    return nn.initializer.Normal(std=0.02)  # the initial standard deviation of GPT-2


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, weight_attr=_start(), bias_attr=nn.initializer.Constant(0.0))


def _embedding(rows: int, size: int) -> nn.Embedding:
    return nn.Embedding(rows, size, weight_attr=_start())


class _Block(contract.TransformerBlock, nn.Layer):
    _layers, _linear, _norm, _dropout = layers, staticmethod(_linear), nn.LayerNorm, nn.Dropout
    _gelu = staticmethod(partial(functional.gelu, approximate=True))


class TrajectoryTransformer(contract.TrajectoryTransformer, Model):
    _layers, _layer_list, _embedding, _block = layers, nn.LayerList, staticmethod(_embedding), _Block
