"""The programs of the README run as they are."""

import re
from pathlib import Path

import pytest

from parl_evokit import ESAgent, LogWriter, mlp

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(SETTINGS,) = re.findall(r"^```\n(solver .*?)```", README, re.DOTALL | re.MULTILINE)


def test_the_first_block_descends(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[0], {})
    assert float(capsys.readouterr().out) > -1.0


def test_the_agent_and_the_log_work_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.prototxt").write_text(SETTINGS)
    names: dict[str, object] = {}
    exec(BLOCKS[1].replace("[info, ...], [1.0, ...]", "[info, sampler.add_noise()], [1.0, 2.0]"), names)
    assert (tmp_path / "model_dir" / "solver.json").exists()
    agent = ESAgent("config.prototxt", mlp([4, 20, 2]))
    exec(BLOCKS[2].replace('"processes"', '"threads"'), {"agent": agent, "__name__": "__main__"})
    assert agent.model_iter_id == 3
    exec(BLOCKS[3], {"LogWriter": LogWriter, "info": agent.clone().add_noise()})
    assert list((tmp_path / "sampling_log").glob("*.evl"))
