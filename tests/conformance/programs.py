"""Environment variables for programs that a test starts and that import this kit."""

import os
from pathlib import Path

__all__ = ["environment"]

_KITS = str(Path(__file__).parents[1])


def environment() -> dict[str, str]:
    """Return this process's variables, with the folder of the kits first on PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_KITS, os.environ.get("PYTHONPATH"))))}
