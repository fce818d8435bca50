"""Files that get their names when they are complete: the common routine of all packages for writing files.

    content ──> .<name>.<random>.tmp ──> to the disk ──> renamed to <name>

So a reader finds the old or the new content, never a part, even if the program is killed. A killed program may leave
the temporary file, which is never read.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["atomic_write", "sync", "write_json"]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    mode: str = "wb",
    *,
    permissions: int | None = None,
    durable: bool = True,
    replace: bool = True,
    **options: Any,
) -> Iterator[IO[Any]]:
    """Open a file to write to, which gets its name when the block ends without an error.

    Args:
        path: The path of the file.
        mode: "wb" for bytes, "w" for text.
        permissions: The permissions of the file from its creation on; default: those of the file that it replaces,
            otherwise 0666 without the bits of the umask.
        durable: True to force the content to the disk before the file gets its name, so that it survives a power loss.
        replace: True to replace an existing file of that name; otherwise it is an error.
        options: Further arguments of `open`, such as `encoding=` and `newline=`.

    Raises:
        FileExistsError: There is a file of that name, with `replace=False`.
        OSError: It cannot be written. As after any other error in the block, an older file of that name is unchanged,
            and no temporary file remains.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.urandom(8).hex()}.tmp")
    kept = _permissions_of(final) if permissions is None else None
    descriptor = os.open(temporary, _FLAGS, 0o666 if permissions is None else permissions)
    try:
        with open(descriptor, mode, **options) as file:
            if kept is not None:
                os.chmod(temporary, kept)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if replace:
            os.replace(temporary, final)
        elif os.name == "nt":
            os.rename(temporary, final)  # on Windows it fails if the file exists
        else:
            os.link(temporary, final)
            temporary.unlink()
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file, which gets its name when it is complete.

    Raises:
        OSError: It cannot be written; an older file of that name is untouched.
    """
    with atomic_write(path, "w") as file:
        file.write(json.dumps(value, indent=1) + "\n")


def _permissions_of(path: Path) -> int | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else None
