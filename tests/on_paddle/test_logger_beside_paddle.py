"""The format of messages in a program that imports paddle, which gives the root logger a handler of its own."""

import subprocess
import sys
from pathlib import Path


def test_messages_keep_their_format_when_paddle_has_been_imported(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import paddle\nfrom parl.utils import logger\nlogger.info('Episode %d', 1)\n")
    command = [sys.executable, "-W", "ignore", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    lines = [line for line in done.stderr.splitlines() if "Episode 1" in line]
    assert len(lines) == 1
    assert lines[0].endswith("MainThread @program.py:3] Episode 1")
