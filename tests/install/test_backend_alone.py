"""parl-torch alone and parl-paddle alone train."""

from collections.abc import Callable

import pytest
from fresh_environment import FreshEnvironment

PROGRAM = """
import sys
import numpy as np
import parl
from parl import layers


class Policy(parl.Model):
    def __init__(self, act_dim):
        self.fc1 = layers.fc(size=20, act="tanh")
        self.fc2 = layers.fc(size=act_dim, act="softmax")

    def forward(self, obs):
        return self.fc2(self.fc1(obs))


# One-step bandit with context: the observation says which action pays.
agent = parl.Agent(parl.algorithms.PolicyGradient(Policy(act_dim=2), lr=1e-2))
rng = np.random.default_rng(0)
for _ in range(200):
    obs = np.eye(2, dtype=np.float32)[rng.integers(2, size=64)]
    action = np.asarray(agent.sample(obs))
    reward = np.where(action == obs.argmax(1), 1.0, -1.0).astype(np.float32)
    agent.learn(obs, action, reward)
greedy = np.asarray(agent.predict(np.eye(2, dtype=np.float32)))
print("learned", greedy.argmax(1).tolist() if greedy.ndim == 2 else greedy.tolist())
print("frameworks", sorted({"torch", "paddle", "parl_remote", "zmq"} & set(sys.modules)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "paddle"])
def test_one_backend_alone_trains(backend: str, make_fresh: Callable[..., FreshEnvironment]) -> None:
    environment = make_fresh(f"parl-{backend}")
    done = environment.script(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert "learned [0, 1]" in done.stdout
    assert f"frameworks ['{backend}']" in done.stdout
