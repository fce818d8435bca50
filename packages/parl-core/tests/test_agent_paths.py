"""The path of a saved agent: a file or a directory, existing or not."""

from pathlib import Path

import pytest

from parl_core._agent_file import locate


def test_a_path_with_a_suffix_is_a_file(tmp_path: Path) -> None:
    assert locate(tmp_path / "model.ckpt") == tmp_path / "model.ckpt"


@pytest.mark.parametrize("name", ["model_dir", "model.dir/"])
def test_a_path_without_a_suffix_or_with_a_slash_is_a_directory(tmp_path: Path, name: str) -> None:
    assert locate(f"{tmp_path}/{name}") == tmp_path / name / "agent.safetensors"


def test_what_exists_decides(tmp_path: Path) -> None:
    (tmp_path / "run.1").mkdir()
    (tmp_path / "model").write_bytes(b"")
    assert locate(tmp_path / "run.1") == tmp_path / "run.1" / "agent.safetensors"
    assert locate(tmp_path / "model") == tmp_path / "model"


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/model.ckpt") == tmp_path / "model.ckpt"
