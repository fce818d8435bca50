"""The cluster's key, and files that only their owner may read or change.

A holder of the key is a member of the cluster: it may connect, lease, run code. The key is 32 random bytes; the secrets
of both ends of an encrypted connection are derived from it, so that another host needs only one short line. Key files
must be regular files of the own user without access for others.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parl_core.atomic_write import atomic_write
from parl_remote._system.facilities import NO_FOLLOW, own_user
from parl_remote.errors import AuthenticationFailed

__all__ = ["ClusterKey", "make_private_dir", "read_private_file", "write_private_file"]

_KEY_BYTES = 32
_PREFIX = "parl1-"  # marks a text as a key and gives its version


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """One cluster's secret; never shown by `repr`."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != _KEY_BYTES:
            raise AuthenticationFailed(f"a cluster key has {_KEY_BYTES} bytes, this one {len(self.secret)}")

    @classmethod
    def generate(cls) -> ClusterKey:
        """Return a new random key."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def from_text(cls, text: str, *, source: str) -> ClusterKey:
        """Return the key written by `to_text`.

        Args:
            text: The key's line.
            source: The text's origin, for messages; the text itself is never shown.

        Raises:
            AuthenticationFailed: The text is not a key.
        """
        line = text.strip()
        try:
            if not line.startswith(_PREFIX):
                raise ValueError
            return cls(bytes.fromhex(line.removeprefix(_PREFIX)))
        except (ValueError, AuthenticationFailed):
            raise AuthenticationFailed(
                f"{source} holds no cluster key: that is one line, '{_PREFIX}' and {2 * _KEY_BYTES} hexadecimal digits"
            ) from None

    @classmethod
    def from_file(cls, path: Path) -> ClusterKey:
        """Read a key file.

        Raises:
            AuthenticationFailed: The file is missing, not private to this user, or holds no key.
        """
        return cls.from_text(read_private_file(path), source=str(path))

    def to_text(self) -> str:
        """Return the key as one line, for `PARL_KEY` and key files."""
        return _PREFIX + self.secret.hex()

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose, which reveal nothing about the key or the bytes of other purposes."""
        return hashlib.blake2b(purpose.encode(), key=self.secret, digest_size=32).digest()


def make_private_dir(path: Path) -> Path:
    """Create a directory of mode 0700, or check that an existing one is private to this user.

    Raises:
        AuthenticationFailed: It belongs to another user, is accessible to others, or is not a directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    _check_private(path, path.lstat(), stat.S_ISDIR, "directory", "700")
    return path


def write_private_file(path: Path, text: str) -> None:
    """Write a file of mode 0600 atomically: readers see the old content or the new; other users see neither.

    Raises:
        OSError: It cannot be written.
    """
    with atomic_write(path, "w", permissions=0o600, durable=False, encoding="utf-8") as file:
        file.write(text)


def read_private_file(path: Path, *, max_bytes: int = 2**20) -> str:
    """Read a file that only this user can have written and read.

    Raises:
        AuthenticationFailed: It is missing, unreadable, of another user, or accessible to others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise AuthenticationFailed(f"{path} is a symbolic link; name the file that it leads to") from error
        raise AuthenticationFailed(f"cannot read {path}: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(descriptor), stat.S_ISREG, "file", "600")
        return os.read(descriptor, max_bytes).decode("utf-8", errors="replace")
    finally:
        os.close(descriptor)


def _check_private(path: Path, found: os.stat_result, is_kind: Callable[[int], bool], kind: str, mode: str) -> None:
    if not is_kind(found.st_mode):
        raise AuthenticationFailed(f"{path} is not a {kind}; move it away")
    user = own_user()
    if user is None:  # Windows: files in a user's profile are private, which their modes do not show
        return
    if found.st_uid != user:
        raise AuthenticationFailed(
            f"{path} belongs to user {found.st_uid}, not to you (user {user}); PARL takes only your own {kind}"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise AuthenticationFailed(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others could read it; run: chmod {mode} {path}"
        )
