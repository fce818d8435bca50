"""The QuickStart of the PARL 1.x manual: PolicyGradient solves CartPole in 1000 episodes; see `--help`."""

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium

import parl
from parl import training

OBS_DIM, ACT_DIM, SOLVED = 4, 2, 195.0


@dataclass(frozen=True)
class Settings:
    """Trains PolicyGradient on CartPole with episodes of at most 200 steps, as CartPole-v0 had them."""

    seed: Annotated[int, "seed of weights, environment and sampling"] = 0
    backend: Annotated[str, "torch or paddle; empty selects the installed one"] = ""
    episodes: Annotated[int, "episodes to learn from"] = 1000


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=200)


def make_agent(seed: int) -> parl.Agent:
    class CartpoleModel(parl.Model):
        def __init__(self) -> None:
            self.fc1 = parl.layers.fc(size=ACT_DIM * 10, act="tanh")
            self.fc2 = parl.layers.fc(size=ACT_DIM, act="softmax")

        def forward(self, obs: Any) -> Any:
            return self.fc2(self.fc1(obs))

    training.seed_everything(seed)
    algorithm = parl.algorithms.PolicyGradient(CartpoleModel(), lr=1e-3)
    return parl.Agent(algorithm, seed=seed)


def main(settings: Settings) -> None:
    if settings.backend:
        parl.set_backend(settings.backend)
    agent = make_agent(settings.seed)
    training.train_by_episodes(agent, make_env(), settings.episodes, seed=settings.seed)
    result = training.evaluate(agent, make_env, 100, seed=1)
    verdict = "solved" if result.mean >= SOLVED else "not solved"
    print(f"Mean return of 100 evaluation episodes: {result.mean} ({verdict}: CartPole-v0 asks for {SOLVED:g})")


if __name__ == "__main__":
    main(training.parse_settings(Settings))
