"""GA3C: actors only have environments; the learner chooses the actions of all, many in one forward pass."""

from __future__ import annotations  # `make_agent` travels to actors, where the names of types are unknown

import os
from dataclasses import dataclass, replace
from typing import Annotated, Any

import parl
from parl import training


@dataclass(frozen=True)
class Settings:
    """Trains A3C with its inference on the learner, on CartPole-v1, on tasks like it, or on Atari games."""

    env: Annotated[str, "CartPole-v1, Acrobot-v1, ALE/Pong-v5 or others of these kinds"] = "CartPole-v1"
    steps: Annotated[int, "environment steps; 0 selects the recipe's"] = 0
    actors: Annotated[int, "remote actors; 0 plays in this process, for breakpoints"] = 2
    env_num: Annotated[int, "environments per actor, in two groups that take turns to step and to wait"] = 16
    max_lag: Annotated[int, "maximum number of updates by which actors may lag behind the learner"] = 1
    address: Annotated[str, "address of a running cluster for the actors; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "a few updates only, to see that everything runs"] = False


def make_agent(env: training.StandardEnv, backend: str) -> parl.Agent:
    if backend:
        parl.set_backend(backend)
    networks, fc = parl.networks, parl.layers.fc

    class ActorCritic(parl.Model):
        """Logits and value over one trunk."""

        def __init__(self) -> None:
            self.trunk = networks.NatureCNN() if env.kind == "atari" else networks.MLP((128, 128))
            self.logits, self.values = fc(env.act_dim), fc(1)

        def policy_and_value(self, obs: Any) -> Any:
            features = self.trunk(obs)
            return self.logits(features), self.values(features)

    return parl.Agent(parl.algorithms.A3C(ActorCritic()))


def train(agent: parl.Agent, env: training.StandardEnv, actors: Any, run: training.Run, settings: Settings) -> None:
    recipe = env.recipe("A3C")
    episodes = 4 if env.kind == "atari" else 20  # episodes of an evaluation during training
    steps = settings.steps or (2_000 if settings.smoke else recipe.steps)
    n_actors = max(settings.actors, 1)
    loop = replace(
        recipe.with_steps(steps).loop,
        n_actors=n_actors,
        groups=2 * n_actors,
        envs_per_group=settings.env_num // 2,
        max_lag=settings.max_lag,
        report_every=max(steps // 100, 1),
    )
    training.train_actor_learner(
        agent,
        None,  # actors need no agent
        env.make,
        loop,
        actors=actors,
        evaluator=lambda: training.evaluate(agent, env.make_to_evaluate, episodes, seed=2),
        evaluate_every=steps // (2 if settings.smoke else 20),
        callbacks=training.standard_callbacks(run, agent, title=f"GA3C on {env.env_id}", goal=env.goal),
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
    with training.open_run("ga3c", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(env, settings.backend)
        with training.choose_actors(settings.actors, settings.address) as actors:
            train(agent, env, actors, run, settings)
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
