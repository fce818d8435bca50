"""Ctrl-C while a program runs itself again ends both, also in the very moment of the start."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, subprocess, sys, time
from parl_core.training import run_again

if "--again" in sys.argv:
    time.sleep(600)
start = subprocess.Popen._execute_child

def interrupted(self, *args, **kwargs):
    start(self, *args, **kwargs)
    print(self.pid, flush=True)
    if {moment!r} == "in the start":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # where Python would raise

subprocess.Popen._execute_child = interrupted
run_again("--again")
"""


@pytest.mark.parametrize("moment", ["in the start", "while it runs"])
def test_ctrl_c_leaves_no_fresh_process_behind(moment: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(moment=moment))
    program = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    again = int(program.stdout.readline())
    if moment == "while it runs":
        program.send_signal(signal.SIGINT)
    _, error = program.communicate(timeout=240)
    assert "KeyboardInterrupt" in error
    assert not Path(f"/proc/{again}").exists()
