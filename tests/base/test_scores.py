"""The scores of presets are those of the runs that the repository has."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from parl_core.training.recipes import read_scores

LEARNING = Path(__file__).parents[2] / "benchmarks" / "learning"


def test_scores_of_presets_are_those_of_the_recorded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LEARNING))
    report = import_module("report")
    rows, _, _ = report.reported(report.read(LEARNING / "results"))
    found = report.scores(rows)
    assert found == json.loads(report.SCORES.read_text()), "run benchmarks/learning/run.py --only-report"
    assert len(read_scores()) == len(found) >= 8
    for score in found.values():
        files = sorted((LEARNING.parents[1]).glob(score["source"]))
        reported = [file for file in files if int(file.stem.rpartition("-")[2]) >= 100]
        assert len(reported) == score["seeds"]
