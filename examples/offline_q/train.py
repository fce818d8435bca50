"""Q-learning from logged data: records CartPole, then learns from the file alone; `--help` lists the settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import parl
from parl import training
from parl_core.offline import OfflineDataset, read_npz
from parl_core.schedules import linear

# Networks this small are slower on several threads; read by torch and paddle.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Settings:
    """Trains OfflineQ on logged transitions; the environment only serves for evaluations."""

    env: Annotated[str, "registered environment with discrete actions, for the evaluations"] = "CartPole-v1"
    data: Annotated[str, "npz file to learn from; empty records one of CartPole-v1 in the run's folder"] = ""
    recorded: Annotated[int, "episodes to record"] = 400
    updates: Annotated[int, "gradient steps"] = 10_000
    batch_size: Annotated[int, "transitions per update"] = 128
    heads: Annotated[int, "heads of the network; random mixtures of several are trained (REM), one is DQN"] = 1
    lr: Annotated[float, "initial learning rate of Adam; decays linearly to 0"] = 3e-4
    gamma: Annotated[float, "discount of one step"] = 0.99
    reward_scale: Annotated[float, "factor of the rewards: values near 1 suit the Huber loss"] = 0.05
    episodes: Annotated[int, "episodes of the evaluation after training"] = 100
    seed: Annotated[int, "seed of weights, behaviour and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    resume: Annotated[str, "folder of a run to continue, with its settings"] = ""
    smoke: Annotated[bool, "5 episodes and 200 updates only, to see that everything runs"] = False


def behaviour(rng: np.random.Generator) -> Callable[[Any], Any]:
    """Return a policy for CartPole, with a different share of random actions in each episode."""
    at_random = rng.uniform(0.1, 1.0)

    def push(obs: Any) -> Any:
        falls_right = obs[2] + 0.3 * obs[3] > 0.0
        return rng.integers(2) if rng.random() < at_random else int(falls_right)

    return push


def logged_data(run: training.Run, settings: Settings) -> OfflineDataset:
    path = Path(settings.data) if settings.data else run.path / "log.npz"
    if not settings.data and not path.exists():  # a resumed run has it
        episodes = 5 if settings.smoke else settings.recorded
        training.record_episodes("CartPole-v1", behaviour, episodes, seed=settings.seed).save(path)
        run.saved(path, f"{episodes} episodes of the behaviour")
    return read_npz(path)


def make_agent(act_dim: int, updates: int, settings: Settings) -> parl.Agent:
    fc = parl.layers.fc

    class QNetwork(parl.Model):
        def __init__(self) -> None:
            self.fc_1, self.fc_2 = fc(256, act="relu"), fc(256, act="relu")
            self.values = fc(settings.heads * act_dim)

        def value(self, obs: Any) -> Any:
            values = self.values(self.fc_2(self.fc_1(obs)))
            return values if settings.heads == 1 else parl.layers.reshape(values, [-1, settings.heads, act_dim])

    algorithm = parl.algorithms.OfflineQ(
        QNetwork(),
        gamma=settings.gamma,
        lr=linear(settings.lr, 0.0, updates),
        heads=settings.heads,
        double=True,
        sync_every=500,
    )
    return parl.Agent(algorithm, seed=settings.seed)


def main(settings: Settings) -> None:
    updates, episodes, every = (200, 5, 100) if settings.smoke else (settings.updates, settings.episodes, 1_000)
    with training.open_run("offline-q", settings) as run:
        training.seed_everything(settings.seed)
        if settings.backend:
            parl.set_backend(settings.backend)
        env = training.StandardEnv(settings.env)
        dataset = logged_data(run, settings)
        agent = make_agent(env.act_dim, updates, settings)
        training.train_offline(
            agent,
            dataset.scaled_rewards(settings.reward_scale),
            training.OfflineSettings(updates, settings.batch_size, report_every=every),
            evaluator=lambda: training.evaluate(agent, env.make_to_evaluate, episodes=min(episodes, 20), seed=2),
            evaluate_every=every,
            callbacks=training.standard_callbacks(
                run, agent, title=f"Offline Q-learning on {settings.env}, seed {settings.seed}", steps="gradient steps"
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
