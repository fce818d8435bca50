"""IMPALA with actors written by hand: a class with `@parl.remote_class`, and a loop that takes the first result."""

from __future__ import annotations  # `make_agent` travels to actors, where the names of types are unknown

import os
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import parl
from parl import training

os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks this small are slower on several threads

SAMPLE_STEPS = 50


@dataclass(frozen=True)
class Settings:
    """Trains IMPALA on CartPole-v1 with actors written by hand."""

    steps: Annotated[int, "environment steps"] = 1_000_000
    actors: Annotated[int, "remote actors"] = 2
    env_num: Annotated[int, "environments per actor"] = 5
    address: Annotated[str, "address of a running cluster, such as localhost:8010; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, environments and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    smoke: Annotated[bool, "a few updates only, to see that everything runs"] = False


def make_agent(backend: str) -> parl.Agent:
    if backend:
        parl.set_backend(backend)
    networks, fc = parl.networks, parl.layers.fc

    class ActorCritic(parl.Model):
        def __init__(self) -> None:
            self.trunk, self.logits, self.values = networks.MLP((128, 128)), fc(2), fc(1)

        def policy_and_value(self, obs: Any) -> Any:
            features = self.trunk(obs)
            return self.logits(features), self.values(features)

    return parl.Agent(parl.algorithms.IMPALA(ActorCritic(), sample_batch_steps=SAMPLE_STEPS, gamma=0.99))


@parl.remote_class(wait=False)  # its calls return futures at once
class Actor:
    """Runs in a separate process, on this machine or another one."""

    def __init__(self, backend: str, env_num: int, seed: int) -> None:
        self.agent = make_agent(backend)
        self.envs = training.make_vector_env("CartPole-v1", env_num)
        self.obs, _ = self.envs.reset(seed=seed)

    def sample(self, weights: dict[str, Any]) -> tuple[list[Any], dict[str, Any], list[float]]:
        """Play `SAMPLE_STEPS` steps with these weights, and return rows ordered by environment."""
        self.agent.set_weights(weights)
        steps, returns = [], []
        final_rows, final_obs = [], []  # truncated by a time limit: bootstrap from the last observation
        for step in range(SAMPLE_STEPS):
            action, logits = self.agent.sample(self.obs)
            obs, reward, terminated, truncated, infos = self.envs.step(action)
            steps.append((self.obs, action, logits, reward, terminated | truncated))
            for number in np.flatnonzero(truncated & ~terminated):
                final_rows.append(number * SAMPLE_STEPS + step)
                final_obs.append(infos["final_obs"][number])
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
            self.obs = obs
        columns = [np.concatenate(np.stack(column, axis=1)) for column in zip(*steps, strict=True)]
        led_to = {"last_obs": self.obs}
        if final_rows:
            led_to |= {"final_rows": np.array(final_rows), "final_obs": np.stack(final_obs)}
        return columns, led_to, returns


def train(agent: parl.Agent, run: training.Run, settings: Settings) -> None:
    actors: list[Any] = [Actor(settings.backend, settings.env_num, 1000 * number) for number in range(settings.actors)]
    weights = parl.put(agent.get_weights())  # stored once on every host
    calls = {actor.sample(weights): actor for actor in actors}
    steps = 1_000 if settings.smoke else settings.steps
    with training.Session(
        steps,
        training.standard_callbacks(run, agent, title="IMPALA on CartPole-v1", goal=475.0),
        evaluator=lambda: training.evaluate(agent, "CartPole-v1", episodes=20, seed=2),
        evaluate_every=steps // (2 if settings.smoke else 20),
    ) as session:
        while session.is_running:
            done, _ = wait(calls, return_when=FIRST_COMPLETED)
            for call in done:
                columns, led_to, returns = call.result()
                losses, kl = agent.learn(*columns, learning_rate=1e-3, entropy_coeff=-0.01, **led_to)
                weights = parl.put(agent.get_weights())
                actor = calls.pop(call)
                calls[actor.sample(weights)] = actor  # it continues while the learner uses other fragments
                session.advance(SAMPLE_STEPS * settings.env_num)
                episodes = [training.Episode(episode_return, int(episode_return)) for episode_return in returns]
                session.report({**losses._asdict(), "kl": kl}, episodes)
            session.evaluate_when_due()


def main(settings: Settings) -> None:
    with training.open_run("impala-by-hand", settings) as run:
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
