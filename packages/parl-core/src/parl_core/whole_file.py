"""Files that are there whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["sync", "whole_file"]


@contextmanager
def whole_file(path: Path, mode: str = "xb", **options: Any) -> Iterator[IO[Any]]:
    """A file to write to, which gets its name at the end of the block, when all of it is on the disk.

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
    """Have the system write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
