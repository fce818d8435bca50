"""DQN, and its variants by flags, learns CartPole or an Atari game; `--help` lists the settings."""

import os
from dataclasses import dataclass, replace
from typing import Annotated, Any

import parl
from parl import training
from parl_core.replay import FrameReplayMemory, Prioritized

# Networks this small are slower on several threads; read by torch and paddle.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Settings:
    """Trains DQN on an environment with discrete actions: vectors (CartPole-v1) or an Atari game (ALE/Pong-v5)."""

    env: Annotated[str, "registered environment"] = "CartPole-v1"
    steps: Annotated[int, "environment steps; 0 selects the recipe's: 100,000, or 10 million for games"] = 0
    double: Annotated[bool, "double DQN: the trained network selects the action that the target network evaluates"] = (
        False
    )
    dueling: Annotated[bool, "dueling network: a state value and advantages of actions"] = False
    n_step: Annotated[
        int, "rewards that are summed before bootstrapping; 0 selects the recipe's: 10, or 1 for games"
    ] = 0
    prioritized: Annotated[bool, "prioritised replay: transitions with larger errors are drawn more often"] = False
    episodes: Annotated[int, "episodes of the evaluation after training"] = 100
    seed: Annotated[int, "seed of weights, environment and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "train for 1500 steps only, to see that everything runs"] = False


def make_agent(env: training.StandardEnv, settings: Settings) -> parl.Agent:
    fc, conv2d = parl.layers.fc, parl.layers.conv2d

    class Vectors(parl.Model):
        def __init__(self) -> None:
            self.fc_1, self.fc_2 = fc(64, act="relu"), fc(64, act="relu")

        def forward(self, obs: Any) -> Any:
            return self.fc_2(self.fc_1(obs))

    class Frames(parl.Model):
        def __init__(self) -> None:
            self.conv_1, self.conv_2 = conv2d(32, 8, stride=4, act="relu"), conv2d(64, 4, stride=2, act="relu")
            self.conv_3, self.fc = conv2d(64, 3, act="relu"), fc(512, act="relu")

        def forward(self, obs: Any) -> Any:
            return self.fc(self.conv_3(self.conv_2(self.conv_1(parl.layers.cast(obs, "float32") / 255.0))))

    class QNetwork(parl.Model):
        def __init__(self) -> None:
            self.features = env.pick({"discrete": Vectors, "atari": Frames})()
            self.advantage = fc(env.act_dim)
            self.state_value = fc(1) if settings.dueling else None

        def value(self, obs: Any) -> Any:
            features = self.features(obs)
            advantage = self.advantage(features)
            if self.state_value is None:
                return advantage  # with a single layer, the values of the actions
            mean = parl.layers.reduce_mean(advantage, dim=1, keep_dim=True)
            return self.state_value(features) + advantage - mean

    algorithm = parl.algorithms.DQN(QNetwork(), double=settings.double, **env.recipe("DQN").algorithm)
    return parl.Agent(algorithm, seed=settings.seed)


def train(agent: parl.Agent, env: training.StandardEnv, run: training.Run, settings: Settings) -> Any:
    recipe = env.recipe("DQN")
    loop = recipe.with_steps(1500 if settings.smoke else settings.steps or recipe.steps).loop
    prioritized = Prioritized() if settings.prioritized else None
    loop = replace(loop, n_step=settings.n_step or loop.n_step, prioritized=prioritized)
    memory = None
    if env.kind == "atari":  # a memory that stores every frame once, not eight times
        sampling = {"n_step": loop.n_step, "gamma": agent.alg.gamma, "sampling": loop.prioritized}
        memory = FrameReplayMemory(loop.memory_size, (4, 84, 84), seed=settings.seed, **sampling)

    def check() -> training.Evaluation:
        return training.evaluate(agent, env.make_to_evaluate, episodes=5 if settings.smoke else 20, seed=2)

    title = f"DQN on {settings.env}, seed {settings.seed}"
    with training.make_vector_env(env.make, num_envs=1) as envs:
        return training.train_off_policy(
            agent,
            envs,
            loop,
            memory=memory,
            evaluator=check,
            evaluate_every=max(loop.total_steps // 50, 500),
            callbacks=training.standard_callbacks(run, agent, title=title, goal=env.goal),
            checkpoints=training.Checkpoints(run, every=max(loop.total_steps // 20, 500)),
            seed=settings.seed,
        )


def main(settings: Settings) -> None:
    with training.open_run("dqn", settings) as run:
        training.seed_everything(settings.seed)
        if settings.backend:
            parl.set_backend(settings.backend)
        env = training.StandardEnv(settings.env)
        agent = make_agent(env, settings)
        train(agent, env, run, settings)
        best = training.evaluate(agent, env.make_to_evaluate, 5 if settings.smoke else settings.episodes, seed=1)
        print(f"Mean return of {len(best.episodes)} evaluation episodes: {best.mean:.1f}, deviation {best.std:.1f}")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
