"""Recurrent PPO without velocities, compared with sb3-contrib's RecurrentPPO and PPO without memory.

python benchmarks/memory/measure.py --seeds 5 >> rows.jsonl
python benchmarks/memory/measure.py --table rows.jsonl

The contenders alternate, seed by seed. All learn from the same number of steps with the same settings, and are
evaluated by the same function.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation

import parl
from parl_core import training
from parl_core.training.acting import Acting, into_space

SEED_AFTER = 10_000  # seed of the evaluation, which no training uses


class Task(NamedTuple):
    """A task, the entries of its observations that remain (positions and angles), and its training settings."""

    kept: Sequence[int]
    envs: int
    steps: int
    settings: Mapping[str, Any]


TASKS = {
    "CartPole-v1": Task(
        [0, 2], 8, 100_000, {"n_steps": 32, "epochs": 20, "minibatch_size": 256, "gamma": 0.98, "gae_lambda": 0.8}
    ),
    "Pendulum-v1": Task(
        [0, 1], 4, 300_000, {"n_steps": 1024, "epochs": 10, "minibatch_size": 128, "gamma": 0.9, "gae_lambda": 0.95}
    ),
}
COMMON: Mapping[str, Any] = {"lr": 1e-3, "clip": 0.2, "entropy_coef": 0.0}
SEQUENCE = 32  # length of PARL's sequences; sb3-contrib cuts rollouts at the bounds of minibatches
WIDTH = 64

Policy = Callable[[Any, bool], Any]
"""Returns an action for an observation; the flag is true at the first one of an episode."""


def masked(env_id: str) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(env_id)
    space, kept = env.observation_space, TASKS[env_id].kept
    assert isinstance(space, gymnasium.spaces.Box)
    left = gymnasium.spaces.Box(space.low[kept], space.high[kept], dtype=np.float32)
    return TransformObservation(env, lambda obs: obs[kept], left)


def ours(env_id: str, steps: int, seed: int, memory: str | None) -> tuple[Policy, Callable[[], Any]]:
    training.seed_everything(seed)
    options: dict[str, Any] = {"hidden": (WIDTH, WIDTH)}
    settings = {**TASKS[env_id].settings, **COMMON}
    if memory is not None:
        options = {"memory": memory, "memory_size": WIDTH, "shared": False}
        settings["sequence_length"] = SEQUENCE
    made = training.make_vector_env(lambda: masked(env_id), TASKS[env_id].envs)
    with training.NormalizeVector(made, gamma=settings["gamma"]) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
        model = parl.networks.for_spaces(*spaces, "actor-critic", **options)
        algorithm = parl.algorithms.PPO(model, value_loss_coef=1.0, use_clipped_value_loss=False, device="cpu")
        agent = parl.Agent(algorithm, seed=seed)
        training.train_on_policy(
            agent, envs, training.OnPolicySettings(total_steps=steps, decay=True, **settings), seed=seed
        )
        acting, valid = Acting(agent), into_space(envs.single_action_space)

        def act(obs: Any, begins: bool) -> Any:
            if begins:
                acting.begin()
            return valid(acting.predict(obs))

        return act, lambda: envs.as_seen(masked(env_id))


def sb3(env_id: str, steps: int, seed: int) -> tuple[Policy, Callable[[], Any]]:
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    own = TASKS[env_id].settings
    made = make_vec_env(lambda: masked(env_id), TASKS[env_id].envs, seed=seed)
    envs = VecNormalize(made, gamma=own["gamma"])
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        n_steps=own["n_steps"],
        n_epochs=own["epochs"],
        batch_size=own["minibatch_size"],
        gamma=own["gamma"],
        gae_lambda=own["gae_lambda"],
        learning_rate=lambda left: COMMON["lr"] * left,
        clip_range=lambda left: COMMON["clip"] * left,
        ent_coef=COMMON["entropy_coef"],
        vf_coef=0.5,
        policy_kwargs={
            "lstm_hidden_size": WIDTH,
            "net_arch": {"pi": [WIDTH], "vf": [WIDTH]},
            "enable_critic_lstm": True,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
        },
        seed=seed,
        device="cpu",
    )
    model.learn(steps)
    envs.training = False
    state = None

    def act(obs: Any, begins: bool) -> Any:
        nonlocal state
        action, state = model.predict(obs, None if begins else state, np.array([begins]), deterministic=True)
        return action

    return act, lambda: TransformObservation(masked(env_id), envs.normalize_obs, None)


def returns(act: Policy, make: Callable[[], Any], episodes: int) -> list[float]:
    """Return the returns of episodes without exploration, with the same seeds for all contenders."""
    found, env = [], make()
    for episode in range(episodes):
        (obs, _), begins, total, over = env.reset(seed=SEED_AFTER + episode), True, 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs, begins))
            total, over, begins = total + float(reward), terminated or truncated, False
        found.append(total)
    return found


CONTENDERS = {"lstm": "PARL, LSTM", "sb3": "sb3-contrib, LSTM", "gru": "PARL, GRU", "none": "PARL, no memory"}


@click.command()
@click.option("--env", "envs", multiple=True, default=tuple(TASKS), type=click.Choice(tuple(TASKS)))
@click.option("--only", multiple=True, default=tuple(CONTENDERS), type=click.Choice(tuple(CONTENDERS)))
@click.option("--steps", type=int, help="Default: those of the task.")
@click.option("--seeds", default=5)
@click.option("--first", default=0, help="The first seed.")
@click.option("--episodes", default=50)
@click.option("--table", type=click.Path(path_type=Path), help="Only print the table of this file.")
def main(
    envs: tuple[str, ...],
    only: tuple[str, ...],
    steps: int | None,
    seeds: int,
    first: int,
    episodes: int,
    table: Path | None,
) -> None:
    """Train all contenders with each seed, and print one JSON object per run."""
    if table is not None:
        show([json.loads(line) for line in table.read_text().splitlines()])
        return
    for seed in range(first, first + seeds):
        for env_id in envs:
            total = steps or TASKS[env_id].steps
            for name in only:
                began = time.process_time()
                memory = None if name == "none" else name
                made = sb3(env_id, total, seed) if name == "sb3" else ours(env_id, total, seed, memory)
                seconds = time.process_time() - began
                found = returns(*made, episodes)
                row = {"env": env_id, "contender": name, "seed": seed, "steps": total, "cpu_s": round(seconds, 1)}
                print(json.dumps({**row, "mean": round(float(np.mean(found)), 1)}), flush=True)


def show(rows: list[dict[str, Any]]) -> None:
    groups = defaultdict(list)
    for row in rows:
        groups[row["env"], row["contender"], row["steps"]].append(row)
    print("| task without velocities | steps | contender | mean return, one per seed | median | CPU seconds of a run |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (env_id, name, steps), found in sorted(
        groups.items(), key=lambda one: (one[0][0], list(CONTENDERS).index(one[0][1]))
    ):
        means = [row["mean"] for row in sorted(found, key=lambda row: row["seed"])]
        told = ", ".join(f"{mean:.0f}" for mean in means)
        seconds = np.median([row["cpu_s"] for row in found])
        print(f"| {env_id} | {steps:,} | {CONTENDERS[name]} | {told} | {np.median(means):.0f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
