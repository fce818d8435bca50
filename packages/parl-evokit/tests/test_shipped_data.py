"""The table and the test vectors that ship are those that the programs beside the source compute."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.mark.slow
@pytest.mark.skipif(not TOOLS.exists(), reason="the programs are in the source only")
@pytest.mark.parametrize("program", ["make_quantiles.py", "make_vectors.py"])
def test_the_shipped_file_is_what_its_program_computes(program: str) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOLS / program)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
