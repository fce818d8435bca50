"""`parl train` with off-policy algorithms, and the agents that it leaves."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from parl_core import backends
from parl_core.cli.commands import parl
from parl_core.errors import HyperparameterError
from parl_core.training.trained import Trained


@pytest.mark.parametrize(("command", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1"), ("td3", "Pendulum-v1")])
def test_a_trained_agent_is_found_again(command: str, env: str, tmp_path: Path) -> None:
    asked = ["train", command, env, "--steps", "30", "--runs", str(tmp_path), "--backend", "torch"]
    trained = CliRunner().invoke(parl, asked)
    assert trained.exit_code == 0, trained.output
    (folder,) = tmp_path.iterdir()
    played = CliRunner().invoke(parl, ["evaluate", str(folder), "--episodes", "1"])
    assert played.exit_code == 0, played.output
    assert f"{env}: mean return" in played.output


def test_each_kind_of_actions_gets_its_network() -> None:
    backends.set_backend("torch")
    agent = Trained("OAC", "Pendulum-v1", "torch", (8,)).make_agent()
    assert agent.predict(np.zeros(3, np.float32)).shape == (1,)
    with pytest.raises(HyperparameterError, match="SAC needs a vector of numbers with finite bounds"):
        Trained("SAC", "CartPole-v1", "torch", (8,)).make_agent()
    with pytest.raises(HyperparameterError, match="DQN with this model chooses discrete ones only"):
        Trained("DQN", "Pendulum-v1", "torch", (8,)).make_agent()
