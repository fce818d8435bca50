"""The network of the Decision Transformer: a small GPT over returns-to-go, observations and actions.

    ... R_t  s_t  a_t  R_t+1  s_t+1  a_t+1 ...      three tokens a step, each with its step's embedding added
                │                 │
           action a_t        action a_t+1           predicted at the observations' tokens, from all tokens up to them

Chen et al. 2021 (arXiv:2106.01345), figure 1; blocks as in GPT-2 (layer norm first, GELU by tanh).
"""

from __future__ import annotations

import math

import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from parl_core.checks import check_int
from parl_core.errors import HyperparameterError
from parl_paddle.model import Model

__all__ = ["TrajectoryTransformer"]


class TrajectoryTransformer(Model):
    """A network that predicts the action of each step from earlier steps, the return-to-go and the observation.

    Args:
        obs_dim: Size of an observation.
        act_dim: Size of an action, whose numbers are in [-1, 1].
        hidden: Width, a multiple of `heads`; default 128 (paper, table 9).
        layers: Number of blocks; default 3.
        heads: Number of attention heads; default 1.
        max_timestep: Length of the longest episode, in steps.
        dropout: Probability of dropout in training mode, 0 to below 1; default 0.1.
    """

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        hidden: int = 128,
        layers: int = 3,
        heads: int = 1,
        max_timestep: int = 1000,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        for name, value in (("obs_dim", obs_dim), ("act_dim", act_dim), ("layers", layers), ("heads", heads)):
            check_int(name, value)
        if check_int("hidden", hidden) % heads:
            raise HyperparameterError(f"hidden must be a multiple of heads={heads}, got {hidden}")
        self.obs_dim, self.act_dim = obs_dim, act_dim
        self.max_timestep = check_int("max_timestep", max_timestep)
        self.embed_timestep = nn.Embedding(max_timestep, hidden, weight_attr=_start())
        self.embed_return = _linear(1, hidden)
        self.embed_obs = _linear(obs_dim, hidden)
        self.embed_action = _linear(act_dim, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.LayerList([_Block(hidden, heads, dropout) for _ in range(layers)])
        self.last_norm = nn.LayerNorm(hidden)
        self.head = _linear(hidden, act_dim)

    def forward(self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, mask: Tensor) -> Tensor:
        """Return actions `[batch, K, act_dim]` in [-1, 1]; the arguments are those of `parl_core.offline.Window`."""
        batch, steps = mask.shape
        when = self.embed_timestep(timestep)
        parts = [self.embed_return(return_to_go), self.embed_obs(obs), self.embed_action(action)]
        # One row a token: Paddle multiplies a matrix once where it would multiply each row of the batch by itself.
        tokens = paddle.stack([part + when for part in parts], axis=2).reshape([batch * steps * 3, -1])
        tokens = self.dropout(self.norm(tokens))
        there = mask.repeat_interleave(3, axis=1).astype("bool")
        earlier = paddle.ones([3 * steps, 3 * steps]).tril().astype("bool")
        # A padded token may look at itself, because attention to nothing is not a number.
        itself = paddle.eye(3 * steps).astype("bool")
        visible = ((earlier & there.unsqueeze(1)) | itself).unsqueeze(1)
        bias = paddle.where(visible, paddle.zeros([]), paddle.full([], -math.inf))  # of the attention
        for block in self.blocks:
            tokens = block(tokens, bias)
        of_obs = self.last_norm(tokens.reshape([batch * steps, 3, -1])[:, 1])
        return paddle.tanh(self.head(of_obs)).reshape([batch, steps, -1])


class _Block(nn.Layer):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.query_key_value = _linear(hidden, 3 * hidden)
        self.project = _linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.widen = _linear(hidden, 4 * hidden)
        self.narrow = _linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        batch, _, length, _ = bias.shape
        width = tokens.shape[-1]
        split = self.query_key_value(self.norm1(tokens)).reshape([batch, length, 3, self.heads, -1])
        query, key, value = split.transpose([2, 0, 3, 1, 4]).unbind(axis=0)
        scores = (query @ key.transpose([0, 1, 3, 2])) / math.sqrt(width // self.heads)
        attention = self.dropout(functional.softmax(scores + bias, axis=-1))
        seen = (attention @ value).transpose([0, 2, 1, 3]).reshape([batch * length, width])
        tokens = tokens + self.dropout(self.project(seen))
        wide = functional.gelu(self.widen(self.norm2(tokens)), approximate=True)
        out: Tensor = tokens + self.dropout(self.narrow(wide))
        return out


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, weight_attr=_start(), bias_attr=nn.initializer.Constant(0.0))


def _start() -> nn.initializer.Normal:
    return nn.initializer.Normal(std=0.02)  # as GPT-2 starts
