"""Between client and worker: what actors need of the program's files, and the folder that they are laid out in.

client --SeeFiles------> worker   FilesSeen: does it see the program's own directories?
client --PrepareFolder-> worker   FolderAnswer: the folder, or the contents that the worker lacks
client --StoreParts----> worker   Done; the parts' bytes follow as one more frame
"""

from __future__ import annotations

from dataclasses import dataclass

from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = ["FilesSeen", "FolderAnswer", "Part", "PrepareFolder", "SeeFiles", "SeenPlace", "StoreParts"]


@dataclass(frozen=True, slots=True)
class SeenPlace:
    """A directory as the program sees it; device and number tell it from another of the same path."""

    path: str
    device: int
    inode: int


@record
class SeeFiles(Message):
    """Asks whether these directories are the same for the worker."""

    request_id: int
    places: tuple[SeenPlace, ...]


@record
class FilesSeen(Message):
    """Whether all of them are."""

    request_id: int
    all: bool


@record
class PrepareFolder(Message):
    """Asks for a folder for this link's actors; the worker removes it when the link and its actors have ended.

    Attributes:
        request_id: The client's number for it.
        digest: Hash of the folder's manifest, which is itself a content that the worker may lack.
        size: Bytes of the manifest.
    """

    request_id: int
    digest: str
    size: int


@record
class FolderAnswer(Message):
    """The folder's path, or else hashes of contents to send before asking again; not necessarily all."""

    request_id: int
    folder: str = ""
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a content: `length` bytes from `offset` of the `size` bytes whose hash is `digest`."""

    digest: str
    size: int
    offset: int
    length: int


@record
class StoreParts(Message):
    """Pieces to keep; the next frame has their bytes, one after the other."""

    request_id: int
    parts: tuple[Part, ...]
