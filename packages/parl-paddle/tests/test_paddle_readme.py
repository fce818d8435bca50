"""The README's program runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

(PROGRAM,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", path], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
