"""JSON files that are there whole or not at all."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

__all__ = ["write_json"]


def write_json(path: Path, value: Any) -> None:
    """Write a file under a temporary name and rename it.

    Raises:
        OSError: it cannot be written; an older file of that name is untouched.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x") as file:
            file.write(json.dumps(value, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
