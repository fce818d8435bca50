"""The README's training example learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_training_example_learns_as_it_stands(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    path = tmp_path / "training.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 4 * 22  # 22 is what random actions reach
    assert (tmp_path / "model.ckpt").exists()
