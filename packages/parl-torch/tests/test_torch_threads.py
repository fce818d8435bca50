"""Small networks compute in one thread, large ones in PyTorch's own number, and what a user chose stays."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import parl
from parl import training

PROGRAMS = """
import os, sys
os.sched_getaffinity = lambda pid: set(range(4))
import gymnasium, numpy as np, torch
import parl
from parl import training

CHOICE = np.zeros(4, np.int64)
ZEROS = np.zeros(4, np.float32)

def agents():
    def learn(hidden):
        agent = parl.Agent(parl.algorithms.DQN(parl.networks.QNetwork(2, hidden), device="cpu"))
        obs = np.zeros((4, 3), np.float32)
        agent.sample(obs)
        agent.learn(obs, CHOICE, ZEROS, obs, ZEROS)
        return torch.get_num_threads()

    print(learn((64, 64)), learn((1500, 1500)), learn((64, 64)))

def algorithm():
    alg = parl.algorithms.DQN(parl.networks.QNetwork(2, (64, 64)), device="cpu")
    obs, zeros = torch.zeros(4, 3), torch.zeros(4)
    for _ in range(2):
        alg.learn(obs, zeros.long(), zeros, obs, zeros)
    print(torch.get_num_threads())

def loop():
    class Watched(training.Callback):
        def on_update(self, update):
            print(torch.get_num_threads())

    agent = parl.Agent(parl.algorithms.PPO(parl.networks.ActorCritic(2), device="cpu"))
    settings = training.OnPolicySettings(total_steps=8, n_steps=4)
    with training.make_vector_env("CartPole-v1", 2) as envs:
        training.train_on_policy(agent, envs, settings, callbacks=[Watched()])

for word in sys.argv[1:]:  # each in a process of its own, forked before PyTorch computed anything
    name, threads = word.split("=")
    if (child := os.fork()) == 0:
        torch.set_num_threads(int(threads))
        globals()[name]()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_threads_go_by_the_size_of_the_networks_unless_they_were_chosen() -> None:
    chosen = ["agents=4", "agents=3", "agents=1", "algorithm=4", "loop=4"]
    assert printed(chosen, {}) == ["1 4 4", "3 3 3", "1 1 1", "1", "1"]


@pytest.mark.slow
def test_threads_that_a_variable_chose_stay() -> None:
    assert printed(["agents=4"], {"OMP_NUM_THREADS": "4"}) == ["4 4 4"]


def test_weights_from_a_seed_do_not_depend_on_the_number_of_threads() -> None:
    """A decomposition in several threads rounds otherwise."""
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        training.seed_everything(0)
        spaces = Box(-1.0, 1.0, (8,)), Discrete(2)
        model = parl.networks.for_spaces(*spaces, hidden=(128, 128), memory="gru", memory_size=128)
        agent = parl.Agent(parl.algorithms.PPO(model, device="cpu"))
        agent.sample(np.zeros(8, np.float32))
        found.append(agent.get_weights())
    torch.set_num_threads(before)
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], name)


def printed(programs: list[str], variables: dict[str, str]) -> list[str]:
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, *programs],
        env={**others, "PARL_BACKEND": "torch", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
