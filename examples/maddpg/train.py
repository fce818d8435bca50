"""MADDPG on environments of several agents, in this process, in remote actors or on a cluster."""

import math
import os
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import parl
from parl import training
from parl.env import make_joint_env


@dataclass(frozen=True)
class Settings:
    """Trains MADDPG on a game of several agents, each with its own reward: MPE, or any of PettingZoo's kind."""

    env: Annotated[str, "mpe2:simple_speaker_listener_v4, mpe2:simple_spread_v3, penalty, ..."] = "penalty"
    continuous: Annotated[bool, "continuous actions, if the environment has both kinds, as those of MPE do"] = False
    groups: Annotated[str, "shared or independent weights of the agents"] = "independent"
    steps: Annotated[int, "environment steps; 0 selects the recipe's"] = 0
    env_num: Annotated[int, "number of parallel environments; 0 selects the recipe's"] = 0
    actors: Annotated[int, "remote actors that share them; 0 keeps them in this process"] = 0
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "400 steps only, to see that everything runs"] = False


def maker(settings: Settings) -> Any:
    options: dict[str, Any] = {"continuous_actions": True} if settings.continuous else {}
    return partial(make_joint_env, settings.env, **options)


def make_agent(settings: Settings) -> parl.Agent:
    env, groups = maker(settings)(), settings.groups
    model = parl.networks.for_team(env.observation_space, env.action_space, "actor-critic", groups=groups)  # type: ignore[arg-type]  # checked there
    env.close()
    recipe = training.find_recipe("MADDPG", settings.env)
    return parl.Agent(parl.algorithms.MADDPG(model, **recipe.algorithm), seed=settings.seed)


def train(agent: parl.Agent, envs: Any, make: Any, run: training.Run, settings: Settings) -> None:
    recipe = training.find_recipe("MADDPG", settings.env)
    loop = recipe.with_steps(settings.steps or recipe.steps).loop
    episodes, every = 20, recipe.evaluate_every or 50_000
    if settings.smoke:
        loop, every, episodes = loop.with_total_steps(400), 400, 2
    training.train_off_policy(
        agent,
        envs,
        loop,
        evaluator=lambda: training.evaluate(agent, make, episodes, seed=2),
        evaluate_every=every,
        callbacks=training.standard_callbacks(run, agent, title=f"MADDPG on {settings.env}"),
        checkpoints=training.Checkpoints(run, every=every),
        seed=settings.seed,
    )
    run.save(agent)
    print(f"Team's return of {5 * episodes} episodes: {training.evaluate(agent, make, 5 * episodes, seed=1).mean:.2f}")


def main(settings: Settings) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads
    if settings.backend:
        parl.set_backend(settings.backend)
    env_num = settings.env_num or training.find_recipe("MADDPG", settings.env).num_envs
    share = math.ceil(env_num / max(settings.actors, 1))
    make = maker(settings)
    with training.open_run("maddpg", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(settings)
        with (
            training.choose_actors(settings.actors, settings.address) as actors,
            training.make_vector_env(make, env_num, actors=actors, envs_per_actor=share) as envs,
        ):
            train(agent, envs, make, run, settings)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
