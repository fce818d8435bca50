"""The minimal example of the PARL 1.x manual: ten agents sample CartPole at once, and every round is one update.

    pip install parl-evokit gymnasium
    python train.py                        100 epochs, about 20 seconds
    python train.py --keys counter         the same numbers in every run

The network is the manual's: four inputs, twenty hidden units without activation, two probabilities.
"""

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np

from parl_evokit import Config, ESAgent, SamplingInfo, mlp

AGENTS = 10
HERE = Path(__file__).parent


class Predictor(Protocol):
    def predict(self, x: np.ndarray) -> np.ndarray: ...


def network() -> Any:
    """Return the network, whose code the model directory does not contain."""
    return mlp([4, 20, 2], activation="linear")


def evaluate(env: gymnasium.Env, agent: Predictor, seed: int) -> float:
    """Return the return of one episode."""
    obs, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        action = int(agent.predict(obs).argmax())
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        done = terminated or truncated
    return total


def train(config: Config, model_dir: Path, epochs: int) -> list[float]:
    """Run the manual's program; return the reward of each epoch."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(AGENTS)]

    agent = ESAgent()
    agent.load_config(config)
    agent.load_inference_model(model_dir, model=network)
    agent.init_solver()  # after load_inference_model

    sampling_agents = [agent.clone() for _ in range(AGENTS)]
    sampling_infos = [SamplingInfo() for _ in range(AGENTS)]

    rewards_of_epochs = []
    with ThreadPoolExecutor(AGENTS) as pool:
        for epoch in range(epochs):
            for sampling_agent, info in zip(sampling_agents, sampling_infos, strict=True):
                sampling_agent.add_noise(info)
            # Both halves of a mirrored pair start their episodes in the same state, so that only the noise differs.
            seeds = [1000 * epoch + i // 2 for i in range(AGENTS)]
            rewards = list(pool.map(evaluate, envs, sampling_agents, seeds))
            agent.update(sampling_infos, rewards)  # the sampling agents load the new parameters themselves
            reward = evaluate(envs[0], agent, seed=10**6 + epoch)
            rewards_of_epochs.append(reward)
            print(f"Epoch:{epoch} Reward: {reward:.0f}")
    return rewards_of_epochs


def main() -> None:
    parser = argparse.ArgumentParser(description="Evolution on CartPole, the minimal example of the PARL 1.x manual.")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--keys", choices=["secrets", "counter"], default="secrets", help="counter: reproducible runs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network's initial weights")
    arguments = parser.parse_args()

    settings = Config.load(HERE / "config.prototxt")
    config = Config(settings.solver, keys=type(settings.keys)[arguments.keys.upper()])
    with tempfile.TemporaryDirectory() as directory:
        mlp([4, 20, 2], activation="linear", seed=arguments.seed).save(Path(directory))
        rewards = train(config, Path(directory), arguments.epochs)
    print(f"mean reward of the last ten epochs: {np.mean(rewards[-10:]):.1f}")


if __name__ == "__main__":
    main()
