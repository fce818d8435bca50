"""Difference between both PPOs on the same rollouts: advantages, and weights after each update.

    SB3 acts ──> its rollout ──┬──> its advantages, its 20 epochs ──> weights ──┐
                               ├──> our advantages, our 20 epochs ──> weights ──┴──> difference
                               └──> the same, rows in another order: rounding ──────> difference

Stable-Baselines3 normalises advantages by the standard deviation with divisor n - 1, this project with divisor n; here
both use n - 1. The remaining difference is rounding. It is compared with the difference between two of our own agents
whose batches have the same rows in different orders.
"""

import argparse
from typing import Any

import numpy as np
import torch
from cases import CASES
from sb3 import sb3_ppo

from parl_core.contracts.batches import RolloutBatch
from parl_core.returns import gae
from parl_core.training.recipes import find_recipe
from parl_torch.agent import Agent
from parl_torch.algorithms import PPO
from parl_torch.networks import ActorCritic

_SAME = {
    "policy_trunk.0": "mlp_extractor.policy_net.0",
    "policy_trunk.1": "mlp_extractor.policy_net.2",
    "policy_head": "action_net",
    "value_trunk.0": "mlp_extractor.value_net.0",
    "value_trunk.1": "mlp_extractor.value_net.2",
    "value_head": "value_net",
}


def compare(updates: int, seed: int) -> None:
    """Train Stable-Baselines3's PPO for some rollouts and print the difference to our update after each."""
    torch.set_num_threads(1)
    env = CASES["ppo"].env
    theirs = sb3_ppo(env, seed)
    ours, other = (_ours(env, theirs.policy.state_dict()) for _ in range(2))
    train = theirs.train

    def train_both() -> None:
        left = theirs._current_progress_remaining  # Stable-Baselines3 has no public name for it
        rollout, apart = _advantages(theirs)
        train()
        loop = find_recipe("PPO", env).loop
        for order, agent in enumerate((ours, other)):
            agent.learn_rollout(
                rollout,
                epochs=loop.epochs,
                minibatch_size=loop.minibatch_size,
                rng=np.random.default_rng(order),
                lr=theirs.lr_schedule(left),
                clip=theirs.clip_range(left),
                entropy_coef=theirs.ent_coef,
            )
        weights = ours.alg.model.state_dict()
        by_library = _apart(weights, {name: theirs.policy.state_dict()[_their_name(name)] for name in weights})
        by_order = _apart(weights, other.alg.model.state_dict())
        print(f"{theirs.num_timesteps:>5} | {apart:.0e} | {by_library:.0e} | {by_order:.0e}")

    print(" step | advantages | weights: SB3 | another order")
    theirs.train = train_both
    # The rates decay over all steps, so the run has its full length and is aborted after the requested updates.
    per_update = theirs.n_steps * theirs.n_envs
    theirs.learn(CASES["ppo"].total_steps, callback=lambda *_: theirs.num_timesteps <= updates * per_update)


def _ours(env: str, weights: Any) -> Agent:
    recipe = find_recipe("PPO", env)
    network = ActorCritic(2, **recipe.sizes)
    agent = Agent(PPO(network, norm_adv=False, **recipe.algorithm))
    first = np.zeros((1, 4), np.float32)
    agent.predict(first), agent.value(first)  # layers get their input size from it
    network.load_state_dict({name: weights[_their_name(name)] for name in network.state_dict()})
    return agent


def _their_name(name: str) -> str:
    layer, kind = name.rsplit(".", 1)
    return f"{_SAME[layer]}.{kind}"


def _advantages(theirs: Any) -> tuple[RolloutBatch, float]:
    """Return their rollout in our form, and the difference between our advantages and theirs."""
    buffer = theirs.rollout_buffer
    last = theirs.policy.predict_values(torch.as_tensor(theirs._last_obs)).detach().numpy().reshape(1, -1)
    ended = np.concatenate([buffer.episode_starts[1:], theirs._last_episode_starts[None]]).astype(np.bool_)
    # Their rewards already include the value after a truncation, so every end is a termination here.
    advantage = gae(
        buffer.rewards,
        buffer.values,
        np.concatenate([buffer.values[1:], last]),
        ended,
        np.zeros_like(ended),
        gamma=theirs.gamma,
        lam=theirs.gae_lambda,
    )
    rollout = RolloutBatch(
        obs=_rows(buffer.observations),
        action=_rows(buffer.actions).reshape(-1).astype(np.int64),
        value=_rows(buffer.values),
        return_=_rows(buffer.returns),
        log_prob=_rows(buffer.log_probs),
        # the minibatch is the whole rollout
        advantage=_rows((advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)),
    )
    return rollout, float(np.abs(advantage - buffer.advantages).max())


def _rows(column: Any) -> Any:
    return column.reshape(-1, *column.shape[2:])


def _apart(weights: Any, others: Any) -> float:
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="One PPO update of both libraries on the same rollouts.")
    parser.add_argument("--updates", type=int, default=10, help="number of rollouts to compare")
    parser.add_argument("--seed", type=int, default=0, help="seed of Stable-Baselines3's run")
    options = parser.parse_args()
    compare(options.updates, options.seed)


if __name__ == "__main__":
    main()
