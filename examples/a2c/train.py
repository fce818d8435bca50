"""A2C: remote actors play with the same weights, and the learner takes one step on the data of all, in alternation."""

from __future__ import annotations  # `make_agent` travels to actors, where the names of types are unknown

import os
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import parl
from parl import training
from parl_core.schedules import linear


@dataclass(frozen=True)
class Settings:
    """Trains A2C with remote actors on CartPole-v1, on tasks like it, or on Atari games."""

    env: Annotated[str, "CartPole-v1, Acrobot-v1, ALE/Pong-v5 or others of these kinds"] = "CartPole-v1"
    steps: Annotated[int, "environment steps; 0 selects the recipe's"] = 0
    env_num: Annotated[int, "environments of all actors together; 0 selects the recipe's"] = 0
    actors: Annotated[int, "remote actors that share them; 0 plays in this process, for breakpoints"] = 2
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "a few updates only, to see that everything runs"] = False


# A round of all actors is expensive, so it is longer than the recipe's rollouts, with a higher rate, close to PARL's.
N_STEPS, RATE = 20, 1e-3


def make_agent(env: training.StandardEnv, backend: str) -> parl.Agent:
    """Called by the learner and in every actor."""
    if backend:
        parl.set_backend(backend)
    networks, fc = parl.networks, parl.layers.fc

    class ActorCritic(parl.Model):
        """Logits and value over one trunk."""

        def __init__(self) -> None:
            self.trunk = networks.NatureCNN() if env.kind == "atari" else networks.MLP((64, 64), "tanh")
            self.logits, self.values = fc(env.act_dim), fc(1)

        def policy_and_value(self, obs: Any) -> Any:
            features = self.trunk(obs)
            return self.logits(features), self.values(features)

    return parl.Agent(parl.algorithms.A2C(ActorCritic()))


def train(agent: parl.Agent, env: training.StandardEnv, actors: Any, run: training.Run, settings: Settings) -> None:
    recipe = env.recipe("A2C")
    episodes = 4 if env.kind == "atari" else 20  # episodes of an evaluation during training
    steps = settings.steps or (2_000 if settings.smoke else recipe.steps)
    n_actors = max(settings.actors, 1)
    loop = training.ActorLearnerSettings(
        steps,
        n_actors=n_actors,
        envs_per_group=(settings.env_num or recipe.num_envs) // n_actors,
        n_steps=N_STEPS,
        max_lag=0,  # rounds: actors and learner take turns
        rates={"lr": linear(RATE, 0.0, steps), "entropy_coef": 0.01 if env.kind == "atari" else 0.0},
        report_every=steps // 100,
    )
    training.train_actor_learner(
        agent,
        partial(make_agent, env, settings.backend),
        env.make,
        loop,
        actors=actors,
        evaluator=lambda: training.evaluate(agent, env.make_to_evaluate, episodes, seed=2),
        evaluate_every=steps // (2 if settings.smoke else 20),
        callbacks=training.standard_callbacks(run, agent, title=f"A2C on {env.env_id}", goal=env.goal),
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
    with training.open_run("a2c", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(env, settings.backend)
        with training.choose_actors(settings.actors, settings.address) as actors:
            train(agent, env, actors, run, settings)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
