"""QMIX, VDN and MADDPG side by side, and independent learners: matrix games, and games of MPE.

    python benchmarks/teams/off_policy.py two_step cued_two_step --algorithms QMIX VDN --seeds 3
    python benchmarks/teams/off_policy.py mpe2:simple_speaker_listener_v4 --algorithms MADDPG independent --steps 200000

`independent` is MADDPG whose critics see what their own agent sees and does, which is DDPG for each agent. Every run
begins from its own seed, 100 and on, which no setting was chosen with; the recipe is that of `parl train`. A line of
JSON for each run goes to results/<env>.jsonl: the mean team's return of 100 greedy episodes with unseen seeds after
training, and of 20 while training.
"""

import argparse
import json
import os
import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import parl
from parl import training
from parl.env import make_joint_env
from parl_core.training.trained import Trained

FOLDER = Path(__file__).parent / "results"


def independent(agent: parl.Agent, env: str, hidden: tuple[int, ...], seed: int, arguments: dict[str, Any]) -> Any:
    """Return the same agent with critics that see one agent alone."""

    class Alone(type(agent.alg.model)):  # type: ignore[misc]  # a class of the backend
        def value(self, obs: Any, action: Any, agent: int) -> Any:
            rows = parl.layers.concat([obs["obs"][:, agent], action[:, agent]], axis=-1)
            return self.critic.of_agent(agent, rows)

    training.seed_everything(seed)
    game = make_joint_env(env)
    agents, width = len(game.agents), max(game.act_sizes)
    model = Alone(agents, width, hidden, continuous=not game.discrete)
    model.obs_ndim, model.action_kind = agent.alg.model.obs_ndim, agent.alg.model.action_kind
    return parl.Agent(parl.algorithms.MADDPG(model, **arguments), seed=seed)


def run(name: str, env: str, steps: int | None, seed: int, backend: str) -> dict[str, object]:
    algorithm = "MADDPG" if name == "independent" else name
    recipe = training.find_recipe(algorithm, env)
    if steps is not None:
        recipe = recipe.with_steps(steps)
    arguments, sizes = dict(recipe.algorithm), dict(recipe.sizes)
    agent = Trained(algorithm, env, backend, arguments=arguments, seed=seed, network=sizes).make_agent()
    if name == "independent":
        agent = independent(agent, env, sizes["hidden"], seed, arguments)
    make = partial(make_joint_env, env)
    began = time.monotonic()
    with training.make_vector_env(make, recipe.num_envs) as envs:
        ended = training.train_off_policy(
            agent,
            envs,
            recipe.loop,
            evaluator=lambda: training.evaluate(agent, make, 20, seed=2),
            evaluate_every=max(recipe.steps // 10, 1),
            seed=seed,
        )
    seconds = time.monotonic() - began
    final = training.evaluate(agent, make, 100, seed=1)
    return {
        "algorithm": name,
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
    parser.add_argument("--algorithms", nargs="+", default=["QMIX", "VDN"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
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
