"""Static graphs compared with eager paddle, in turns in one process; prints a table of rates (see README.md).

Both agents receive the same arrays and return floats or arrays. The best run of each counts. Times are CPU times of the
process with all its threads, which depend least on the machine's other load; the last column is wall-clock time.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import agents
import gymnasium as gym
import numpy as np
import paddle
from agents import EagerAgent, StaticAgent

import parl

CASES = {
    "policy_gradient": "PolicyGradient, MLP 20, 200 rows: updates/s",
    "dqn": "DQN, MLP 2x128, batch 64: updates/s",
    "ppo": "PPO, MLP 2x64 twice, minibatch 64: updates/s",
    "td3": "TD3, MLP 2x256, batch 256: updates/s",
    "sac": "SAC, MLP 2x256, batch 256: updates/s",
}
ACTING = {
    "actions": "PolicyGradient, one observation: actions/s",
    "tutorial": "the tutorial on CartPole: steps/s",
}
WAYS = {"static": StaticAgent, "eager": EagerAgent}
STEPS = 400

Clock = Callable[[], float]


def make(case: str) -> dict[str, StaticAgent | EagerAgent]:
    """Return an agent of each kind, with equal architectures and therefore equal work."""
    kinds: dict[str, Any] = WAYS
    return {name: kind(*getattr(agents, case)()) for name, kind in kinds.items()}


def updates(case: str) -> dict[str, Callable[[], object]]:
    """Return functions that take one gradient step with each agent."""
    return {name: agent.update for name, agent in make(case).items()}


def actions() -> dict[str, Callable[[], object]]:
    """Return functions that choose one action with each agent of the tutorial's network."""
    obs = np.zeros(4, np.float32)
    return {name: partial(agent.act, obs) for name, agent in make("policy_gradient").items()}


def environment_steps() -> dict[str, Callable[[], object]]:
    """Return functions that play CartPole with each agent, with the tutorial's update after every 200 steps."""

    def play(agent: StaticAgent | EagerAgent) -> Callable[[], object]:
        env = gym.make("CartPole-v1", max_episode_steps=200)
        rng = np.random.default_rng(0)

        def run() -> None:
            obs, _ = env.reset(seed=0)
            for step in range(1, STEPS + 1):
                obs, _, terminated, truncated, _ = env.step(int(rng.random() < agent.act(obs)[1]))
                if terminated or truncated:
                    obs, _ = env.reset()
                if step % 200 == 0:
                    agent.update()

        return run

    return {name: play(agent) for name, agent in make("policy_gradient").items()}


def best_rates(ways: dict[str, Callable[[], object]], repeats: int, rounds: int, clock: Clock) -> dict[str, float]:
    """Return the calls per second of each kind, by a clock."""
    for call in ways.values():  # a first run for initialisation and compilation
        for _ in range(3):
            call()
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, call in ways.items():
            began = clock()
            for _ in range(repeats):
                call()
            seconds[name] = min(seconds[name], clock() - began)
    return {name: repeats / best for name, best in seconds.items()}


def show(title: str, ways: dict[str, Callable[[], object]], repeats: int, rounds: int, unit: int = 1) -> None:
    """Measure and print one row of the table; a call counts as `unit` units."""
    cpu = best_rates(ways, repeats, rounds, time.process_time)
    wall = best_rates(ways, repeats, rounds, time.perf_counter)
    rates = [f"{unit * cpu[name]:,.0f}" for name in WAYS]
    ratios = [f"{rate['static'] / rate['eager']:.2f}" for rate in (cpu, wall)]
    print(f"| {title} | {' | '.join([*rates, *ratios])} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Static graphs against eager paddle.")
    parser.add_argument("--rounds", type=int, default=40, help="number of alternating runs of each kind")
    parser.add_argument("--cases", default=",".join([*CASES, *ACTING]), help="which, separated by commas")
    options = parser.parse_args()
    parl.set_backend("paddle")
    paddle.seed(0)
    print("| | static | eager | static / eager | by the clock |\n| --- | --- | --- | --- | --- |")
    for case in options.cases.split(","):
        if case in CASES:
            show(CASES[case], updates(case), 20, options.rounds)
        elif case == "actions":
            show(ACTING[case], actions(), 100, options.rounds)
        else:
            show(ACTING[case], environment_steps(), 1, options.rounds, unit=STEPS)


if __name__ == "__main__":
    main()
