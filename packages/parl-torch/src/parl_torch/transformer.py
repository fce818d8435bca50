"""The network of the Decision Transformer: a small GPT over returns-to-go, observations and actions.

    ... R_t  s_t  a_t  R_t+1  s_t+1  a_t+1 ...      three tokens a step, each with its step's embedding added
                │                 │
           action a_t        action a_t+1           predicted at the observations' tokens, from all tokens up to them

Chen et al. 2021 (arXiv:2106.01345), figure 1; blocks as in GPT-2 (layer norm first, GELU by tanh).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from parl_core.checks import check_int
from parl_core.errors import HyperparameterError
from parl_torch.model import Model

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
        self.embed_timestep = nn.Embedding(max_timestep, hidden)
        self.embed_return = nn.Linear(1, hidden)
        self.embed_obs = nn.Linear(obs_dim, hidden)
        self.embed_action = nn.Linear(act_dim, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([_Block(hidden, heads, dropout) for _ in range(layers)])
        self.last_norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, act_dim)
        self.apply(_start)

    def forward(self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, mask: Tensor) -> Tensor:
        """Return actions `[batch, K, act_dim]` in [-1, 1]; the arguments are those of `parl_core.offline.Window`."""
        batch, steps = mask.shape
        when = self.embed_timestep(timestep)
        parts = [self.embed_return(return_to_go), self.embed_obs(obs), self.embed_action(action)]
        tokens = torch.stack([part + when for part in parts], dim=2).reshape(batch, 3 * steps, -1)
        tokens = self.dropout(self.norm(tokens))
        there = mask.bool().repeat_interleave(3, dim=1)
        earlier = torch.ones(3 * steps, 3 * steps, dtype=torch.bool, device=mask.device).tril()
        # A padded token may look at itself, because attention to nothing is not a number.
        itself = torch.eye(3 * steps, dtype=torch.bool, device=mask.device)
        visible = ((earlier & there[:, None, :]) | itself)[:, None]
        for block in self.blocks:
            tokens = block(tokens, visible)
        of_obs = self.last_norm(tokens.reshape(batch, steps, 3, -1)[:, :, 1])
        return torch.tanh(self.head(of_obs))


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.widen = nn.Linear(hidden, 4 * hidden)
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, visible: Tensor) -> Tensor:
        batch, length, hidden = tokens.shape
        split = self.query_key_value(self.norm1(tokens)).reshape(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(hidden // self.heads)
        attention = self.dropout(torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1))
        seen = (attention @ value).transpose(1, 2).reshape(batch, length, hidden)
        tokens = tokens + self.dropout(self.project(seen))
        wide = functional.gelu(self.widen(self.norm2(tokens)), approximate="tanh")
        out: Tensor = tokens + self.dropout(self.narrow(wide))
        return out


def _start(layer: nn.Module) -> None:
    if isinstance(layer, (nn.Linear, nn.Embedding)):
        nn.init.normal_(layer.weight, std=0.02)  # as GPT-2 starts
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.bias)
