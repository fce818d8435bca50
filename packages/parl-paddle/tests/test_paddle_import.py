"""The effects of importing on a process: none before paddle is used, and Ctrl-C still works afterwards."""

import signal
import subprocess
import sys

import pytest


def _run(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_backend_is_found_without_importing_paddle() -> None:
    assert _run("import parl_paddle.backend, sys; print('paddle' in sys.modules)") == "False"


@pytest.mark.slow
def test_ctrl_c_raises_keyboard_interrupt_after_paddle_was_imported_and_used() -> None:
    program = """
import os, signal
import numpy as np
from parl_paddle.agent import Agent
from parl_paddle.algorithms import DQN
from parl_paddle.networks import QNetwork

Agent(DQN(QNetwork(2))).predict(np.zeros(4, np.float32))
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("stopped")
"""
    assert _run(program) == "stopped"


@pytest.mark.slow
def test_a_handler_of_sigterm_that_a_program_sets_is_called() -> None:
    program = """
import os, signal
import parl_paddle.agent

signal.signal(signal.SIGTERM, lambda *_: print("asked to stop"))
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert _run(program) == "asked to stop"


def test_sigterm_ends_a_process_that_has_no_handler() -> None:
    program = "import os, signal, parl_paddle.agent; os.kill(os.getpid(), signal.SIGTERM); signal.pause()"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=240)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_importing_changes_neither_the_filters_of_warnings_nor_the_number_of_threads() -> None:
    program = """
import warnings
import gymnasium, paddle
before, threads = list(warnings.filters), paddle.get_flags("FLAGS_paddle_num_threads")
import parl_paddle.agent, parl_paddle.algorithms, parl_paddle.layers, parl_paddle.networks
print(warnings.filters == before, threads == paddle.get_flags("FLAGS_paddle_num_threads"))
"""
    assert _run(program) == "True True"
