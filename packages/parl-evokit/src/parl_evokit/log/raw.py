"""The documents' own log form: float32 reward, int32 size, that many bytes of `SamplingInfo`; nothing else.

It has no header, no checksum and no end mark. So damage can only be noticed where a size or a message makes no sense,
and everything after it is lost: `read_raw` stops there and says so.
"""

import struct
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from parl_core.whole_file import whole_file
from parl_evokit.errors import RecordError
from parl_evokit.records import Record, SamplingInfo

__all__ = ["read_raw", "write_raw"]

HEAD = struct.Struct("<fi")
LARGEST_INFO = 1000  # the original's reader has a buffer of this size


def write_raw(path: str | PathLike[str], infos: Iterable[SamplingInfo], rewards: Iterable[float]) -> None:
    """Write a whole file in the documents' form, for programs that read nothing else.

    Raises:
        OSError: It cannot be written; a file of that name is as it was, as after any other error.
    """
    with whole_file(Path(path)) as file:
        for info, reward in zip(infos, rewards, strict=True):
            data = info.SerializeToString()
            file.write(HEAD.pack(reward, len(data)) + data)


def read_raw(data: bytes) -> tuple[list[Record], int]:
    """Read a whole file in the documents' form.

    Returns:
        The records, and how many bytes they took: all, unless the rest is damaged or not yet written.
    """
    records: list[Record] = []
    place = 0
    while place + HEAD.size <= len(data):
        reward, size = HEAD.unpack_from(data, place)
        after = place + HEAD.size + size
        if not 0 <= size <= LARGEST_INFO or after > len(data):
            break
        info = SamplingInfo()
        try:
            info.ParseFromString(data[place + HEAD.size : after])
        except RecordError:
            break
        records.append(Record(info, reward))
        place = after
    return records, place
