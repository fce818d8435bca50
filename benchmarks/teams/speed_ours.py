"""This project in `speed.py`: the recipes' agents, memories and loops."""

from functools import partial
from typing import Any

import numpy as np
import torch
from particles import Particles
from serving import AGENTS, BATCH, EPISODES, HIDDEN, ROWS, STEPS, Run, serve

import parl
from parl import training
from parl.env import make_joint_env
from parl_core.training.off_policy import TransitionCollector, learn_from, make_memory
from parl_core.training.trained import Trained

GAME = "mpe2:simple_spread_v3"


def agent_of(algorithm: str) -> tuple[parl.Agent, Any]:
    recipe = training.find_recipe(algorithm, GAME)
    made = Trained(algorithm, GAME, "torch", arguments=dict(recipe.algorithm), seed=0, network=dict(recipe.sizes))
    return made.make_agent(), recipe


def update_maddpg() -> Run:
    agent, recipe = agent_of("MADDPG")
    return _from_memory(agent, recipe.loop, BATCH)


def update_qmix() -> Run:
    env = make_joint_env(GAME)
    team = parl.networks.for_team(env.observation_space, env.action_space, "q", memory="gru", memory_size=HIDDEN)
    agent = parl.Agent(parl.algorithms.QMIX(team, parl.networks.QMixer(AGENTS)))
    return _from_memory(agent, training.find_recipe("QMIX", GAME).loop, EPISODES)


def _from_memory(agent: parl.Agent, loop: Any, batch: int) -> Run:
    envs = Particles(GAME, 100)
    memory = make_memory(agent, envs, loop, np.random.default_rng(0))
    collector = TransitionCollector(agent, envs, memory, np.random.default_rng(0), 0)
    for _ in range(300):
        collector.collect(at_random=True, exploration={})

    def run(updates: int) -> None:
        for _ in range(updates):
            agent.read(learn_from(agent, memory, None, batch, None, {}, whole=True)[0])

    return run


def update_mappo() -> Run:
    agent, recipe = agent_of("MAPPO")
    rollouts: list[Any] = []
    learn = agent.learn_rollout

    def remembering(batch: Any, **given: Any) -> Any:
        rollouts.append((batch, given))
        return learn(batch, **given)

    agent.learn_rollout = remembering  # type: ignore[method-assign]
    training.train_on_policy(agent, Particles(GAME, ROWS // STEPS), recipe.loop.with_total_steps(ROWS), seed=0)
    batch, given = rollouts[0]

    def run(updates: int) -> None:
        learn(batch, **{**given, "epochs": updates})

    return run


def collect() -> Run:
    agent, recipe = agent_of("MADDPG")
    envs = training.make_vector_env(partial(make_joint_env, GAME), recipe.num_envs)
    memory = make_memory(agent, envs, recipe.loop, np.random.default_rng(0))
    collector = TransitionCollector(agent, envs, memory, np.random.default_rng(0), 0)

    def run(steps: int) -> None:
        for _ in range(steps // recipe.num_envs):
            collector.collect(at_random=False, exploration={})

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    parl.set_backend("torch")
    serve({name: globals()[name] for name in ("update_maddpg", "update_qmix", "update_mappo", "collect")})
