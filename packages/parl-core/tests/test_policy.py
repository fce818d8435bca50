"""Files of policies: they run with numpy alone, and what is damaged or unknown is refused when it is loaded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.errors import CheckpointError
from parl_core.policy import load, pack

DESCRIPTION: dict[str, Any] = {
    "written_by": "parl-core 9.9",
    "algorithm": "PPO",
    "observation": {"shape": [2], "dtype": "float32"},
    "mask": False,
    "network": {
        "kind": "chain",
        "layers": [
            {"kind": "cast", "dtype": "float32"},
            {"kind": "fc", "weight": "w0", "bias": "b0", "act": "relu"},
            {"kind": "fc", "weight": "w1", "bias": None, "act": None},
        ],
    },
    "sizes": [3],
    "action": {"choice": 5},
}
ARRAYS = {
    "w0": np.array([[1.0, 0.0], [0.0, 1.0]], np.float32),
    "b0": np.array([0.0, 0.5], np.float32),
    "w1": np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], np.float32),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.policy"
    path.write_bytes(pack(DESCRIPTION, ARRAYS))
    return path


def _described(tmp_path: Path, arrays: Any = None, **changes: Any) -> Path:
    path = tmp_path / "other.policy"
    path.write_bytes(pack({**DESCRIPTION, **changes}, ARRAYS if arrays is None else arrays))
    return path


def test_one_observation_gives_an_action_and_a_batch_gives_many(file: Path) -> None:
    policy = load(file)
    action = policy([2.0, 1.0])
    assert (action, type(action)) == (5, int)
    np.testing.assert_array_equal(policy(np.array([[2.0, 1.0], [0.0, 1.0], [-1.0, -1.0]])), [5, 6, 5])
    np.testing.assert_array_equal(policy.scores([2.0, 1.0]), [[2.0, 1.5, -3.5]])
    assert policy(np.zeros((0, 2), np.float32)).shape == (0,)


def test_a_mask_beside_the_observation_counts(file: Path) -> None:
    policy = load(file)
    assert policy([2.0, 1.0], action_mask=[False, False, True]) == 7
    np.testing.assert_array_equal(policy(np.ones((2, 2)), action_mask=[[1, 0, 0], [0, 0, 1]]), [5, 7])
    with pytest.raises(ValueError, match="leaves no action"):
        policy([2.0, 1.0], action_mask=[0, 0, 0])
    with pytest.raises(ValueError, match=r"must have shape \[3\]"):
        policy([2.0, 1.0], action_mask=[1, 0])
    with pytest.raises(ValueError, match="must hold booleans or 0 and 1, got dtype float64 with other numbers"):
        policy([2.0, 1.0], action_mask=[0.5, 0, 1])


def test_an_observed_choice_is_one_of_the_choices(tmp_path: Path) -> None:
    encoder = {"kind": "encoder", "parts": [{"path": [], "choices": [[2, 1, None]]}]}
    network = {"kind": "chain", "layers": [encoder, {"kind": "fc", "weight": "w1", "bias": None, "act": None}]}
    observation = {"shape": [], "dtype": "int64", "first": 1}
    policy = load(_described(tmp_path, observation=observation, network=network))
    assert (policy(1), policy(2.0), policy(np.uint8(2))) == (5, 6, 6)
    for wrong in (0, 3, 1.5, np.nan):
        with pytest.raises(ValueError, match="one of 2 choices has a number outside of them"):
            policy(wrong)


@pytest.mark.parametrize("wrong", [[1.0], [[[1.0, 2.0]]], 3.0, [[1.0, 2.0, 3.0]]])
def test_an_observation_of_another_shape_is_refused(wrong: Any, file: Path) -> None:
    with pytest.raises(ValueError, match=r"observation must have shape \[2\], or \['n', 2\] of a batch"):
        load(file)(wrong)


def test_numbers_that_are_none_are_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        load(file)([np.nan, 1.0])
    with pytest.raises(ValueError, match="NaN or infinity"):
        load(file)([np.inf, 1.0])


def test_every_changed_byte_is_noticed(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    assert json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["w0"]["dtype"] == "F32"
    padding = len(whole) - len(whole.rstrip(b" "))
    assert padding == 0
    damaged = tmp_path / "damaged.policy"
    for place in range(len(whole)):
        if whole[place : place + 1] == b" ":
            continue  # blanks of JSON outside of texts mean nothing, inside the checksum sees them
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"damaged\.policy: "):
            load(damaged)


def test_every_length_but_the_whole_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    short = tmp_path / "short.policy"
    for length in range(0, len(whole), 7):
        short.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"short\.policy: "):
            load(short)


def test_a_file_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has version 3, written by parl-core 9\.9; this parl-core reads"):
        load(_described(tmp_path, version=3))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        load(tmp_path / "nothing.policy")
    with pytest.raises(CheckpointError, match="of the format 'parl-agent'"):
        load(_described(tmp_path, format="parl-agent"))
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="no policy that `parl export --to numpy` wrote"):
        load(tmp_path / "zip")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"network": {"kind": "gru"}}, "a layer 'gru', which this parl-core does not know"),
        ({"network": {"kind": "fc", "weight": "w9", "bias": None, "act": None}}, "does not fit its arrays.*w9"),
        ({"network": {"kind": "fc", "weight": "w1", "bias": "b0", "act": None}}, "does not fit its arrays"),
        ({"network": {"kind": "fc", "weight": "w1", "bias": None, "act": "sine"}}, "sine"),
        ({"observation": {"shape": [3], "dtype": "float32"}}, "does not fit its arrays"),
        ({"sizes": []}, "does not fit its arrays"),
        ({"action": {"dance": 1}}, "does not fit its arrays"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(changes: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=told):
        load(_described(tmp_path, **changes))


def test_a_process_that_acts_imports_numpy_and_two_modules(file: Path) -> None:
    program = (
        "import sys; from parl_core.policy import load; load(sys.argv[1])([1.0, 2.0]);"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('parl', 'parl_core', 'parl_torch', 'torch', 'paddle', 'gymnasium', 'safetensors', 'click')))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['parl_core', 'parl_core.errors', 'parl_core.policy']"
