"""A2C with actors written by hand: a class with `@parl.remote_class`, and a loop that calls all and waits for all."""

import os
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import parl
from parl import training

os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads

N_STEPS, GAMMA = 20, 0.99


@dataclass(frozen=True)
class Settings:
    """Trains A2C on CartPole-v1 with actors written by hand."""

    steps: Annotated[int, "environment steps"] = 500_000
    actors: Annotated[int, "remote actors"] = 2
    env_num: Annotated[int, "environments per actor"] = 4
    address: Annotated[str, "address of a running cluster, such as localhost:8010; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    smoke: Annotated[bool, "a few updates only, to see that everything runs"] = False


def make_agent(backend: str) -> parl.Agent:
    if backend:
        parl.set_backend(backend)
    return parl.Agent(parl.algorithms.A2C(parl.networks.ActorCritic(act_dim=2)))


@parl.remote_class(wait=False)  # its calls return futures at once
class Actor:
    """Runs in a separate process, on this machine or another one."""

    def __init__(self, backend: str, env_num: int, seed: int) -> None:
        self.agent = make_agent(backend)
        self.envs = training.make_vector_env("CartPole-v1", env_num)
        self.obs, _ = self.envs.reset(seed=seed)

    def sample(self, weights: dict[str, Any]) -> tuple[Any, ...]:
        """Play `N_STEPS` steps with these weights, and return them with the episodes' returns."""
        self.agent.set_weights(weights)
        steps, returns = [], []
        for _ in range(N_STEPS):
            action, value = self.agent.sample(self.obs)
            obs, reward, terminated, truncated, infos = self.envs.step(action)
            led_to = np.zeros_like(value)
            cut = np.flatnonzero(truncated & ~terminated)
            if cut.size:  # truncated by a time limit: bootstrap from the last observation
                led_to[cut] = self.agent.value(np.stack(infos["final_obs"][cut]))
            steps.append((self.obs, action, value, reward, terminated | truncated, led_to))
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
            self.obs = obs
        target, targets = self.agent.value(self.obs), []
        for *_, reward, done, led_to in reversed(steps):
            target = reward + GAMMA * np.where(done, led_to, target)
            targets.append(target)
        obs, action, value, *_ = (np.concatenate(column) for column in zip(*steps, strict=True))
        return obs, action, value, np.concatenate(targets[::-1]), returns


def train(agent: parl.Agent, run: training.Run, settings: Settings) -> None:
    actors: list[Any] = [Actor(settings.backend, settings.env_num, 1000 * number) for number in range(settings.actors)]
    steps = 1_000 if settings.smoke else settings.steps
    with training.Session(
        steps,
        training.standard_callbacks(run, agent, title="A2C on CartPole-v1", goal=475.0),
        evaluator=lambda: training.evaluate(agent, "CartPole-v1", episodes=20, seed=2),
        evaluate_every=steps // (2 if settings.smoke else 20),
    ) as session:
        while session.is_running:
            weights = parl.put(agent.get_weights())  # stored once on every host
            calls = [actor.sample(weights) for actor in actors]  # all actors play at the same time
            *columns, returns = zip(*[call.result() for call in calls], strict=True)
            obs, action, value, target = (np.concatenate(column) for column in columns)
            rate = 1e-3 * (1.0 - session.step / steps)
            total_loss, *_ = agent.learn(obs, action, target - value, target, learning_rate=rate, entropy_coeff=0.0)
            session.advance(len(obs))
            episodes = [training.Episode(one, int(one)) for some in returns for one in some]
            session.report({"total_loss": total_loss}, episodes)
            session.evaluate_when_due()


def main(settings: Settings) -> None:
    with training.open_run("a2c-by-hand", settings) as run:
        training.seed_everything(settings.seed)
        agent = make_agent(settings.backend)
        agent.sample(np.zeros((1, 4), np.float32))  # layers get their shapes from the first batch
        if settings.address:
            parl.connect(settings.address)
        else:
            parl.connect(cpu_num=settings.actors)
        train(agent, run, settings)
        run.save(agent)
        print(f"Return of 100 episodes: {training.evaluate(agent, 'CartPole-v1', 100, seed=1).mean:.1f}")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
