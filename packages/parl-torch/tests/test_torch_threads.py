"""Small networks compute in one thread, large ones in PyTorch's own number, and what a user chose stays."""

import os
import subprocess
import sys
import textwrap

import pytest

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
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(threads)],
        env={**others, "PARL_BACKEND": "torch", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == expected, done.stderr
