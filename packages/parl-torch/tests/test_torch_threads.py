"""Small networks compute in one thread, large ones in PyTorch's own number, and what a user chose stays."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import parl
from parl import training

PROGRAM = textwrap.dedent(
    """
    import os, sys
    os.sched_getaffinity = lambda pid: set(range(4))
    import numpy as np, torch
    torch.set_num_threads(int(sys.argv[1]))
    import parl

    def learn(hidden):
        agent = parl.Agent(parl.algorithms.DQN(parl.networks.QNetwork(2, hidden), device="cpu"))
        obs = np.zeros((4, 3), np.float32)
        agent.sample(obs)
        agent.learn(obs, np.zeros(4, np.int64), np.zeros(4, np.float32), obs, np.zeros(4, np.bool_))
        return torch.get_num_threads()

    print(learn((64, 64)), learn((1500, 1500)), learn((64, 64)))
    """
)

DIRECT = textwrap.dedent(
    """
    import os, sys
    os.sched_getaffinity = lambda pid: set(range(4))
    import torch
    torch.set_num_threads(int(sys.argv[1]))
    import parl

    alg = parl.algorithms.DQN(parl.networks.QNetwork(2, (64, 64)), device="cpu")
    obs, zeros = torch.zeros(4, 3), torch.zeros(4)
    for _ in range(2):
        alg.learn(obs, zeros.long(), zeros, obs, zeros)
    print(torch.get_num_threads())
    """
)

LOOP = textwrap.dedent(
    """
    import os, sys
    os.sched_getaffinity = lambda pid: set(range(4))
    import gymnasium, torch
    torch.set_num_threads(int(sys.argv[1]))
    import parl
    from parl import training

    class Watched(training.Callback):
        def on_update(self, update):
            print(torch.get_num_threads())

    agent = parl.Agent(parl.algorithms.PPO(parl.networks.ActorCritic(2), device="cpu"))
    settings = training.OnPolicySettings(total_steps=8, n_steps=4)
    with training.make_vector_env("CartPole-v1", 2) as envs:
        training.train_on_policy(agent, envs, settings, callbacks=[Watched()])
    """
)


@pytest.mark.parametrize(
    ("threads", "variables", "expected"),
    [
        (4, {}, "1 4 4"),
        (3, {}, "3 3 3"),
        pytest.param(4, {"OMP_NUM_THREADS": "4"}, "4 4 4", marks=pytest.mark.slow),
        pytest.param(1, {}, "1 1 1", marks=pytest.mark.slow),
    ],
    ids=["nothing chosen", "set_num_threads", "OMP_NUM_THREADS", "one"],
)
def test_threads_go_by_the_size_of_the_networks(threads: int, variables: dict[str, str], expected: str) -> None:
    assert printed(PROGRAM, threads, variables) == expected


def test_an_algorithm_that_is_called_without_an_agent_learns_in_one_thread() -> None:
    assert printed(DIRECT, 4, {}) == "1"


def test_a_loop_whose_actor_acts_in_numpy_learns_in_one_thread() -> None:
    assert printed(LOOP, 4, {}) == "1"


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


def printed(program: str, threads: int, variables: dict[str, str]) -> str:
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(threads)],
        env={**others, "PARL_BACKEND": "torch", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
