"""The pictures of the pages are those that their scripts draw; the actor's protocol is the one that runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["draw_protocol.py", "diagrams.py"])
def test_a_picture_is_the_one_that_its_script_draws(script: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
