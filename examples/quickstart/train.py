"""PPO learns CartPole-v1 while its environments run in remote actors; `--help` lists the settings."""

import os
from dataclasses import dataclass
from typing import Annotated, Any

import parl
from parl import training

# Networks this small are slower on several threads, ten times so where the cores are shared; read by torch and paddle.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ENV, GOAL = "CartPole-v1", 475.0
RECIPE = training.find_recipe("PPO", ENV)  # RL Baselines3 Zoo's hyper-parameters


@dataclass(frozen=True)
class Settings:
    """Trains PPO on CartPole-v1, saves the agent, and evaluates it again in a fresh process."""

    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    actors: Annotated[int, "processes that share the 8 environments; 0 keeps them in this one"] = 2
    episodes: Annotated[int, "episodes of the evaluation after training"] = 100
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    smoke: Annotated[bool, "train for 4096 steps only, to see that everything runs"] = False
    restore: Annotated[str, "evaluate this saved agent instead of training one"] = ""


def make_agent() -> parl.Agent:
    fc = parl.layers.fc

    class ActorCritic(parl.Model):
        def __init__(self) -> None:
            self.policy_1, self.policy_2, self.logits = fc(64, act="tanh"), fc(64, act="tanh"), fc(2)
            self.value_1, self.value_2, self.value_3 = fc(64, act="tanh"), fc(64, act="tanh"), fc(1)

        def policy(self, obs: Any) -> Any:
            return self.logits(self.policy_2(self.policy_1(obs)))

        def value(self, obs: Any) -> Any:
            return self.value_3(self.value_2(self.value_1(obs)))

    return parl.Agent(parl.algorithms.PPO(ActorCritic(), **RECIPE.algorithm))


def train(agent: parl.Agent, run: training.Run, settings: Settings) -> None:
    steps = 4096 if settings.smoke else RECIPE.steps
    loop = RECIPE.loop.with_total_steps(steps)

    def check() -> training.Evaluation:
        return training.evaluate(agent, ENV, episodes=20, seed=2)

    callbacks = training.standard_callbacks(run, agent, title=f"PPO on {ENV}, seed {settings.seed}", goal=GOAL)
    actors = training.open_actors("remote", cpu_num=settings.actors) if settings.actors else training.open_actors()
    with actors, training.make_vector_env(ENV, num_envs=8, actors=actors) as envs:
        training.train_on_policy(agent, envs, loop, evaluator=check, callbacks=callbacks, seed=settings.seed)


def main(settings: Settings) -> None:
    with training.Run("quickstart", settings.runs) as run:
        training.seed_everything(settings.seed)
        if settings.backend:
            parl.set_backend(settings.backend)
        agent = make_agent()
        if settings.restore:
            agent.restore(settings.restore)
            print(training.evaluate(agent, ENV, settings.episodes, seed=1).mean)
            return
        train(agent, run, settings)
        saved = run.save(agent)
        trained = training.evaluate(agent, ENV, settings.episodes, seed=1).mean
        print(f"Mean return of {settings.episodes} evaluation episodes: {trained}")
        restored = float(training.run_again("--restore", saved))
        print(f"Restored in a fresh process: {restored} ({'the same' if restored == trained else 'not the same'})")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
