"""Files that appear under their name only when they are complete."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["atomic_write", "sync", "write_json"]


@contextmanager
def atomic_write(path: Path, mode: str = "xb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file to write to, which gets its name at the end of the block, when all of it is on the disk.

    Args:
        path: its name; a file of that name is replaced.
        mode: "xb" for bytes, "x" for text.
        options: others of `open`, such as `encoding=` and `newline=`.

    Raises:
        OSError: it cannot be written. A file of that name is untouched, and nothing else is left, as with any other
            error in the block.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open(mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file, which appears under its name when it is complete.

    Raises:
        OSError: it cannot be written; an older file of that name is untouched.
    """
    with atomic_write(path, "x") as file:
        file.write(json.dumps(value, indent=1) + "\n")
