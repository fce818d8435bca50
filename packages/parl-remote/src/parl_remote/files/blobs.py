"""Contents of files at a worker, each under its hash: what one program has sent, the next one need not send again.

    <directory>/incoming/<number>-<hash>   on its way; moved when it is whole and its hash is right
    <directory>/<hash>                     kept, the least recently used ones removed beyond the limit

All methods belong to one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path

from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.files.manifest import is_digest

__all__ = ["Blobs", "DamagedBlob"]


class DamagedBlob(RemoteError):
    """What was kept is not any more what it was: somebody or something has changed the worker's files.

    Attributes:
        digest: Its hash.
    """

    def __init__(self, digest: str) -> None:
        super().__init__(f"the worker's copy of the content {digest} is damaged")
        self.digest = digest


class _Incoming:
    """A content on its way."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.got = 0
        self.hash = hashlib.sha256()
        self.file = open(path, "xb", buffering=0)  # noqa: SIM115  # it stays open until the content is whole

    def drop(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    """Contents by hash.

    Args:
        directory: Made when the first content comes.
        limit: Bytes beyond which contents that nobody needs now are removed.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._incoming: dict[tuple[str, str], _Incoming] = {}
        self._numbers = itertools.count(1)

    @property
    def total(self) -> int:
        """Bytes that are kept."""
        return sum(self._sizes.values())

    def __contains__(self, digest: str) -> bool:
        return digest in self._sizes

    def add(self, who: str, digest: str, size: int, offset: int, data: memoryview) -> None:
        """Take the next part of a content.

        Args:
            who: Who sends it; two may send the same at once.
            digest: Its hash.
            size: Bytes of the whole.
            offset: Where this part begins; 0 begins anew.
            data: The part.

        Raises:
            RemoteProtocolError: Parts do not follow each other, or are more than was said.
            RemoteError: The whole does not have the hash that it was sent under.
            OSError: It cannot be written.
        """
        if not is_digest(digest):
            raise RemoteProtocolError(f"{digest[:80]!r} is no SHA-256")
        if digest in self._sizes:
            self._give_up(who, digest)  # somebody else was quicker
            return
        coming = self._coming(who, digest, size, offset)
        if coming.got != offset or coming.size != size or offset + len(data) > size:
            raise RemoteProtocolError(f"{len(data)} bytes at {offset} of {size} do not follow on {coming.got}")
        try:
            while data:
                written = coming.file.write(data)
                coming.hash.update(data[:written])
                coming.got += written
                data = data[written:]
        except OSError:
            self._give_up(who, digest)
            raise
        if coming.got == size:
            self._complete(who, digest, coming)

    def read(self, digest: str) -> Path:
        """Where a content lies, for who checks it while reading; it counts as used now.

        Raises:
            DamagedBlob: It is not there.
        """
        if digest not in self._sizes:
            raise DamagedBlob(digest)
        self._sizes.move_to_end(digest)
        return self._directory / digest

    def discard(self, digest: str) -> None:
        """Remove a content."""
        self._sizes.pop(digest, None)
        with contextlib.suppress(OSError):
            (self._directory / digest).unlink()

    def forget(self, who: str) -> None:
        """Somebody will send nothing any more."""
        for known, digest in [key for key in self._incoming if key[0] == who]:
            self._give_up(known, digest)

    def close(self) -> None:
        """Nothing will be sent any more."""
        for who, digest in list(self._incoming):
            self._give_up(who, digest)

    def shrink(self, needed: Collection[str], limit: int | None = None) -> None:
        """Remove what was used least recently until the rest fits the limit; what is needed stays."""
        excess = self.total - (self._limit if limit is None else limit)
        for digest, size in list(self._sizes.items()):
            if excess <= 0:
                return
            if digest not in needed:
                self.discard(digest)
                excess -= size

    def _coming(self, who: str, digest: str, size: int, offset: int) -> _Incoming:
        if offset == 0:
            self._give_up(who, digest)
            directory = self._directory / "incoming"
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._incoming[who, digest] = _Incoming(directory / f"{next(self._numbers)}-{digest}", size)
        coming = self._incoming.get((who, digest))
        if coming is None:
            raise RemoteProtocolError(f"{offset} bytes of {digest} are missing")
        return coming

    def _complete(self, who: str, digest: str, coming: _Incoming) -> None:
        if coming.hash.hexdigest() != digest:
            self._give_up(who, digest)
            raise RemoteError(f"the content {digest} came with another hash: the file was changed meanwhile")
        del self._incoming[who, digest]
        coming.file.close()
        os.replace(coming.path, self._directory / digest)
        self._sizes[digest] = coming.size

    def _give_up(self, who: str, digest: str) -> None:
        coming = self._incoming.pop((who, digest), None)
        if coming is not None:
            coming.drop()
