"""PPO on CartPole, MuJoCo or Atari, with environments in this process, in remote actors or on a cluster."""

import math
import os
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium

import parl
from parl import training


@dataclass(frozen=True)
class Settings:
    """Trains PPO; preprocessing, network and hyper-parameters follow from the kind of environment."""

    env: Annotated[str, "CartPole-v1, Acrobot-v1, HalfCheetah-v5, ALE/Pong-v5 or others of these kinds"] = "CartPole-v1"
    steps: Annotated[int, "environment steps; 0 selects the recipe's"] = 0
    env_num: Annotated[int, "number of parallel environments; 0 selects the recipe's"] = 0
    actors: Annotated[int, "remote actors that share them; 0 keeps them in this process"] = 0
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "two rollouts only, to see that everything runs"] = False


def make_agent(env: training.StandardEnv) -> parl.Agent:
    recipe = env.recipe("PPO")
    network = parl.networks.AtariActorCritic if env.kind == "atari" else parl.networks.ActorCritic
    return parl.Agent(parl.algorithms.PPO(network(env.act_dim, **recipe.sizes), **recipe.algorithm))


def train(agent: parl.Agent, envs: Any, env: training.StandardEnv, run: training.Run, settings: Settings) -> None:
    recipe = env.recipe("PPO")
    loop = recipe.with_steps(settings.steps or recipe.steps).loop
    evaluate_every, episodes = recipe.evaluate_every or 2048, 4 if env.kind == "atari" else 20
    if settings.smoke:
        evaluate_every, episodes = envs.num_envs * loop.n_steps, 1
        loop = loop.with_total_steps(2 * evaluate_every)
    make, normalization = env.make_to_evaluate, None
    if recipe.normalize:  # training normalises observations and rewards, evaluation only observations
        envs = normalization = training.NormalizeVector(envs, gamma=loop.gamma)

        def make() -> gymnasium.Env[Any, Any]:
            return normalization.as_seen(env.make_to_evaluate())

    callbacks = training.standard_callbacks(
        run, agent, title=f"PPO on {env.env_id}", goal=env.goal, normalization=normalization
    )
    training.train_on_policy(
        agent,
        envs,
        loop,
        evaluator=lambda: training.evaluate(agent, make, episodes, seed=2),
        evaluate_every=evaluate_every,
        callbacks=callbacks,
        checkpoints=training.Checkpoints(run, every=max(20_000, evaluate_every)),
        seed=settings.seed,
    )
    run.save(agent, normalization=normalization)
    print(f"Return of {5 * episodes} episodes: {training.evaluate(agent, make, 5 * episodes, seed=1).mean:.1f}")


def main(settings: Settings) -> None:
    env = training.StandardEnv(settings.env)
    if env.kind != "atari":  # networks this small are slower on several threads; torch and paddle read this
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if settings.backend:
        parl.set_backend(settings.backend)
    env_num = settings.env_num or env.recipe("PPO").num_envs
    share = math.ceil(env_num / max(settings.actors, 1))
    with training.open_run("ppo", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(env)
        with (
            training.choose_actors(settings.actors, settings.address) as actors,
            training.make_vector_env(env.make, env_num, actors=actors, envs_per_actor=share) as envs,
        ):
            train(agent, envs, env, run, settings)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
