"""MAPPO, IPPO and COMA side by side: matrix games whose optimum is known, and a game of MPE.

    python benchmarks/teams/on_policy.py climbing penalty --steps 12800 --seeds 3
    python benchmarks/teams/on_policy.py mpe2:simple_spread_v3 --algorithms MAPPO IPPO --steps 300000 --seeds 1

Every run begins from its own seed, 100 and on, which no setting was chosen with; the recipe is that of `parl train`. A
line of JSON for each run goes to results/<env>.jsonl: the mean team's return of 100 greedy episodes with unseen seeds
after training, and of 20 while training.
"""

import argparse
import json
import os
import platform
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import parl
from parl import training
from parl.env import make_joint_env
from parl_core.training.trained import Trained

FOLDER = Path(__file__).parent / "results"


def run(algorithm: str, env: str, steps: int, seed: int, backend: str) -> dict[str, object]:
    recipe = training.find_recipe(algorithm, env).with_steps(steps)
    agent = Trained(
        algorithm, env, backend, arguments=dict(recipe.algorithm), seed=seed, network=dict(recipe.sizes)
    ).make_agent()
    make = partial(make_joint_env, env)
    began = time.monotonic()
    with training.make_vector_env(make, recipe.num_envs) as envs:
        ended = training.train_on_policy(
            agent,
            envs,
            recipe.loop,
            evaluator=lambda: training.evaluate(agent, make, 20, seed=2),
            evaluate_every=max(steps // 10, 1),
            seed=seed,
        )
    seconds = time.monotonic() - began
    final = training.evaluate(agent, make, 100, seed=1)
    return {
        "algorithm": algorithm,
        "env": env,
        "backend": backend,
        "steps": ended.step,
        "seed": seed,
        "return": final.mean,
        "curve": [[evaluation.step, evaluation.mean] for evaluation in ended.evaluations],
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--algorithms", nargs="+", default=["MAPPO", "IPPO", "COMA"])
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=5)
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


if __name__ == "__main__":
    main()
