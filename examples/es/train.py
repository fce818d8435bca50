"""Evolution strategies by hand: actors receive seeds and return scores, so noise and gradients are not transferred."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import parl
from parl import training
from parl_core.atomic_write import atomic_write

os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices this small are slower on several threads


@dataclass(frozen=True)
class Settings:
    """Evolves a small network by OpenAI's evolution strategy with remote actors; needs numpy only."""

    env: Annotated[str, "CartPole-v1, Pendulum-v1, Swimmer-v5 or others of these kinds"] = "CartPole-v1"
    steps: Annotated[int, "maximum number of environment steps"] = 500_000
    pairs: Annotated[int, "mirrored pairs of perturbations per generation"] = 20
    hidden: Annotated[int, "units of the hidden layer"] = 16
    std: Annotated[float, "standard deviation of the perturbations"] = 0.1
    rate: Annotated[float, "learning rate of Adam"] = 0.05
    actors: Annotated[int, "remote actors"] = 2
    address: Annotated[str, "address of a running cluster; empty starts a private one"] = ""
    seed: Annotated[int, "seed of weights, perturbations and episodes"] = 0
    runs: Annotated[str, "folder in which every run creates its own folder"] = "runs"
    smoke: Annotated[bool, "a few steps only, to see that everything runs"] = False


class Policy:
    """A network with one hidden tanh layer on a flat vector of weights, with the methods of agents."""

    training = False

    def __init__(self, env: Any, hidden: int, seed: int = 0) -> None:
        game = env.make()
        self.inputs, self.hidden, self.outputs = game.observation_space.shape[0], hidden, env.act_dim
        self.chooses = env.kind == "discrete"
        game.close()
        size = (self.inputs + 1) * hidden + (hidden + 1) * self.outputs
        self.weights = 0.1 * np.random.default_rng(seed).standard_normal(size)

    def predict(self, obs: Any) -> Any:
        """Return actions `[n]` or `[n, act_dim]` for observations `[n, inputs]`."""
        first, last = np.split(self.weights, [(self.inputs + 1) * self.hidden])
        first, last = first.reshape(-1, self.hidden), last.reshape(-1, self.outputs)
        outputs = np.tanh(obs @ first[1:] + first[0]) @ last[1:] + last[0]
        return outputs.argmax(axis=1) if self.chooses else outputs

    def train(self) -> None:
        """Do nothing: training and evaluation do not differ."""

    eval = train

    def save(self, path: Path) -> None:
        with atomic_write(path) as file:
            np.save(file, self.weights)

    def restore(self, path: Path) -> None:
        self.weights = np.load(path)


@parl.remote_class(wait=False)  # its calls return futures at once
class Player:
    """Runs in a separate process, on this machine or another one."""

    def __init__(self, env: training.StandardEnv, hidden: int, std: float) -> None:
        self.game, self.policy, self.std = env.make(), Policy(env, hidden), std

    def play(self, weights: Any, seed: int) -> list[training.Episode]:
        """Return returns and steps of two episodes with the same start: with weights plus noise, and minus noise."""
        return [self.episode(weights + sign * self.std * noise(seed, weights.size), seed) for sign in (1.0, -1.0)]

    def episode(self, weights: Any, seed: int) -> training.Episode:
        self.policy.weights = weights
        space, (obs, _) = self.game.action_space, self.game.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        while not over:
            (action,) = self.policy.predict(obs[None])
            obs, reward, *ends, _ = self.game.step(
                action if self.policy.chooses else np.clip(action, space.low, space.high)
            )
            total, steps, over = total + float(reward), steps + 1, any(ends)
        return training.Episode(total, steps)


def noise(seed: int, size: int) -> Any:
    """Return noise that is the same in every process."""
    return np.random.default_rng(seed).standard_normal(size)


def evolve(
    policy: Any, env: training.StandardEnv, players: parl.ActorPool, run: training.Run, settings: Settings
) -> None:
    mean, square = np.zeros_like(policy.weights), np.zeros_like(policy.weights)  # Adam's moments
    steps, generation = 4_000 if settings.smoke else settings.steps, 0
    with training.Session(
        steps,
        training.standard_callbacks(run, policy, title=f"ES on {env.env_id}", goal=env.goal),
        evaluator=lambda: training.evaluate(policy, env.make_to_evaluate, episodes=20, seed=2),
        evaluate_every=steps // 50,
    ) as session:
        while session.is_running:
            seeds = np.random.SeedSequence([settings.seed, generation]).generate_state(settings.pairs).tolist()
            weights = parl.put(policy.weights)  # stored once on every host
            played = list(players.map(lambda player, seed, weights=weights: player.play(weights, seed), seeds))
            episodes = [episode for pair in played for episode in pair]
            ranks = np.argsort(np.argsort([episode.episode_return for episode in episodes])) / (len(episodes) - 1) - 0.5
            pulls = ranks.reshape(-1, 2) @ [1.0, -1.0]  # advantages of plus over minus
            gradient = sum(pull * noise(seed, mean.size) for pull, seed in zip(pulls, seeds, strict=True))
            gradient /= 2 * settings.pairs * settings.std
            generation += 1
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            step = mean / (1 - 0.9**generation) / (np.sqrt(square / (1 - 0.999**generation)) + 1e-8)
            policy.weights = policy.weights + settings.rate * step
            session.advance(sum(episode.length for episode in episodes))
            session.report({"gradient": float(np.linalg.norm(gradient))}, episodes)
            session.evaluate_when_due()


def main(settings: Settings) -> None:
    env = training.StandardEnv(settings.env)
    with training.open_run("es", settings) as run:
        policy = Policy(env, settings.hidden, settings.seed)
        if settings.address:
            parl.connect(settings.address)
        else:
            parl.connect(cpu_num=settings.actors)
        with parl.ActorPool(Player, settings.actors, args=(env, settings.hidden, settings.std)) as players:
            evolve(policy, env, players, run, settings)
        run.save(policy, what="evolved weights")
        print(f"Return of 100 episodes: {training.evaluate(policy, env.make_to_evaluate, 100, seed=1).mean:.1f}")
        print(run.inventory())


if __name__ == "__main__":
    main(training.parse_settings(Settings))
