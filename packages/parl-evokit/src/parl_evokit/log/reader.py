"""Reading logs: every good record once, damage set aside and reported.

    files ─► segments ─► scan from where the ledger says ─► records ─► one reward a sample
                              │
                              └─► damage: skipped, told, and kept with `save_damaged`

The ledger says up to which byte each segment has been used. It lies in the solver's directory and changes together with
the model, so no record counts twice: not when an update runs again, not when a segment was copied.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum
from os import PathLike
from pathlib import Path

from parl_evokit.errors import LogError, RecordError
from parl_evokit.log.frames import SYNC, scan
from parl_evokit.log.header import Header, is_header
from parl_evokit.log.raw import read_raw
from parl_evokit.log.writer import SUFFIX
from parl_evokit.records import Sample, SamplingInfo, read_sample

__all__ = ["LogContents", "SegmentReport", "read_log"]

NewRecord = tuple[Sample, float | None, int]  # with reward and count
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
        infos: One a sample that has a reward.
        rewards: The mean of each sample's rewards.
        pending: Samples that were served and have no reward here.
        ledger: What to hand to the next `read_log`.
        segments: What was found in each file.
    """

    infos: list[SamplingInfo] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    pending: int = 0
    ledger: dict[str, int] = field(default_factory=dict)
    segments: list[SegmentReport] = field(default_factory=list)


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
    contents = LogContents(ledger=dict(ledger or {}))
    rewards: dict[Sample, list[tuple[float, int]]] = {}
    served: set[Sample] = set()
    for path in _files([paths] if isinstance(paths, str | PathLike) else paths):
        for sample, reward, count in _new_records(path, contents, max_damage):
            if reward is None:
                served.add(sample)
            elif sample in rewards:
                rewards[sample].append((reward, count))
            else:
                rewards[sample] = [(reward, count)]
    contents.infos = [SamplingInfo(*sample) for sample in rewards]
    contents.rewards = [_mean(several) for several in rewards.values()]
    contents.pending = len(served.difference(rewards))
    return contents


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


def _new_records(path: Path, contents: LogContents, max_damage: float) -> list[NewRecord]:
    data = path.read_bytes()
    if SYNC not in data[: 2**12] and path.suffix != SUFFIX:
        return _raw_records(path, data, contents)
    header = _header(path, data)
    if header is None:  # nothing but the beginning of a first write
        contents.segments.append(SegmentReport(path, "", 0, [], len(data)))
        return []
    start = contents.ledger.get(header.segment, 0)
    if start > len(data):  # an older copy of a segment that was used further
        start = len(data)
    found = scan(data, start)
    records: list[NewRecord] = []
    for payload in found.payloads:
        if is_header(payload):
            continue
        try:
            sample, reward, count = read_sample(payload)
        except RecordError as error:
            raise LogError(f"{path} has a whole frame that is not a record: {error}") from error
        if not sample[2]:
            sample = (sample[0], sample[1], header.fingerprint)
        records.append((sample, reward, count))
    report = SegmentReport(path, header.segment, len(records), found.damage, len(data) - found.end)
    if report.damaged_bytes > max_damage * len(data):
        raise LogError(
            f"{path}: {report.damaged_bytes} of {len(data)} bytes are damaged, more than max_damage={max_damage:g} "
            f"allows; {len(records)} records are good. Give a larger max_damage to use them"
        )
    contents.segments.append(report)
    contents.ledger[header.segment] = max(found.end, contents.ledger.get(header.segment, 0))
    return records


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


def _raw_records(path: Path, data: bytes, contents: LogContents) -> list[NewRecord]:
    records, end = read_raw(data)
    if data and not records:
        raise LogError(f"{path} is neither a segment nor a log in the documents' form")
    segment = f"raw-{hashlib.sha256(data[:end]).hexdigest()[:32]}"
    if segment in contents.ledger:
        records = []
    contents.segments.append(SegmentReport(path, segment, len(records), [], len(data) - end))
    contents.ledger[segment] = end
    infos = [record.info for record in records]
    return [
        ((tuple(info.key), info.model_iter_id, info.fingerprint), record.reward, 1)
        for info, record in zip(infos, records, strict=True)
    ]


def _mean(rewards: list[tuple[float, int]]) -> float:
    if len(rewards) == 1:
        return rewards[0][0]
    try:
        return fsum(reward * count for reward, count in rewards) / sum(count for _, count in rewards)
    except (ValueError, OverflowError):  # opposite infinities: not finite, so that the update sets it aside
        return float("nan")
