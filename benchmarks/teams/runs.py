"""A run of a team's algorithm, and the command that makes several: what both programs here share."""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import parl
from parl import training
from parl.env import make_joint_env

FOLDER = Path(__file__).parent / "results"
Row = dict[str, object]


def measured(name: str, env: str, agent: parl.Agent, recipe: Any, train: Callable[..., Any], **told: Any) -> Row:
    """Train an agent by a loop, and return a row: returns while training, and of 100 episodes after it.

    Args:
        name: what the row calls the algorithm.
        env: as of `make_joint_env`.
        agent: it is trained.
        recipe: loop and number of environments.
        train: the loop.
        told: the row's `backend` and `seed`.
    """
    make = partial(make_joint_env, env)
    began = time.monotonic()
    with training.make_vector_env(make, recipe.num_envs) as envs:
        ended = train(
            agent,
            envs,
            recipe.loop,
            evaluator=lambda: training.evaluate(agent, make, 20, seed=2),
            evaluate_every=max(recipe.steps // 10, 1),
            seed=told["seed"],
        )
    seconds = time.monotonic() - began
    return {
        "algorithm": name,
        "env": env,
        "steps": ended.step,
        **told,
        "return": training.evaluate(agent, make, 100, seed=1).mean,
        "curve": [[evaluation.step, evaluation.mean] for evaluation in ended.evaluations],
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
    }


def main(about: str | None, algorithms: Sequence[str], seeds: int, steps: int | None, run: Callable[..., Row]) -> None:
    """Make the runs that the command line asks for; the other arguments are its defaults."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--algorithms", nargs="+", default=algorithms)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--backend", default="torch")
    given = parser.parse_args()
    parl.set_backend(given.backend)
    FOLDER.mkdir(exist_ok=True)
    for env in given.envs:
        for seed in range(100, 100 + given.seeds):
            for algorithm in given.algorithms:
                row = run(algorithm, env, given.steps, seed, given.backend)
                with (FOLDER / f"{env.replace(':', '-')}.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{env} {algorithm} seed {seed}: {row['return']:.2f} in {row['seconds']} s", flush=True)
