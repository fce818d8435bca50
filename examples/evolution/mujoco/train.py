"""OpenAI's evolution strategy on MuJoCo with remote actors: keys go out, rewards come back.

    pip install "parl-evokit[remote]" "gymnasium[mujoco]" matplotlib tqdm
    python train.py                                    Swimmer-v5 on this machine's cores
    python train.py --env HalfCheetah-v5 --address 10.0.0.1:8010 --workers 64      on a cluster (see `xparl`)
    python train.py --smoke                            a one-minute check that everything works

Writes curve.csv, curve.png and the model with its observation statistics into --out.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from parl_evokit import ESAgent, mlp
from parl_evokit.models.adapter import Predictor
from parl_evokit.parallel import ObservationStatistics, Pool, open_pool, sample


def settings(std: float, learning_rate: float) -> dict[str, Any]:
    """OpenAI-ES: mirrored noise, centred ranks, Adam."""
    sampling = {"gaussian_sampling": {"std": std, "cached": True, "seed": 1024}}
    return {"solver": {"optimizer": {"type": "ADAM", "base_lr": learning_rate}, "sampling": sampling}}


class Episodes:
    """Evaluates an agent by the return of one episode; each worker's copy makes its own environment."""

    def __init__(self, env_id: str, max_steps: int | None = None) -> None:
        self.env_id = env_id
        self.max_steps = max_steps
        self.env: Any = None

    def __call__(self, agent: Predictor, seed: int) -> float:
        if self.env is None:
            self.env = gymnasium.make(self.env_id, max_episode_steps=self.max_steps)
        low, high = self.env.action_space.low, self.env.action_space.high
        obs, _ = self.env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            action = np.clip(agent.predict(obs), low, high)
            obs, reward, terminated, truncated, _ = self.env.step(action)
            total += float(reward)
            done = terminated or truncated
        return total


def network(env_id: str, hidden: int, seed: int) -> tuple[Any, int]:
    """Return a network from observations to actions, and the length of an observation."""
    env: Any = gymnasium.make(env_id)
    inputs, outputs = env.observation_space.shape[0], env.action_space.shape[0]
    env.close()
    sizes = [inputs, hidden, outputs] if hidden else [inputs, outputs]
    return mlp(sizes, softmax=False, seed=seed), inputs


def train(arguments: argparse.Namespace, pool: Pool) -> tuple[ESAgent, ObservationStatistics, list[list[float]]]:
    """Run the loop: sample, update, and evaluate the model without noise from time to time."""
    model, inputs = network(arguments.env, arguments.hidden, arguments.seed)
    agent = ESAgent(settings(arguments.std, arguments.learning_rate), model)
    seen = ObservationStatistics(inputs)
    episodes = Episodes(arguments.env, arguments.max_steps)
    curve, began = [], time.monotonic()
    with tqdm(range(1, arguments.rounds + 1), unit="round") as bar:
        for round_ in bar:
            sampled = sample(agent, episodes, arguments.population, pool, observations=seen)
            report = agent.update(*sampled)
            if round_ % arguments.every == 0 or round_ == arguments.rounds:
                score = episodes(seen.normalized(agent), seed=round_)
                curve.append([round_, time.monotonic() - began, seen.count, report.mean_reward, score])
                bar.set_postfix(mean=f"{report.mean_reward:.0f}", model=f"{score:.0f}")
    return agent, seen, curve


def draw(curve: list[list[float]], title: str, path: Path) -> None:
    """Draw the returns over environment steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, _, steps, mean, score = np.array(curve).T
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    axes.plot(steps, score, label="model without noise, one episode")
    axes.plot(steps, mean, label="mean of the perturbed ones")
    axes.set(xlabel="environment steps", ylabel="return of an episode", title=title)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenAI-ES on a MuJoCo task with remote actors.")
    parser.add_argument("--env", default="Swimmer-v5", help="a Gymnasium task with continuous actions")
    parser.add_argument("--pool", choices=["remote", "processes"], default="remote", help="where samples are evaluated")
    parser.add_argument("--workers", type=int, help="workers; default: one per core, or all CPUs of the cluster")
    parser.add_argument("--address", help="address of a cluster; default: this machine")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--population", type=int, default=8, help="samples per round")
    parser.add_argument("--hidden", type=int, default=0, help="units of a hidden layer; 0: a linear policy")
    parser.add_argument("--std", type=float, default=0.1, help="standard deviation of the noise")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of Adam")
    parser.add_argument("--max-steps", type=int, help="maximum steps of an episode; default: the task's own")
    parser.add_argument("--every", type=int, default=10, help="rounds between evaluations of the model without noise")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network's initial weights")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--smoke", action="store_true", help="two short rounds, to see that everything works")
    arguments = parser.parse_args()
    if (arguments.out / "model").exists():  # the model would be overwritten, or rejected after all rounds
        parser.error(f"{arguments.out} has a model already: give another folder with --out, or remove it")
    if arguments.smoke:
        arguments.rounds, arguments.population, arguments.max_steps, arguments.every = 2, 6, 30, 1

    options = {"address": arguments.address} if arguments.address else {}
    if arguments.pool == "remote" and arguments.workers and not options:
        options = {"cpu_num": arguments.workers}
    with open_pool(arguments.pool, arguments.workers, **options) as pool:
        agent, seen, curve = train(arguments, pool)

    arguments.out.mkdir(parents=True, exist_ok=True)
    agent.save(arguments.out / "model")
    np.savez(arguments.out / "observations.npz", allow_pickle=False, **seen.state())
    with (arguments.out / "curve.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "seconds", "steps", "mean_reward", "model_reward"])
        writer.writerows([[round(number, 2) for number in row] for row in curve])
    draw(curve, f"{arguments.env}, OpenAI-ES, population {arguments.population}", arguments.out / "curve.png")
    episodes = Episodes(arguments.env, arguments.max_steps)
    scores = [episodes(seen.normalized(agent), seed=10**6 + i) for i in range(2 if arguments.smoke else 10)]
    print(f"model without noise, {len(scores)} episodes: {np.mean(scores):.1f} +- {np.std(scores):.1f}")


if __name__ == "__main__":
    main()
