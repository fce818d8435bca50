"""The page about the actor's protocol says what the program does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_drawn_protocol_is_the_one_that_runs() -> None:
    command = [sys.executable, str(ROOT / "tools" / "draw_protocol.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
