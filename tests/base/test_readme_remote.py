"""The README's first program does what the README says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_remote_example_runs_as_it_stands(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert "@parl.remote_class" in program
    path = tmp_path / "counting.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([sum(range(10_000_000))] * 2)
