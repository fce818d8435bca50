"""TD3 learns Pendulum, or any MuJoCo task by `--env`; `--help` lists the settings."""

import os
from dataclasses import dataclass
from typing import Annotated, Any

import parl
from parl import training

# Networks this small are slower on several threads; read by torch and paddle.
os.environ.setdefault("OMP_NUM_THREADS", "1")

GOALS = {"Pendulum-v1": -150.0}  # return of an evaluation; two consecutive ones end the run
RECIPE = training.find_recipe("TD3", "Pendulum-v1")


@dataclass(frozen=True)
class Settings:
    """Trains TD3 on an environment whose observations and actions are vectors of numbers."""

    env: Annotated[str, "registered environment"] = "Pendulum-v1"
    steps: Annotated[int, "environment steps"] = RECIPE.steps
    learning_starts: Annotated[int, "steps with random actions before the first update"] = RECIPE.loop.learning_starts
    batch_size: Annotated[int, "transitions per update"] = RECIPE.loop.batch_size
    lr: Annotated[float, "learning rate of Adam, for actor and critics"] = RECIPE.algorithm["actor_lr"]
    gamma: Annotated[float, "discount of one step"] = RECIPE.algorithm["gamma"]
    noise: Annotated[float, "standard deviation of the exploration noise; actions lie in [-1, 1]"] = (
        RECIPE.loop.exploration["noise"]
    )
    episodes: Annotated[int, "episodes of the evaluation after training"] = 100
    seed: Annotated[int, "seed of weights, environment and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "train for 250 steps only, to see that everything runs"] = False


def make_agent(act_dim: int, settings: Settings) -> parl.Agent:
    fc = parl.layers.fc

    class Actor(parl.Model):
        def __init__(self) -> None:
            self.fc_1, self.fc_2, self.action = fc(256, act="relu"), fc(256, act="relu"), fc(act_dim, act="tanh")

        def forward(self, obs: Any) -> Any:
            return self.action(self.fc_2(self.fc_1(obs)))

    class Critic(parl.Model):
        def __init__(self) -> None:
            self.fc_1, self.fc_2, self.value = fc(256, act="relu"), fc(256, act="relu"), fc(1)

        def forward(self, obs: Any, action: Any) -> Any:
            return self.value(self.fc_2(self.fc_1(parl.layers.concat([obs, action], axis=1))))

    class ActorCritic(parl.Model):
        def __init__(self) -> None:
            self.actor, self.critic_1, self.critic_2 = Actor(), Critic(), Critic()

        def policy(self, obs: Any) -> Any:
            return self.actor(obs)

        def value(self, obs: Any, action: Any) -> Any:
            return self.critic_1(obs, action), self.critic_2(obs, action)

        def Q1(self, obs: Any, action: Any) -> Any:  # noqa: N802 - the actor climbs this critic alone
            return self.critic_1(obs, action)

        def get_actor_params(self) -> list[Any]:
            return list(self.actor.parameters())

    rates: dict[str, Any] = {"actor_lr": settings.lr, "critic_lr": settings.lr}
    algorithm = parl.algorithms.TD3(ActorCritic(), gamma=settings.gamma, **rates)
    return parl.Agent(algorithm, seed=settings.seed)


def train(agent: parl.Agent, env: training.StandardEnv, run: training.Run, settings: Settings) -> Any:
    steps = 250 if settings.smoke else settings.steps
    loop = training.OffPolicySettings(
        steps,
        learning_starts=min(settings.learning_starts, steps // 2),
        batch_size=settings.batch_size,
        memory_size=1_000_000,
        exploration={"noise": settings.noise},
    )

    def check() -> training.Evaluation:
        return training.evaluate(agent, env.make_to_evaluate, episodes=5 if settings.smoke else 20, seed=2)

    title = f"TD3 on {settings.env}, seed {settings.seed}"
    with training.make_vector_env(env.make, num_envs=1) as envs:
        return training.train_off_policy(
            agent,
            envs,
            loop,
            evaluator=check,
            evaluate_every=max(steps // 20, 200),
            callbacks=training.standard_callbacks(run, agent, title=title, goal=GOALS.get(settings.env)),
            checkpoints=training.Checkpoints(run, every=max(steps // 20, 200)),
            seed=settings.seed,
        )


def main(settings: Settings) -> None:
    with training.open_run("td3", settings) as run:
        training.seed_everything(settings.seed)
        if settings.backend:
            parl.set_backend(settings.backend)
        env = training.StandardEnv(settings.env)
        agent = make_agent(env.act_dim, settings)
        train(agent, env, run, settings)
        best = training.evaluate(agent, env.make_to_evaluate, 5 if settings.smoke else settings.episodes, seed=1)
        print(f"Mean return of {len(best.episodes)} evaluation episodes: {best.mean:.1f}, deviation {best.std:.1f}")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
