"""Reading logs: every good record once, damage set aside and reported.

    files ─► segments ─► scan from where the ledger says ─► records ─► one reward a sample
                              │
                              └─► damage: skipped, told, and kept with `save_damaged`

The ledger says up to which byte each segment has been used. It lies in the solver's directory and changes together with
the model, so no record counts twice: not when an update runs again, not when a segment was copied.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np

from parl_evokit.errors import LogError, RecordError
from parl_evokit.log.columns import Decoded, decode
from parl_evokit.log.frames import scan
from parl_evokit.log.header import Header, is_header
from parl_evokit.log.raw import read_raw
from parl_evokit.log.writer import SUFFIX
from parl_evokit.records import SamplingInfo
from parl_evokit.samples import Samples

__all__ = ["LogContents", "SegmentReport", "read_log"]

HEADERS = 1024  # bytes within which a segment's two headers lie


@dataclass
class SegmentReport:
    """What was found in one file.

    Attributes:
        path: The file.
        segment: The segment's name; of a file in the documents' form, one made of its contents.
        records: Good records that had not been used yet.
        damage: (start, end) of the stretches that do not hold.
        unread: Bytes at the end that are not a whole record: not yet written, or cut off.
    """

    path: Path
    segment: str
    records: int
    damage: list[tuple[int, int]]
    unread: int

    @property
    def damaged_bytes(self) -> int:
        """The length of all damaged stretches."""
        return sum(end - start for start, end in self.damage)

    def save_damaged(self) -> Path | None:
        """Append the damaged bytes to `<file>.damaged` for whoever wants to look; None where there are none."""
        if not self.damage:
            return None
        target = self.path.with_name(self.path.name + ".damaged")
        data = self.path.read_bytes()
        with target.open("ab") as file:
            for start, end in self.damage:
                file.write(data[start:end])
        return target


@dataclass
class LogContents:
    """New samples of a log.

    Attributes:
        samples: Rows with a reward, as they were logged.
        pending: Samples that were served and have no reward here.
        ledger: What to hand to the next `read_log`.
        segments: What was found in each file.
    """

    samples: Samples
    pending: int
    ledger: dict[str, int]
    segments: list[SegmentReport]

    @cached_property
    def _one_each(self) -> Samples:
        return self.samples.joined()

    @cached_property
    def infos(self) -> list[SamplingInfo]:
        """One a sample that has a reward, by model and key."""
        return self._one_each.infos()

    @cached_property
    def rewards(self) -> list[float]:
        """The mean of each sample's rewards."""
        rewards: list[float] = self._one_each.rewards.tolist()
        return rewards


def read_log(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    ledger: Mapping[str, int] | None = None,
    *,
    max_damage: float = 0.01,
) -> LogContents:
    """Read what is new.

    Args:
        paths: Logs: directories of segments, or single files; also files in the documents' form.
        ledger: From the last time. Default: everything is new.
        max_damage: The part of a segment's bytes that may be damaged, 0 to 1.

    Raises:
        LogError: A path does not exist, a file is neither form, a segment's name cannot be read, or too much of one is
            damaged.
    """
    known = dict(ledger or {})
    segments: list[SegmentReport] = []
    parts: list[Decoded] = []
    for path in _files([paths] if isinstance(paths, str | PathLike) else paths):
        data = path.read_bytes()
        is_segment = path.suffix == SUFFIX or any(map(is_header, scan(data[:HEADERS]).payloads))
        report, part = _read_segment(path, data, known, max_damage) if is_segment else _read_raw(path, data, known)
        segments.append(report)
        parts.append(part)
    rewarded = Samples.concatenated([part.rewarded for part in parts])
    served = Samples.concatenated([part.served for part in parts])
    return LogContents(rewarded, _pending(served, rewarded), known, segments)


def _files(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(path.glob(f"*{SUFFIX}"))
        elif path.is_file():
            files.append(path)
        else:
            raise LogError(f"{path} is neither a log's directory nor a file")
    return files


def _read_segment(path: Path, data: bytes, ledger: dict[str, int], max_damage: float) -> tuple[SegmentReport, Decoded]:
    header = _header(path, data)
    if header is None:  # nothing but the beginning of a first write
        return SegmentReport(path, "", 0, [], len(data)), decode([], 0)
    used = ledger.get(header.segment, 0)
    found = scan(data, min(used, len(data)))  # an older copy of a segment may be shorter than what was used of it
    payloads = [payload for payload in found.payloads if not is_header(payload)]
    try:
        part = decode(payloads, header.fingerprint)
    except RecordError as error:
        raise LogError(f"{path} has a whole frame that is not a record: {error}") from error
    report = SegmentReport(path, header.segment, len(payloads), found.damage, len(data) - found.end)
    if report.damaged_bytes > max_damage * len(data):
        raise LogError(
            f"{path}: {report.damaged_bytes} of {len(data)} bytes are damaged, more than max_damage={max_damage:g} "
            f"allows; {len(payloads)} records are good. Give a larger max_damage to use them"
        )
    ledger[header.segment] = max(found.end, used)
    return report, part


def _header(path: Path, data: bytes) -> Header | None:
    payloads = scan(data[:HEADERS]).payloads or scan(data).payloads
    for payload in payloads:
        if is_header(payload):
            try:
                return Header.decode(payload)
            except RecordError as error:
                raise LogError(f"{path}: {error}") from error
    if payloads:
        raise LogError(f"{path}: both headers are damaged, so its records cannot be told from others already used")
    return None


def _read_raw(path: Path, data: bytes, ledger: dict[str, int]) -> tuple[SegmentReport, Decoded]:
    records, end = read_raw(data)
    if data and not records:
        raise LogError(f"{path} is neither a segment nor a log in the documents' form")
    segment = f"raw-{hashlib.sha256(data[:end]).hexdigest()[:32]}"
    new = [] if segment in ledger else records
    ledger[segment] = end
    return SegmentReport(path, segment, len(new), [], len(data) - end), decode([r.encode() for r in new], 0)


def _pending(served: Samples, rewarded: Samples) -> int:
    """How many of the served samples have no reward."""
    if not len(served):
        return 0
    ours = replace(served, counts=np.zeros_like(served.counts))
    theirs = replace(rewarded, counts=np.ones_like(rewarded.counts))
    ordered, starts = Samples.concatenated([ours, theirs]).sorted_runs()
    return int(np.count_nonzero(np.add.reduceat(ordered.counts, starts) == 0))
