"""PPO's defaults, one changed after the other: mean returns of greedy policies, over seeds.

python benchmarks/ppo_defaults/measure.py      # in the torch or paddle environment; a few CPU minutes on torch
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
import numpy as np

import parl
from parl_core import training

SEED_AFTER = 1_000  # seed of the evaluation, which no training uses


class Task(NamedTuple):
    """An environment and its training settings."""

    env_id: str
    shared: bool
    activation: str
    seeds: int
    settings: Mapping[str, Any]


TASKS = {
    "CartPole, one ReLU trunk": Task(
        "CartPole-v1", True, "relu", 8, {"total_steps": 20_000, "epochs": 4, "minibatch_size": 256, "gamma": 0.99}
    ),
    "CartPole, a tanh trunk each": Task(
        "CartPole-v1", False, "tanh", 8, {"total_steps": 20_000, "epochs": 4, "minibatch_size": 256, "gamma": 0.99}
    ),
    "Pendulum, a tanh trunk each": Task(
        "Pendulum-v1", False, "tanh", 4, {"total_steps": 40_000, "epochs": 10, "minibatch_size": 64, "gamma": 0.9}
    ),
}
COMMON: Mapping[str, Any] = {"n_steps": 128, "lr": 1e-3, "gae_lambda": 0.95}
ENVS = 8

UNCLIPPED = {"use_clipped_value_loss": False}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "PARL's other defaults": {},
    "`use_clipped_value_loss=False`": UNCLIPPED,
    "and `value_loss_coef=1.0`, as Stable-Baselines3": {**UNCLIPPED, "value_loss_coef": 1.0},
    "and `max_grad_norm=math.inf`, as Tianshou": {**UNCLIPPED, "value_loss_coef": 1.0, "max_grad_norm": math.inf},
    "only `max_grad_norm=math.inf`": {"max_grad_norm": math.inf},
}


def trained(task: Task, changes: Mapping[str, Any], seed: int) -> float:
    """Return the mean return of ten episodes after training with `clip_param=0.2` and the changes."""
    training.seed_everything(seed)
    with training.make_vector_env(task.env_id, num_envs=ENVS) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
        model = parl.networks.for_spaces(*spaces, "actor-critic", activation=task.activation, shared=task.shared)
        agent = parl.Agent(parl.algorithms.PPO(model, clip_param=0.2, device="cpu", **changes), seed=seed)
        settings = training.OnPolicySettings(decay=False, **task.settings, **COMMON)
        training.train_on_policy(agent, envs, settings, seed=seed)
    return training.evaluate(agent, task.env_id, episodes=10, seed=SEED_AFTER).mean


@click.command()
@click.option("--task", "tasks", multiple=True, default=tuple(TASKS), type=click.Choice(tuple(TASKS)))
@click.option("--change", "changes", multiple=True, default=tuple(CHANGES), type=click.Choice(tuple(CHANGES)))
def main(tasks: tuple[str, ...], changes: tuple[str, ...]) -> None:
    """Print one row for each task and change: the mean, the standard deviation over seeds, and each seed's return."""
    for name in tasks:
        task = TASKS[name]
        for change in changes:
            found = [trained(task, CHANGES[change], seed) for seed in range(task.seeds)]
            each = " ".join(f"{value:.0f}" for value in found)
            print(f"| {name} | {change} | {np.mean(found):.0f} | {np.std(found):.0f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
