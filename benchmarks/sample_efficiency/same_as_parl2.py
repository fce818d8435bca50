"""Difference between PARL 2.2.1's algorithms on PyTorch and ours after the same batches, from the same initial weights.

It needs both libraries in one process; `benchmarks/learner/README.md` says how. TD3's noise is disabled, because each
library draws its own.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import parl
from parl_torch import algorithms, model

_OBS_DIM, _ACT_DIM, _BATCH, _LR = 5, 3, 32, 1e-3
_SHOWN = (1, 10, 100)

Columns = tuple[Tensor, ...]


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def _networks(base: type) -> dict[str, Any]:
    """Return the networks as subclasses of either library's Model."""

    class Values(base):
        def __init__(self) -> None:
            super().__init__()
            self.net = _mlp(_OBS_DIM, _ACT_DIM)

        def forward(self, obs: Tensor) -> Tensor:
            return self.net(obs)

    class Probabilities(Values):
        def forward(self, obs: Tensor) -> Tensor:
            return torch.softmax(self.net(obs), dim=-1)

    class Logits(Values):
        def __init__(self) -> None:
            super().__init__()
            self.critic = _mlp(_OBS_DIM, 1)

        def policy(self, obs: Tensor) -> Tensor:
            return self.net(obs)

        def value(self, obs: Tensor) -> Tensor:
            return self.critic(obs).squeeze(-1)

        def policy_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            return self.policy(obs), self.value(obs)

    class Deterministic(base):
        def __init__(self) -> None:
            super().__init__()
            self.actor = _mlp(_OBS_DIM, _ACT_DIM)
            self.critics = nn.ModuleList([_mlp(_OBS_DIM + _ACT_DIM, 1)])

        def policy(self, obs: Tensor) -> Tensor:
            return torch.tanh(self.actor(obs))

        def value(self, obs: Tensor, action: Tensor) -> Any:
            return self.Q1(obs, action)

        def Q1(self, obs: Tensor, action: Tensor) -> Tensor:  # noqa: N802  # PARL's name
            return self.critics[0](torch.cat([obs, action], dim=1))

        def get_actor_params(self) -> list[Any]:
            return list(self.actor.parameters())

        def get_critic_params(self) -> list[Any]:
            return list(self.critics.parameters())

    class Twin(Deterministic):
        def __init__(self) -> None:
            super().__init__()
            self.critics.append(_mlp(_OBS_DIM + _ACT_DIM, 1))

        def value(self, obs: Tensor, action: Tensor) -> Any:
            both = torch.cat([obs, action], dim=1)
            return tuple(critic(both) for critic in self.critics)

    return {one.__name__: one for one in (Values, Probabilities, Logits, Deterministic, Twin)}


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.normal(size=shape).astype(np.float32))


def _action(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.integers(0, _ACT_DIM, shape))


def _transitions(rng: np.random.Generator, action: Tensor) -> Columns:
    obs, next_obs = (_normal(rng, _BATCH, _OBS_DIM) for _ in range(2))
    terminal = torch.as_tensor((rng.random((_BATCH, 1)) < 0.1).astype(np.float32))
    return obs, action, _normal(rng, _BATCH, 1), next_obs, terminal


def _discrete(rng: np.random.Generator) -> Columns:
    return _transitions(rng, _action(rng, _BATCH, 1))


def _continuous(rng: np.random.Generator) -> Columns:
    return _transitions(rng, torch.tanh(_normal(rng, _BATCH, _ACT_DIM)))


def _returns(rng: np.random.Generator) -> Columns:
    return _normal(rng, _BATCH, _OBS_DIM), _action(rng, _BATCH), _normal(rng, _BATCH)


def _advantages(rng: np.random.Generator) -> Columns:
    return *_returns(rng), _normal(rng, _BATCH)


def _rollout(rng: np.random.Generator) -> Columns:
    obs, action, value = _returns(rng)
    log_prob = 0.3 * _normal(rng, _BATCH) - 1.1
    return obs, action, value, _normal(rng, _BATCH), log_prob, _normal(rng, _BATCH)


_Q = {"gamma": 0.97, "lr": _LR}
_ACTOR_CRITIC = {"gamma": 0.97, "tau": 0.01, "actor_lr": _LR, "critic_lr": _LR}

_CASES: dict[str, tuple[str, dict[str, Any], Callable[[np.random.Generator], Columns], tuple[float, ...]]] = {
    "PolicyGradient": ("Probabilities", {"lr": _LR}, _returns, ()),
    "DQN": ("Values", _Q, _discrete, ()),
    "DDQN": ("Values", _Q, _discrete, ()),
    "A2C": ("Logits", {"config": {"learning_rate": _LR, "vf_loss_coeff": 0.5}}, _advantages, (_LR, -0.01)),
    "PPO": ("Logits", {"clip_param": 0.2, "initial_lr": _LR, "norm_adv": False}, _rollout, ()),
    "DDPG": ("Deterministic", _ACTOR_CRITIC, _continuous, ()),
    "TD3": ("Twin", {**_ACTOR_CRITIC, "policy_noise": 0.0}, _continuous, ()),
}
"""Network, arguments of the constructor, columns of a batch, and the further arguments of `learn`."""


def compare(name: str, seed: int) -> None:
    """Update both libraries' algorithms with the same random batches."""
    network, settings, draw, more = _CASES[name]
    torch.manual_seed(seed)
    theirs = _networks(parl.Model)[network]()
    ours = _networks(model.Model)[network]()
    ours.load_state_dict(theirs.state_dict())
    their_algorithm = getattr(parl.algorithms, name)(theirs, **settings)
    own_algorithm = getattr(algorithms, name)(ours, **settings)
    rng = np.random.default_rng(seed)
    cells = []
    for update in range(1, max(_SHOWN) + 1):
        batch = draw(rng)
        their_algorithm.learn(*(column.clone() for column in batch), *more)
        own_algorithm.learn(*batch, *more)
        if update in _SHOWN:
            given = theirs.state_dict()
            apart = max(float((own - given[key]).abs().max()) for key, own in ours.state_dict().items())
            cells.append(f"{apart:.0e}")
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Updates of PARL 2.2.1 and of this project on the same batches.")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| updates: | {' | '.join(map(str, _SHOWN))} |")
    print("| --- |" + " --- |" * len(_SHOWN))
    for name in options.cases:
        compare(name, options.seed)


if __name__ == "__main__":
    main()
