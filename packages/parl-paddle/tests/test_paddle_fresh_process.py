"""A saved agent in a process that has not seen it before."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from parl_paddle.agent import Agent
from parl_paddle.algorithms import PPO
from parl_paddle.networks import ActorCritic

PROGRAM = """
import json, sys
import numpy as np
from parl_paddle.agent import Agent
from parl_paddle.algorithms import PPO
from parl_paddle.networks import ActorCritic

agent = Agent(PPO(ActorCritic(2, continuous=True), continuous_action=True, device="cpu"))
agent.restore(sys.argv[1])
obs = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
print(json.dumps([agent.predict(obs).tolist(), agent.value(obs).tolist()]))
"""


def test_a_fresh_process_predicts_the_very_same_numbers(tmp_path: Path) -> None:
    agent = Agent(PPO(ActorCritic(2, continuous=True), continuous_action=True, device="cpu"))
    obs = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    value, action, log_prob, _ = agent.sample(obs)
    agent.learn(obs, action, value, value + 1.0, log_prob, np.linspace(-1.0, 1.0, 20))
    agent.save(tmp_path / "model_dir")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "model_dir")],
        capture_output=True,
        text=True,
        check=True,
    )
    actions, values = json.loads(done.stdout)
    np.testing.assert_array_equal(np.float32(actions), agent.predict(obs))
    np.testing.assert_array_equal(np.float32(values), agent.value(obs))
