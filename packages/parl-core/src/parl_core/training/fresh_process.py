"""The program that is running, run once more in a fresh process: what was saved has to be enough to go on."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

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
    process: subprocess.Popen[str] | None = None
    try:
        with _interruptions_wait():
            # In a process group of its own: the terminal's Ctrl-C reaches this process, which then kills the other one.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
            )
        printed, _ = process.communicate()
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed)
    return printed


@contextlib.contextmanager
def _interruptions_wait() -> Iterator[None]:
    """Hold Ctrl-C back: one that falls into the start of a process would leave that process to itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
