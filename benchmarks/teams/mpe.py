"""MADDPG compared with independent learners, and MAPPO with IPPO, on games of MPE, with the steps of published runs.

    python benchmarks/teams/mpe.py simple_spread_v3 --algorithms MADDPG independent MAPPO IPPO --seeds 3

Agents learn in `particles.Particles`, which has the rules of mpe2 in arrays, and after training play 200 episodes in
mpe2 itself, with greedy and with sampled actions, on seeds that training never used. `independent` is MADDPG with
critics of their own agent's observations and actions, which is DDPG for each agent. Runs have the seeds 100 and on,
with which no setting was chosen. Each run writes a line of JSON to results/mpe-<game>.jsonl; returns are sums over the
agents. In games with an adversary, MADDPG's and independent teams of one seed also play each other, if one call trains
both.
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from particles import CYCLES, Particles

import parl
from parl import training
from parl.env import make_joint_env
from parl_core.training.trained import Trained

FOLDER = Path(__file__).parent / "results"
STEPS = {"MADDPG": 625_000, "independent": 625_000, "MAPPO": 2_000_000, "IPPO": 2_000_000}
AT_ONCE = {"MADDPG": 200, "independent": 200, "MAPPO": 128, "IPPO": 128}
_CURVE, _CURVE_SEED = 100, 2_000_000
_EPISODES, _FINAL_SEED = 200, 1_000_000


def independent(agent: parl.Agent, env: str, hidden: tuple[int, ...], seed: int, arguments: Mapping[str, Any]) -> Any:
    """Return an agent whose critics observe only their own agent."""

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


def trained(
    name: str, game: str, seed: int, steps: int, settings: Mapping[str, Any], loop: Mapping[str, Any], at_once: int
) -> tuple[parl.Agent, Any]:
    """Train an agent, and return it with its result."""
    algorithm = "MADDPG" if name == "independent" else name
    recipe = training.find_recipe(algorithm, game).with_steps(steps)
    arguments, sizes = {**recipe.algorithm, **settings}, dict(recipe.sizes)
    agent = Trained(algorithm, game, "torch", arguments=arguments, seed=seed, network=sizes).make_agent()
    if name == "independent":
        agent = independent(agent, game, sizes["hidden"], seed, arguments)
    train = training.train_off_policy if algorithm == "MADDPG" else training.train_on_policy
    ended = train(
        agent,
        Particles(game, at_once),
        replace(recipe.loop, **loop),
        evaluator=lambda: evaluated(agent, game),
        evaluate_every=steps // 10,
        seed=seed,
    )
    return agent, ended


def evaluated(agent: parl.Agent, game: str) -> training.Evaluation:
    """Return an evaluation with greedy episodes."""
    returns = played(game, {None: agent}, _CURVE_SEED, _CURVE).sum(1)
    return training.Evaluation(tuple(training.Episode(float(found), CYCLES) for found in returns))


def played(game: str, agents: Mapping[int | None, parl.Agent], seed: int, episodes: int) -> Any:
    """Return each agent's returns `[episodes, agents]` of greedy episodes.

    Args:
        game: Name of the game for `make_joint_env`.
        agents: The agent that acts in each row of the team; that of None acts in all other rows.
        seed: Seed of the episodes.
        episodes: Number of episodes.
    """
    envs = Particles(game, episodes)
    obs, _ = envs.reset(seed=seed)
    total: Any = 0.0
    for _ in range(CYCLES):
        action = np.asarray(agents[None].predict(obs)).copy()
        for row, agent in agents.items():
            if row is not None:
                action[:, row] = np.asarray(agent.predict(obs))[:, row]
        obs, _, _, _, infos = envs.step(action)
        last = [found["rewards"] for found in infos["final_obs"]] if infos else obs["rewards"]
        total = total + np.asarray(last, np.float64)
    return total


def row_of(
    name: str, game: str, seed: int, steps: int, settings: Mapping[str, Any], loop: Mapping[str, Any], at_once: int
) -> tuple[parl.Agent, dict[str, Any]]:
    began, cpu = time.monotonic(), time.process_time()
    agent, ended = trained(name, game, seed, steps, settings, loop, at_once)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    make = partial(make_joint_env, game, team_reward="sum")
    greedy = training.evaluate(agent, make, _EPISODES, seed=_FINAL_SEED)
    drawn = training.evaluate(agent, make, _EPISODES, seed=_FINAL_SEED, stochastic=True)
    return agent, {
        "algorithm": name,
        "env": game,
        "steps": ended.step,
        "seed": seed,
        "settings": dict(settings),
        "loop": dict(loop),
        "at_once": at_once,
        "greedy": greedy.mean,
        "sampled": drawn.mean,
        "curve": [[found.step, round(found.mean, 2)] for found in ended.evaluations],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "commit": _commit(),
        "python": platform.python_version(),
    }


def against(game: str, agents: Mapping[str, parl.Agent], seed: int) -> list[dict[str, Any]]:
    """Return the results of each adversary against each team of good agents: mean returns of the agents, in order."""
    return [
        {
            "env": game,
            "seed": seed,
            "adversary": adversary,
            "good": good,
            "returns": played(game, {0: agents[adversary], None: agents[good]}, _FINAL_SEED, 1_000).mean(0).tolist(),
        }
        for adversary in agents
        for good in agents
    ]


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="+", help="modules of mpe2")
    parser.add_argument("--algorithms", nargs="+", default=["MADDPG", "independent"])
    parser.add_argument("--steps", type=int, help="default: the steps of published runs")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--set", type=json.loads, default={}, help="arguments of the algorithms, as JSON")
    parser.add_argument("--loop", type=json.loads, default={}, help="settings of the loops, as JSON")
    parser.add_argument("--at-once", type=int, help="how many episodes; default: 200 of MADDPG, 128 of MAPPO and IPPO")
    parser.add_argument("--results", type=Path, default=FOLDER)
    given = parser.parse_args()
    parl.set_backend("torch")
    given.results.mkdir(exist_ok=True)
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for module in given.games:
            game, agents = f"mpe2:{module}", {}
            file = given.results / f"mpe-{module}.jsonl"
            for name in given.algorithms:
                steps, at_once = given.steps or STEPS[name], given.at_once or AT_ONCE[name]
                agents[name], row = row_of(name, game, seed, steps, given.set, given.loop, at_once)
                print(f"{game} {name} seed {seed}: {row['greedy']:.2f} in {row['cpu_seconds']} s", flush=True)
                with file.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
            if module in ("simple_adversary_v3", "simple_push_v3") and len(agents) > 1:
                with file.open("a") as lines:
                    lines.writelines(json.dumps(found) + "\n" for found in against(game, agents, seed))
