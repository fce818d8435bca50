"""The benchmark of plain functions keeps what it has measured when it is ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "remote" / "functions.py"


@pytest.mark.slow
def test_a_benchmark_that_is_ended_writes_what_it_has_measured(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    command = [sys.executable, str(BENCHMARK), "--only", "first", "--rounds", "1000", "--output", str(table)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("parl_functions first")
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=120)[1]
        assert running.returncode == 0, said
    assert "| start to the first result |" in table.read_text()
