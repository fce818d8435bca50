"""The raw form of logs, that of the PARL 1.x manual, for programs that read nothing else.

    float32 reward | int32 size | that many bytes of `SamplingInfo`

It has no header, no checksum and no end mark. So damage can only be noticed where a size or a message makes no sense,
and everything after it is lost: `read_raw` stops there and says so. Nor do such files have a name of their own: in the
ledger, what a file begins with is its name.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from parl_core.atomic_write import atomic_write
from parl_evokit._records import Record, SamplingInfo
from parl_evokit._samples import Decoded, decode
from parl_evokit.errors import LogError, RecordError
from parl_evokit.log._segments import LogFile, SegmentReport, stretch_of

__all__ = ["read_raw", "read_raw_file", "write_raw"]


HEAD = struct.Struct("<fi")
LARGEST_INFO = 1000  # the original's reader has a buffer of this size


def write_raw(path: str | PathLike[str], infos: Iterable[SamplingInfo], rewards: Iterable[float]) -> None:
    """Write a whole file in the raw form, for programs that read nothing else.

    Raises:
        OSError: It cannot be written; a file of that name is as it was, as after any other error.
    """
    with atomic_write(Path(path)) as file:
        for info, reward in zip(infos, rewards, strict=True):
            data = info.SerializeToString()
            file.write(HEAD.pack(reward, len(data)) + data)


def read_raw(data: bytes) -> tuple[list[Record], int]:
    """Read a whole file in the raw form.

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


PREFIX = "raw-"


def read_raw_file(
    file: LogFile, ledger: Mapping[str, int], until: Mapping[str, int] | None = None
) -> tuple[SegmentReport, Decoded, int]:
    """Read what is new in a file in the raw form.

    Args:
        file: It may have grown since a part of it was used.
        ledger: What has been used.
        until: A later ledger, where to stop. Default: at the end.

    Returns:
        What was found, the new records, and up to which byte the file is used now.

    Raises:
        LogError: The file is not of this form.
    """
    data = stretch_of(file.path, 0, file.size)
    if until is not None:
        data = data[: _known(data, until)]
    start = _known(data, ledger)
    records, taken = read_raw(data[start:])
    end = start + taken
    if data and not end:
        raise LogError(f"{file.path} is neither a segment nor a log in the raw form")
    report = SegmentReport(file.path, _name(data[:end]), len(records), [], len(data) - end, size=file.size)
    return report, decode([record.encode() for record in records], 0), end


def _known(data: bytes, ledger: Mapping[str, int]) -> int:
    """Return the longest beginning of the data that the ledger has."""
    ends = sorted({end for name, end in ledger.items() if name.startswith(PREFIX) and 0 < end <= len(data)})
    digest, place, longest = hashlib.sha256(), 0, 0
    for end in ends:
        digest.update(data[place:end])
        place = end
        if ledger.get(f"{PREFIX}{digest.hexdigest()[:32]}") == end:
            longest = end
    return longest


def _name(data: bytes) -> str:
    return f"{PREFIX}{hashlib.sha256(data).hexdigest()[:32]}"
