"""The PARL 1.x manual's online commands with a torch module: initial weights, a few rounds, the code given by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from parl_evokit import AsyncESAgent, ESAgent
from parl_evokit.cli import main
from parl_evokit.models.torch_model import TorchModel

CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(4, 20)
        self.out = torch.nn.Linear(20, 2)

    def forward(self, obs):
        return torch.softmax(self.out(self.hidden(obs)), -1)
"""
CONFIG = "solver { optimizer { type: ADAM base_lr: 0.05 } sampling { gaussian_sampling { std: 0.5 cached: true } } }"


def net() -> torch.nn.Module:
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(CODE, scope)
    torch.manual_seed(0)
    return scope["Net"]()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "torch_code.py").write_text(CODE)
    (tmp_path / "config.prototxt").write_text(CONFIG)
    (tmp_path / "model_dir_0").mkdir()
    TorchModel(net()).save(tmp_path / "model_dir_0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def commands(epoch: int) -> list[list[str]]:
    common = [f"--model_dir=model_dir_{epoch}", "--config_path=config.prototxt", "--model=torch_code:Net"]
    return [
        ["online_sampling", "--log_path=sampling_log", *common, "--episodes=4"],
        ["offline_update", "--log_path=sampling_log", *common, f"--updated_model_dir=model_dir_{epoch + 1}", "--json"],
    ]


@pytest.mark.slow
def test_the_documented_rounds_evolve_a_module(place: Path) -> None:
    first = ["init_solver", "--model_dir=model_dir_0", "--config_path=config.prototxt", "--model=torch_code:Net"]
    process = subprocess.run(
        [sys.executable, "-m", "parl_evokit", *first], capture_output=True, text=True, timeout=110, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "142 parameters" in process.stdout
    for epoch in range(3):
        for arguments in commands(epoch):
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert (told["model_iter_id"], told["used"]) == (epoch + 1, 4)
    agent = ESAgent()
    agent.load_config("config.prototxt")
    agent.load_inference_model("model_dir_3", model=net())
    agent.load_solver("model_dir_3")
    assert agent.predict(np.ones((1, 4), np.float32)).sum() == pytest.approx(1.0)
    refused = CliRunner().invoke(main, [word for word in commands(3)[0] if not word.startswith("--model=")])
    assert refused.exit_code == 4
    assert "give --model package.module:function" in refused.stderr


def test_a_warehouse_of_a_module_with_buffers_is_taken_up_whole(tmp_path: Path) -> None:
    settings = {"async_es": {"model_warehouse": str(tmp_path / "warehouse"), "max_to_keep": 1}}

    def normed() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()

    module = normed()
    module[1].running_mean += 2.0  # type: ignore[index,operator]
    agent = AsyncESAgent(module, settings)
    clone = agent.clone()
    agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
    other_module = normed()
    other = AsyncESAgent(other_module, settings)
    x = np.ones((2, 4), np.float32)
    assert (other.predict(x) == agent.predict(x)).all()
    assert torch.equal(other_module(torch.ones(2, 4)), module(torch.ones(2, 4)))
