"""Largest difference between both libraries' DDPG and TD3 after the same batches, from the same initial weights.

TD3's noise on the target's actions is disabled (clipped to 0), because each library draws its own. A second agent of
ours, which gets the rows of each batch in another order, shows the effect of rounding alone.
"""

import argparse
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import configure

from parl_torch import algorithms
from parl_torch.agent import Agent
from parl_torch.networks import DeterministicActorCritic, TwinActorCritic

_HIDDEN, _BATCH, _OBS_DIM, _ACT_DIM = (64, 64), 64, 3, 1
_SETTINGS = {"gamma": 0.98, "tau": 0.01}
_LR = 1e-3
_SHOWN = (1, 10, 50, 200)

_CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "DDPG": (DeterministicActorCritic, {}, {}),
    "TD3": (TwinActorCritic, {"noise_clip": 1e-12}, {"target_noise_clip": 0.0}),
}
"""Our network, and the other arguments of our algorithm and theirs."""


def compare(name: str, seed: int) -> None:
    """Update both libraries' agents with the same random batches."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network, own_settings, their_settings = _CASES[name]
    batch: dict[str, Any] = {}
    theirs = _theirs(name, their_settings, batch)
    ours, other = (_ours(name, network, own_settings, _their_weights(theirs)) for _ in range(2))
    for update in range(1, max(_SHOWN) + 1):
        columns = _columns(rng)
        batch.update(columns)
        theirs.train(gradient_steps=1, batch_size=_BATCH)
        ours.learn(*columns.values())
        order = rng.permutation(_BATCH)
        other.learn(*(column[order] for column in columns.values()))
        if update in _SHOWN:
            by_library = _apart(ours, _their_weights(theirs))
            by_order = _apart(ours, list(other.alg.model.state_dict().values()))
            print(f"| {name} | {update} | {by_library:.0e} | {by_order:.0e} |")


def _columns(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "obs": rng.normal(size=(_BATCH, _OBS_DIM)).astype(np.float32),
        "action": rng.uniform(-1.0, 1.0, (_BATCH, _ACT_DIM)).astype(np.float32),
        "reward": rng.normal(size=_BATCH).astype(np.float32),
        "next_obs": rng.normal(size=(_BATCH, _OBS_DIM)).astype(np.float32),
        "terminal": rng.random(_BATCH) < 0.1,
    }


def _theirs(name: str, settings: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Return their agent, with a memory that returns the present contents of `batch`."""
    agent = getattr(stable_baselines3, name)(
        "MlpPolicy",
        gymnasium.make("Pendulum-v1"),
        policy_kwargs={"net_arch": list(_HIDDEN)},
        buffer_size=_BATCH,
        learning_rate=_LR,
        device="cpu",
        **_SETTINGS,
        **settings,
    )
    agent.set_logger(configure(None, []))

    def sample(*_: Any, **__: Any) -> Any:
        columns = {name: torch.as_tensor(column) for name, column in batch.items()}
        return SimpleNamespace(
            observations=columns["obs"],
            actions=columns["action"],
            rewards=columns["reward"][:, None],
            next_observations=columns["next_obs"],
            dones=columns["terminal"].float()[:, None],
            discounts=None,
        )

    agent.replay_buffer.sample = sample
    return agent


def _ours(name: str, network: Any, settings: dict[str, Any], weights: list[Any]) -> Agent:
    algorithm = getattr(algorithms, name)(
        network(_ACT_DIM, _HIDDEN), actor_lr=_LR, critic_lr=_LR, **_SETTINGS, **settings
    )
    agent = Agent(algorithm)
    obs, action = torch.zeros(1, _OBS_DIM), torch.zeros(1, _ACT_DIM)
    for model in (algorithm.model, algorithm.target_model):  # layers get their input sizes from the first batch
        model.policy(obs)
        model.value(obs, action)
    with torch.no_grad():
        for own, given in zip(algorithm.model.state_dict().values(), weights, strict=True):
            own.copy_(given)
    algorithm.sync_target(decay=0.0)
    return agent


def _their_weights(theirs: Any) -> list[Any]:
    """Return their weights of actor and critics in the order of our models."""
    return [weight for part in (theirs.actor, theirs.critic) for weight in part.state_dict().values()]


def _apart(ours: Agent, others: list[Any]) -> float:
    weights = ours.alg.model.state_dict().values()
    return max(float((own - given).abs().max()) for own, given in zip(weights, others, strict=True))


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Updates of both libraries on the same batches.")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    options = parser.parse_args()
    print("| | update | weights, to Stable-Baselines3's | weights, to our own with the rows in another order |")
    print("| --- | --- | --- | --- |")
    for name in options.cases:
        compare(name, options.seed)


if __name__ == "__main__":
    main()
