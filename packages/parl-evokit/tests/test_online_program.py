"""The PARL 1.x manual's online program: a dozen rounds of separate processes, with its options and configuration.

`benchmarks/evolution/online_program.py` has the two hundred rounds that reach 475.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parl_evokit import ESAgent, mlp
from parl_evokit._solver_dir import check_history, read_history

ROUNDS = 12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twelve_rounds_of_the_documented_loop_run_as_separate_processes(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="the built-in environment needs gymnasium")
    shutil.copy(Path(__file__).with_name("documented_config.prototxt"), tmp_path / "config.prototxt")
    first = tmp_path / "model_warehouse" / "model_dir_0"
    first.mkdir(parents=True)
    mlp([4, 20, 2], activation="linear", seed=1).save(first)
    evokit = f"{sys.executable} -m parl_evokit"
    script = f"""
set -e
{evokit} init_solver --model_dir="./model_warehouse/model_dir_0" --config_path="config.prototxt"
for ((epoch=0;epoch<{ROUNDS};++epoch));do
{evokit} online_sampling \\
--log_path="./sampling_log" \\
--model_dir="./model_warehouse/model_dir_$epoch" \\
--config_path="./config.prototxt"
next_epoch=$((epoch+1))
{evokit} offline_update \\
--log_path='./sampling_log' \\
--model_dir="./model_warehouse/model_dir_$epoch" \\
--updated_model_dir="./model_warehouse/model_dir_${{next_epoch}}" \\
--config_path="./config.prototxt"
done
"""
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "solver for 142 parameters in model_warehouse/model_dir_0"
    for epoch in range(ROUNDS):
        assert lines[1 + 2 * epoch].startswith(f"10 episodes of model {epoch}: mean reward ")
        assert lines[2 + 2 * epoch].startswith(f"model {epoch + 1}: 10 samples (5 pairs), mean reward ")
    assert sorted(os.listdir(tmp_path)) == ["config.prototxt", "model_warehouse", "sampling_log"]
    last = tmp_path / "model_warehouse" / f"model_dir_{ROUNDS}"
    assert check_history(read_history(last)) == ROUNDS
    assert len(json.loads((last / "solver.json").read_text())["ledger"]) == ROUNDS

    agents = []
    for directory in (first, last):
        agent = ESAgent()
        agent.load_config(tmp_path / "config.prototxt")
        agent.load_inference_model(directory, model=mlp([4, 20, 2], activation="linear"))
        agent.load_solver(directory)
        agents.append(agent)
    assert [agent.model_iter_id for agent in agents] == [0, ROUNDS]
    # The same updates from the same log, in one process, give the same bits.
    again = agents[0]
    for epoch in range(ROUNDS):
        again.replay_log(tmp_path / "sampling_log", tmp_path / "model_warehouse" / f"model_dir_{epoch + 1}")
    assert all((again.parameters()[name] == array).all() for name, array in agents[1].parameters().items())
