"""The programs of the README run as they are."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_block_descends(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[0], {})
    assert float(capsys.readouterr().out) > -1.0


def test_the_agent_and_the_log_work_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[1], {})
    assert (tmp_path / "model_dir" / "solver.json").exists()
    assert list((tmp_path / "sampling_log").glob("*.evl"))
