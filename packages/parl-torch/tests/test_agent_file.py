"""The file of a saved agent (`parl_core._agent_file`, here because safetensors comes with a backend)."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from parl_core import _agent_file
from parl_core._agent_file import SavedAgent
from parl_core.algorithm import AlgorithmState
from parl_core.errors import CheckpointError

SAVED = SavedAgent(
    AlgorithmState(
        {"model/fc.weight": np.arange(6.0).reshape(2, 3), "optimizer/step/fc.weight": np.array(3)}, {"n": 7}
    ),
    "DQN",
    "torch",
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = _agent_file.write(tmp_path / "agent.ckpt", SAVED)
    found = _agent_file.read(path)
    assert (found.algorithm, found.backend, found.state.counters) == ("DQN", "torch", {"n": 7})
    for name, array in SAVED.state.arrays.items():
        np.testing.assert_array_equal(found.state.arrays[name], array)
        assert found.state.arrays[name].dtype == array.dtype


def test_arrays_of_any_strides_are_written_as_they_look(tmp_path: Path) -> None:
    turned = np.arange(6.0).reshape(2, 3).T
    path = _agent_file.write(tmp_path / "a.ckpt", SavedAgent(AlgorithmState({"model/w": turned}), "DQN", "torch"))
    np.testing.assert_array_equal(_agent_file.read(path).state.arrays["model/w"], turned)


def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _agent_file.write(tmp_path / "agent.ckpt", SAVED)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    newer = SavedAgent(AlgorithmState({}), "PPO", "torch")
    with pytest.raises(OSError, match="No space left"):
        _agent_file.write(path, newer)
    assert _agent_file.read(path).algorithm == "DQN"
    assert os.listdir(tmp_path) == ["agent.ckpt"]


def test_a_reader_of_the_old_file_keeps_it_while_a_new_one_takes_its_place(tmp_path: Path) -> None:
    path = _agent_file.write(tmp_path / "agent.ckpt", SAVED)
    os.link(path, tmp_path / "opened.ckpt")  # as a reader that has opened it
    _agent_file.write(path, SavedAgent(AlgorithmState({}), "PPO", "torch"))
    assert _agent_file.read(tmp_path / "opened.ckpt").algorithm == "DQN"
    assert _agent_file.read(path).algorithm == "PPO"


def test_reading_imports_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _agent_file.write(tmp_path / "agent.ckpt", SAVED)
    monkeypatch.setitem(sys.modules, "pickle", None)
    assert _agent_file.read(path).algorithm == "DQN"


def test_a_safetensors_file_of_something_else_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"other.safetensors is a safetensors file, but not of a PARL agent"):
        _agent_file.read(tmp_path / "other.safetensors")
