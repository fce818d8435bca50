"""The program that is running, run once more in a fresh process: what was saved has to be enough to go on."""

import os
import subprocess
import sys

__all__ = ["run_again"]


def run_again(*arguments: str | os.PathLike[str]) -> str:
    """Run this program again, wait for its end, and return what it prints.

    Its standard error is shown. Ctrl-C ends it together with this program, which alone says so.

    Args:
        arguments: put behind those that this program was started with, such as `"--restore", path`.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # `python -m module` has one, `python file` has none
    program = [sys.argv[0]] if spec is None else ["-m", spec.name]
    command = [sys.executable, *program, *sys.argv[1:], *(os.fspath(argument) for argument in arguments)]
    # In a process group of its own: the terminal's Ctrl-C reaches this process, and `run` then kills the other one.
    finished = subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
    )
    return finished.stdout
