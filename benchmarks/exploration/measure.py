"""PPO with and without a novelty bonus on a grid whose only reward is in the far corner.

python benchmarks/exploration/measure.py --size 16 --steps 48000 --seeds 5
"""

from functools import partial
from typing import Any

import click

import parl
from parl_core import training
from parl_core.env.goals import SparseGrid


class Found(training.Callback):
    """Callback that records the first update in which nine of ten episodes reached the corner."""

    def __init__(self) -> None:
        self.step: int | None = None

    def on_update(self, update: training.Update) -> None:
        reached = [episode.episode_return for episode in update.episodes]
        if self.step is None and reached and sum(reached) >= 0.9 * len(reached):
            self.step = update.step


def trained(size: int, steps: int, seed: int, *, novel: bool) -> tuple[Any, int | None]:
    training.seed_everything(seed)
    agent = parl.Agent(parl.algorithms.PPO(parl.networks.ActorCritic(4, (64, 64)), device="cpu"), seed=seed)
    novelty = None
    if novel:
        network = parl.networks.NoveltyNetwork(32, (64,))
        novelty = training.NoveltyReward(parl.Agent(parl.algorithms.RND(network, lr=1e-3, device="cpu")))
    settings = training.OnPolicySettings(
        total_steps=steps, n_steps=100, epochs=4, minibatch_size=200, lr=1e-3, clip=0.2, entropy_coef=0.01
    )
    found = Found()
    with training.make_vector_env(partial(SparseGrid, size), 8) as envs:
        training.train_on_policy(agent, envs, settings, novelty=novelty, seed=seed, callbacks=[found])
    return agent, found.step


@click.command()
@click.option("--size", default=16)
@click.option("--steps", default=48_000)
@click.option("--seeds", default=5)
def main(size: int, steps: int, seeds: int) -> None:
    """Train both with each seed and print a table."""
    print("| rewards | seed | return of 20 episodes at the end | steps until nine of ten episodes reached the corner |")
    print("| --- | --- | --- | --- |")
    for name, novel in (("the grid's", False), ("and novelty", True)):
        for seed in range(seeds):
            agent, found = trained(size, steps, seed, novel=novel)
            score = training.evaluate(agent, partial(SparseGrid, size), 20, seed=1_000, stochastic=True).mean
            print(f"| {name} | {seed} | {score:.2f} | {'never' if found is None else found} |", flush=True)


if __name__ == "__main__":
    main()
