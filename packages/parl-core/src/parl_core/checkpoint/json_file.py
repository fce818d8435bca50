"""JSON files that are there whole or not at all."""

import json
from pathlib import Path
from typing import Any

from parl_core.whole_file import whole_file

__all__ = ["write_json"]


def write_json(path: Path, value: Any) -> None:
    """Write a file in one step.

    Raises:
        OSError: it cannot be written; an older file of that name is untouched.
    """
    with whole_file(path, "x") as file:
        file.write(json.dumps(value, indent=1) + "\n")
