"""The command `xparl`, for tests that call it often."""

import os
import subprocess
import sys
from collections.abc import Mapping

from click.testing import CliRunner

__all__ = ["XPARL", "xparl"]

XPARL = [sys.executable, "-m", "parl_remote.cli"]
_STARTING = ("start", "connect")  # as commands of the test's process they would leave it children


def xparl(*arguments: object, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with these variables alone.

    Only one that may start a node has a process of its own, which takes longer to start than other commands take.
    """
    words = [str(argument) for argument in arguments]
    if words[0] in _STARTING:
        return subprocess.run(
            [*XPARL, *words], env=environment, capture_output=True, text=True, timeout=240, check=False
        )
    from parl_remote.cli import main  # here: it takes long to import, and many tests never get as far

    variables = {**dict.fromkeys(os.environ), **environment}
    done = CliRunner().invoke(main, words, prog_name="xparl", env=variables, catch_exceptions=False)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
