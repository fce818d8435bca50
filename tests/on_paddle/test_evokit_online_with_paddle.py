"""The PARL 1.x manual's online commands on what paddle's `save_inference_model` wrote: no code is named anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from click.testing import CliRunner

from parl_evokit import AsyncESAgent, ESAgent
from parl_evokit.cli import main
from parl_evokit.models.paddle_program import PaddleProgram

CONFIG = "solver { optimizer { type: ADAM base_lr: 0.05 } sampling { gaussian_sampling { std: 0.5 cached: true } } }"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with the PARL 1.x manual's network, 4-20-2, as an inference program in model_dir_0."""
    paddle.enable_static()
    try:
        program, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(program, startup):
            obs = paddle.static.data("obs", [-1, 4], "float32")
            prob = paddle.nn.functional.softmax(paddle.static.nn.fc(paddle.static.nn.fc(obs, 20), 2))
            executor = paddle.static.Executor(paddle.CPUPlace())
            executor.run(startup)
            paddle.static.save_inference_model(str(tmp_path / "model_dir_0" / "model"), [obs], [prob], executor)
    finally:
        paddle.disable_static()
    (tmp_path / "config.prototxt").write_text(CONFIG)
    (tmp_path / "rows.py").write_text(
        "import numpy\n"
        "def env():\n"
        "    return lambda agent, seed: float(agent.predict(numpy.full((1, 4), seed % 5, 'float32'))[0, 0])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def commands(epoch: int) -> list[list[str]]:
    common = ["--log_path=sampling_log", f"--model_dir=model_dir_{epoch}", "--config_path=config.prototxt"]
    return [
        ["online_sampling", *common, "--env=rows:env", "--episodes=6"],
        ["offline_update", *common, f"--updated_model_dir=model_dir_{epoch + 1}", "--json"],
    ]


@pytest.mark.slow
def test_the_documented_rounds_evolve_an_inference_program(place: Path) -> None:
    first = ["init_solver", "--model_dir=model_dir_0", "--config_path=config.prototxt"]
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
        assert (told["model_iter_id"], told["used"]) == (epoch + 1, 6)
    names = sorted(path.name for path in (place / "model_dir_3").iterdir())
    first_names = {path.name for path in (place / "model_dir_0").iterdir()}
    assert names == sorted(first_names | {"history.jsonl", "used-1.npy", "used-2.npy", "used-3.npy"})


def test_a_warehouse_may_begin_with_an_inference_program(place: Path) -> None:
    agent = AsyncESAgent(PaddleProgram("model_dir_0"), {"async_es": {"model_warehouse": ".", "max_to_keep": 2}})
    clone = agent.clone()
    for _ in range(4):  # the first directory, from which the program came, is gone by then
        agent.update([clone.add_noise(), clone.add_noise()], [1.0, 2.0])
    kept = sorted(path.name for path in place.glob("model_*"))
    assert kept == ["model_iter_id-3", "model_iter_id-4"]
    other = AsyncESAgent(PaddleProgram("model_iter_id-3"), {"async_es": {"model_warehouse": "."}})
    assert other.model_iter_id == 4
    assert (other.predict(np.ones((1, 4))) == agent.predict(np.ones((1, 4)))).all()


def test_the_manuals_calls_need_no_model_beside_the_directory(place: Path) -> None:
    agent = ESAgent()
    agent.load_config("config.prototxt")
    agent.load_inference_model("model_dir_0")
    agent.init_solver()
    sampling_agent = agent.clone()
    infos = [sampling_agent.add_noise() for _ in range(4)]
    assert sampling_agent.predict(np.ones((1, 4))).shape == (1, 2)
    agent.update(infos, [1.0, 2.0, 3.0, 4.0])
    agent.save_inference_model("model_dir_1")
    agent.save_solver("model_dir_1")
    restored = ESAgent()
    restored.load_config("config.prototxt")
    restored.load_inference_model("model_dir_1")
    restored.load_solver("model_dir_1")
    assert (restored.predict(np.ones((1, 4))) == agent.predict(np.ones((1, 4)))).all()
