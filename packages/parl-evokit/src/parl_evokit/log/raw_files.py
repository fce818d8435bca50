"""Files in the documents' form in the ledger: they have no name of their own, so what they begin with is their name."""

import hashlib
from collections.abc import Mapping

from parl_evokit.errors import LogError
from parl_evokit.log.columns import Decoded, decode
from parl_evokit.log.files import LogFile, stretch_of
from parl_evokit.log.raw import read_raw
from parl_evokit.log.segments import SegmentReport

__all__ = ["read_raw_file"]

PREFIX = "raw-"


def read_raw_file(
    file: LogFile, ledger: Mapping[str, int], until: Mapping[str, int] | None = None
) -> tuple[SegmentReport, Decoded, int]:
    """Read what is new in a file in the documents' form.

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
        raise LogError(f"{file.path} is neither a segment nor a log in the documents' form")
    report = SegmentReport(file.path, _name(data[:end]), len(records), [], len(data) - end)
    return report, decode([record.encode() for record in records], 0), end


def _known(data: bytes, ledger: Mapping[str, int]) -> int:
    """The longest beginning of the data that the ledger has."""
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
