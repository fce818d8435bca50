"""Noise and updates are the same to the bit under the oldest numpy and a newer one, each in a fresh environment."""

import subprocess
import sys

import pytest
from fresh_environment import ROOT


@pytest.mark.slow
def test_digests_are_equal_over_numpy_versions_threads_and_processor_extensions() -> None:
    tool = ROOT / "benchmarks" / "evolution" / "digests.py"
    command = [sys.executable, str(tool), "--numpy", "1.26.4", "2.2.6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {sys.version_info[0]}")]
    assert len(rows) == 6, done.stderr  # two numpys, three variants each
    assert "8 digests each: all equal" in done.stdout
