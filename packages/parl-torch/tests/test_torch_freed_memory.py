"""An update does not take from the kernel what the one before gave back to it."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from parl_torch import algorithms, networks
from parl_torch.agent import Agent

agent = Agent(algorithms.TD3(networks.TwinActorCritic(6), device="cpu"))
obs, action, column = np.zeros((256, 17), np.float32), np.zeros((256, 6), np.float32), np.zeros(256, np.float32)
for update in range(200):
    if update == 100:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    agent.learn(obs, action, column, obs, column)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 100)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc hands memory back that soon")
def test_updates_cause_no_page_faults() -> None:
    # 50 to 1,700 an update where glibc is left alone. The mean is taken over many updates, as a heap that still grows
    # by a block once in a while is no such fault.
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    assert float(found.stdout) < 25
