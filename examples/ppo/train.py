"""PPO on CartPole, MuJoCo or Atari, with environments in this process, in remote actors or on a cluster."""

import math
import os
from dataclasses import dataclass, field
from typing import Annotated, Any

import gymnasium

import parl
from parl import training


@dataclass(frozen=True)
class Settings:
    """Trains PPO; preprocessing, network and hyper-parameters follow from the kind of environment."""

    env: Annotated[str, "CartPole-v1, Acrobot-v1, HalfCheetah-v5, ALE/Pong-v5 or others of these kinds"] = "CartPole-v1"
    steps: Annotated[int, "environment steps; 0 takes the recipe's"] = 0
    env_num: Annotated[int, "environments that are stepped together; 0 takes the recipe's"] = 0
    actors: Annotated[int, "remote actors that share them; 0 keeps them in this process"] = 0
    address: Annotated[str, "of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty takes the installed one"] = ""
    runs: Annotated[str, "folder in which every run gets a new one"] = "runs"
    resume: Annotated[str, "folder of a run to go on with, with its settings"] = ""
    smoke: Annotated[bool, "two rollouts only, to see that everything runs"] = False


@dataclass(frozen=True)
class Recipe:
    """The settings that differ between kinds of environments."""

    env_num: int
    loop: training.OnPolicySettings
    algorithm: dict[str, Any] = field(default_factory=dict)
    evaluate_every: int = 2048
    episodes: int = 20  # of an evaluation while training


RECIPES = {
    "discrete": Recipe(  # RL Baselines3 Zoo, CartPole-v1
        8,
        training.OnPolicySettings(100_000, 32, 20, 256, 0.98, 0.8, lr=1e-3, clip=0.2, decay=True, entropy_coef=0.0),
        {"value_loss_coef": 1.0, "use_clipped_value_loss": False},
    ),
    "continuous": Recipe(  # CleanRL, ppo_continuous_action.py
        1,
        training.OnPolicySettings(1_000_000, 2048, 10, 64, lr=3e-4, clip=0.2, decay=True, entropy_coef=0.0),
        evaluate_every=50_000,
    ),
    "atari": Recipe(  # CleanRL, ppo_atari.py
        8,
        training.OnPolicySettings(10_000_000, 128, 4, 256, lr=2.5e-4, clip=0.1, decay=True, entropy_coef=0.01),
        evaluate_every=250_000,
        episodes=4,
    ),
}
"""Loops in the order of their settings: total steps, steps of a rollout, epochs, minibatch, and gamma, lambda."""


def make_agent(env: training.StandardEnv) -> parl.Agent:
    continuous = env.kind == "continuous"
    model: parl.Model
    if env.kind == "atari":
        model = parl.networks.AtariActorCritic(env.act_dim)
    else:
        model = parl.networks.ActorCritic(env.act_dim, hidden=(64, 64), continuous=continuous)
    return parl.Agent(parl.algorithms.PPO(model, continuous_action=continuous, **env.pick(RECIPES).algorithm))


def train(agent: parl.Agent, envs: Any, env: training.StandardEnv, run: training.Run, settings: Settings) -> None:
    recipe = env.pick(RECIPES)
    loop = recipe.loop.with_total_steps(settings.steps or recipe.loop.total_steps)
    evaluate_every, episodes = recipe.evaluate_every, recipe.episodes
    if settings.smoke:
        evaluate_every, episodes = envs.num_envs * loop.n_steps, 1
        loop = loop.with_total_steps(2 * evaluate_every)
    make, normalization = env.make_to_evaluate, None
    if env.kind == "continuous":  # observations and rewards of unit size, in an evaluation observations only
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
    env_num = settings.env_num or env.pick(RECIPES).env_num
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
