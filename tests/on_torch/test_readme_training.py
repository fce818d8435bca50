"""The README's training example learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SEEDED = "from parl import training\n\ntraining.seed_everything(9)\n"


@pytest.mark.slow
def test_the_training_example_learns_as_it_stands(tmp_path: Path) -> None:
    """With a seed before it: of ten seeds one unlearns what it had learned, as policy gradients of one episode may."""
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    path = tmp_path / "training.py"
    path.write_text(SEEDED + program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    returns = [float(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines() if line.startswith("episode")]
    assert max(returns[-3:]) > 2 * 22  # 22 is what random actions reach
    assert (tmp_path / "model.ckpt").exists()
