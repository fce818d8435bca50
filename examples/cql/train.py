"""CQL learns from logged data: a recorded Pendulum, or a Minari dataset; `--help` lists the settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import parl
from parl import training
from parl_core.offline import OfflineDataset, read_minari, read_npz

# Networks this small are slower on several threads; read by torch and paddle.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Settings:
    """Trains CQL on logged transitions; the environment only serves for evaluations."""

    env: Annotated[str, "registered environment with continuous observations and actions, for the evaluations"] = (
        "Pendulum-v1"
    )
    data: Annotated[str, "npz file to learn from; empty records one of Pendulum-v1 in the run's folder"] = ""
    minari: Annotated[str, "id of a Minari dataset to learn from instead; downloaded if it is missing"] = ""
    recorded: Annotated[int, "episodes to record"] = 200
    updates: Annotated[int, "gradient steps"] = 10_000
    imitate: Annotated[int, "updates at the beginning in which the actor only imitates the data"] = 1_000
    batch_size: Annotated[int, "transitions per update"] = 64
    hidden: Annotated[int, "units of each of the two hidden layers"] = 64
    actor_lr: Annotated[float, "learning rate of the actor's Adam"] = 1e-3
    critic_lr: Annotated[float, "learning rate of the critics' Adam"] = 1e-3
    min_q_weight: Annotated[float, "weight of the term that holds down values of actions not in the data"] = 5.0
    gamma: Annotated[float, "discount of one step"] = 0.99
    episodes: Annotated[int, "episodes of the evaluation after training"] = 100
    seed: Annotated[int, "seed of weights, behaviour and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "5 episodes and 60 updates only, to see that everything runs"] = False


def behaviour(rng: np.random.Generator) -> Callable[[Any], Any]:
    """Return a controller that swings Pendulum up and holds it upright; each episode has its own noise level."""
    noise = rng.uniform(0.2, 1.0)

    def torque(obs: Any) -> Any:
        cos, sin, speed = obs
        if cos > 0.9:
            wanted = -(8.0 * np.arctan2(sin, cos) + 1.5 * speed) / 2.0
        else:
            energy = speed**2 / 6.0 + 5.0 * (cos - 1.0)  # 0 if it just reaches the top
            wanted = np.sign(speed) * (1.0 if energy < 0.0 else -1.0)
        return np.clip([(1.0 - noise) * wanted + noise * rng.uniform(-1.0, 1.0)], -1.0, 1.0)

    return torque


def logged_data(run: training.Run, settings: Settings) -> OfflineDataset:
    if settings.minari:
        return read_minari(settings.minari, download=True)
    path = Path(settings.data) if settings.data else run.path / "log.npz"
    if not settings.data and not path.exists():  # a resumed run has it
        episodes = 5 if settings.smoke else settings.recorded
        training.record_episodes("Pendulum-v1", behaviour, episodes, seed=settings.seed).save(path)
        run.saved(path, f"{episodes} episodes of the behaviour")
    return read_npz(path)


def make_agent(act_dim: int, settings: Settings) -> parl.Agent:
    fc, hidden = parl.layers.fc, settings.hidden

    class Actor(parl.Model):
        def __init__(self) -> None:
            self.fc_1, self.fc_2 = fc(hidden, act="relu"), fc(hidden, act="relu")
            self.mean, self.log_std = fc(act_dim), fc(act_dim)

        def forward(self, obs: Any) -> Any:
            features = self.fc_2(self.fc_1(obs))
            return self.mean(features), parl.layers.clip(self.log_std(features), -20.0, 2.0)

    class Critic(parl.Model):
        def __init__(self) -> None:
            self.fc_1, self.fc_2, self.value = fc(hidden, act="relu"), fc(hidden, act="relu"), fc(1)

        def forward(self, obs: Any, action: Any) -> Any:
            return self.value(self.fc_2(self.fc_1(parl.layers.concat([obs, action], axis=1))))

    class ActorCritic(parl.Model):
        def __init__(self) -> None:
            self.actor, self.critic_1, self.critic_2 = Actor(), Critic(), Critic()

        def policy(self, obs: Any) -> Any:
            return self.actor(obs)

        def value(self, obs: Any, action: Any) -> Any:
            return self.critic_1(obs, action), self.critic_2(obs, action)

        def get_actor_params(self) -> list[Any]:
            return list(self.actor.parameters())

    algorithm = parl.algorithms.CQL(
        ActorCritic(),
        gamma=settings.gamma,
        actor_lr=settings.actor_lr,
        critic_lr=settings.critic_lr,
        policy_eval_start=settings.imitate,
        min_q_weight=settings.min_q_weight,
    )
    return parl.Agent(algorithm, seed=settings.seed)


def main(settings: Settings) -> None:
    updates, episodes, every = (60, 5, 30) if settings.smoke else (settings.updates, settings.episodes, 1_000)
    with training.open_run("cql", settings) as run:
        training.seed_everything(settings.seed)
        if settings.backend:
            parl.set_backend(settings.backend)
        env = training.StandardEnv(settings.env)
        dataset = logged_data(run, settings)
        agent = make_agent(env.act_dim, settings)
        training.train_offline(
            agent,
            dataset,
            training.OfflineSettings(updates, settings.batch_size, report_every=every),
            evaluator=lambda: training.evaluate(agent, env.make_to_evaluate, episodes=min(episodes, 20), seed=2),
            evaluate_every=every,
            callbacks=training.standard_callbacks(
                run, agent, title=f"CQL on {settings.env}, seed {settings.seed}", steps="gradient steps"
            ),
            checkpoints=training.Checkpoints(run, every=every),
            seed=settings.seed,
        )
        print(f"Mean return of the logged episodes: {dataset.episode_returns.mean():.1f}")
        # the best weights are selected in the environment; with a log alone, take the last ones
        for name in ("best", "last"):
            agent.restore(run.path / f"{name}.ckpt")
            played = training.evaluate(agent, env.make_to_evaluate, episodes, seed=1)
            print(f"Mean return of {episodes} episodes, {name} weights: {played.mean:.1f}, deviation {played.std:.1f}")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
