"""The `parl` command; it needs the extra `train`, and says so where that is missing."""

import os
import sys

from parl_core._config import one_thread_unless_chosen

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    # The usual networks are small: on several threads they are slower, and much so beside other programs.
    os.environ.update(one_thread_unless_chosen(os.environ))
    try:
        from parl_core.cli._commands import parl
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "gymnasium"):
            raise
        sys.exit(f"the parl command needs {missing.name}; install it with: pip install 'parl-core[train]'")
    parl()
