"""IMPALA: remote actors play while the learner learns; V-trace corrects for their older weights."""

from __future__ import annotations  # `make_agent` travels to actors, where the names of types are unknown

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import parl
from parl import training


@dataclass(frozen=True)
class Settings:
    """Trains IMPALA with remote actors on CartPole-v1, on tasks like it, or on Atari games."""

    env: Annotated[str, "CartPole-v1, Acrobot-v1, ALE/Pong-v5 or others of these kinds"] = "CartPole-v1"
    steps: Annotated[int, "environment steps; 0 selects the recipe's"] = 0
    actors: Annotated[int, "remote actors; 0 plays in this process, for breakpoints"] = 2
    env_num: Annotated[int, "environments per actor"] = 5
    max_lag: Annotated[int, "maximum number of updates by which actors may lag behind the learner"] = 2
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "a few updates only, to see that everything runs"] = False


def make_agent(env: training.StandardEnv, backend: str) -> parl.Agent:
    """Called by the learner and in every actor."""
    if backend:
        parl.set_backend(backend)
    recipe = env.recipe("IMPALA")
    network = parl.networks.AtariActorCritic if env.kind == "atari" else parl.networks.ActorCritic
    return parl.Agent(parl.algorithms.IMPALA(network(env.act_dim, **recipe.sizes), **recipe.algorithm))


def train(agent: parl.Agent, env: training.StandardEnv, actors: Any, run: training.Run, settings: Settings) -> None:
    recipe = env.recipe("IMPALA")
    episodes = 4 if env.kind == "atari" else 20  # episodes of an evaluation during training
    steps = settings.steps or (2_000 if settings.smoke else recipe.steps)
    n_actors = max(settings.actors, 1)
    loop = replace(
        recipe.with_steps(steps).loop,
        n_actors=n_actors,
        envs_per_group=settings.env_num,
        max_lag=settings.max_lag,
        deterministic=False,  # the learner uses fragments as they arrive
        report_every=max(steps // 100, 1),
    )
    training.train_actor_learner(
        agent,
        partial(make_agent, env, settings.backend),
        env.make,
        loop,
        actors=actors,
        evaluator=lambda: training.evaluate(agent, env.make_to_evaluate, episodes, seed=2),
        evaluate_every=steps // (2 if settings.smoke else 20),
        callbacks=training.standard_callbacks(run, agent, title=f"IMPALA on {env.env_id}", goal=env.goal),
        checkpoints=training.Checkpoints(run, every=max(steps // 20, 1)),
        seed=settings.seed,
    )
    run.save(agent)
    played = training.evaluate(agent, env.make_to_evaluate, 5 * episodes, seed=1)
    print(f"Return of {5 * episodes} episodes: {played.mean:.1f}")


def main(settings: Settings) -> None:
    env = training.StandardEnv(settings.env)
    if env.kind != "atari":  # networks this small are slower on several threads; torch and paddle read this
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    with training.open_run("impala", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(env, settings.backend)
        with training.choose_actors(settings.actors, settings.address) as actors:
            train(agent, env, actors, run, settings)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
