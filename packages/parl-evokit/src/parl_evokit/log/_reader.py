"""Reading logs: each good record counts once, damage is reported, and rewards are joined to their samples.

    files ─► segments ─► scan from the ledger's place ─► records ─► one reward per sample
                              │
                              └─► damage: skipped, reported, and kept with `save_damaged`

The ledger has the number of used bytes of each segment. It is in the directory of the solver and changes together with
the model, so no record counts twice, even if an update runs again or a segment was copied.

A segment with too much damage or without a complete header is left out; the others are read. The update moves such
files aside after it has succeeded.

Served samples wait for their reward across segments, processes and updates:

    served ─┐                       ┌─ rewarded: ready for the update
    waiting ┼─► joined by sample ─► ┤
    rewards ┘                       └─ waiting: kept in the solver's directory until they are too old

The record of a reward usually contains the complete sample. If it contains only the key, as for a click that arrives
through a browser, or only the key and the model, as the messages of PARL 1.x, the rest is taken from the sample that
was served with them.

The raw form is that of the PARL 1.x manual, for programs that read only this form:

    float32 reward | int32 size | that many bytes of `SamplingInfo`

It has no header, checksum or end mark. Damage is only noticed if a size or a message is invalid, and the rest of the
file is lost: `read_raw` stops there. In the ledger, the name of such a file is a digest of its used bytes.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.atomic_write import atomic_write
from parl_evokit._directories import path_of
from parl_evokit._records import Record, SamplingInfo
from parl_evokit._samples import NO_KEY, DecodedRecords, Samples, decode
from parl_evokit.errors import LogError, RecordError
from parl_evokit.log._frames import SUFFIX, Header
from parl_evokit.log._segments import (
    DIGITS,
    Batch,
    FileGone,
    FileUnreadable,
    LogFile,
    SegmentReport,
    files_of,
    read_header,
    read_segment,
    stretch_of,
)
from parl_evokit.noise._keys import CONTROL_KEY

__all__ = [
    "LogContents",
    "SegmentReport",
    "joined_rewards",
    "present_in",
    "read_log",
    "read_raw",
    "read_raw_file",
    "recent",
    "write_raw",
]

HEAD = struct.Struct("<fi")
LARGEST_INFO = 1000  # the original's reader has a buffer of this size
PREFIX = "raw-"  # length of names in the ledger


def joined_rewards(served: Samples, rewarded: Samples, only_tokens: bool = False) -> tuple[Samples, Samples]:
    """Join rewards to the samples that were served.

    Args:
        served: Samples without reward, waiting ones included; repetitions count once.
        rewarded: Rewards. One without fingerprint (0) belongs to the served sample with its key and model, if there is
            exactly one; without a model (0), too, to the one with its key.
        only_tokens: True if rewards count only with a token.

    Returns:
        The rewards with their samples, and the samples that have no reward yet that counts.
    """
    told_apart = (served.keys != CONTROL_KEY) & (served.keys != NO_KEY)
    if len(served) and not rewarded.fingerprints.all():
        rewarded = _named(_one_each(served.where(told_apart)), rewarded)
    counting = np.isfinite(rewarded.rewards)
    if only_tokens:
        counting &= rewarded.tokens
    answered = rewarded if counting.all() else rewarded.where(counting)
    # Most samples are rewarded: sorting all of them would take the memory of two copies.
    waiting = _one_each(served.where(told_apart & ~present_in(answered, served)))
    return rewarded, replace(waiting, counts=np.ones_like(waiting.counts), rewards=np.zeros_like(waiting.rewards))


def _one_each(samples: Samples) -> Samples:
    """Return one row per sample, by model, fingerprint and key."""
    ordered, starts = samples.sorted_runs()
    return ordered if len(starts) == len(ordered) else ordered.where(starts)


def present_in(known: Samples, samples: Samples) -> NDArray[np.bool_]:
    """Return a mask of the samples that are among the known ones, by model, fingerprint and key, `[n]`."""
    keys = np.sort(known.keys)
    found = np.searchsorted(keys, samples.keys)
    found[found == len(keys)] = 0
    present: NDArray[np.bool_] = keys[found] == samples.keys if len(keys) else np.zeros(len(samples), np.bool_)
    rows = np.flatnonzero(present)
    if not len(rows):
        return present
    some = known.where(np.isin(known.keys, samples.keys[rows])) if len(rows) < len(samples) // 8 else known
    models, prints = _all_of(some.models, samples.models), _all_of(some.fingerprints, samples.fingerprints)
    if models and prints:  # the usual case: they differ only in keys
        return present
    pairs = {*zip(some.keys.tolist(), some.models.tolist(), some.fingerprints.tolist(), strict=True)}
    wanted = zip(
        *(column[rows].tolist() for column in (samples.keys, samples.models, samples.fingerprints)), strict=True
    )
    present[rows] = [row in pairs for row in wanted]
    return present


def _all_of(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether all numbers of both columns are the same one."""
    return bool((a == a[0]).all() and (b == a[0]).all())


def recent(waiting: Samples, model_iter_id: int, max_age: int) -> Samples:
    """Return the samples whose models are at most `max_age` updates old."""
    return waiting.where(model_iter_id - waiting.models <= max_age)


def _named(served: Samples, rewarded: Samples) -> Samples:
    """Return rewards; those without a fingerprint get that of the one served sample with their key and model.

    One without a model, too, gets both from the one with its key.
    """
    unnamed = rewarded.fingerprints == 0
    with_model = unnamed & (rewarded.models != 0)
    models, fingerprints = rewarded.models.copy(), rewarded.fingerprints.copy()
    for wanted, names in ((with_model, ("keys", "models")), (unnamed & ~with_model, ("keys",))):
        rows = np.flatnonzero(wanted)
        if len(rows):
            sources = _only_one([(getattr(served, name), getattr(rewarded, name)[rows]) for name in names])
            rows, sources = rows[sources >= 0], sources[sources >= 0]
            models[rows], fingerprints[rows] = served.models[sources], served.fingerprints[sources]
    return replace(rewarded, models=models, fingerprints=fingerprints)


def _only_one(columns: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> NDArray[np.intp]:
    """Return for each row `[m]` of a table the unique equal row of another table; -1 without a unique one.

    Args:
        columns: Each column of the other table, `[n]`, and of this one, `[m]`.
    """
    n = len(columns[0][0])
    both = [np.concatenate(pair) for pair in columns]
    order = np.lexsort(both)
    begins = np.zeros(len(order), np.bool_)
    for column in both:
        begins[1:] |= column[order[1:]] != column[order[:-1]]
    groups = np.empty(len(order), np.intp)
    groups[order] = np.cumsum(begins)
    found, last = np.bincount(groups[:n], minlength=len(order)), np.empty(len(order), np.intp)
    last[groups[:n]] = np.arange(n)
    return np.where(found[groups[n:]] == 1, last[groups[n:]], -1)


@dataclass
class LogContents:
    """New samples of a log.

    Attributes:
        samples: Samples with a reward, one row per logged reward.
        waiting: Served samples without a valid reward, including those that waited before.
        ledger: The argument `ledger` of the next `read_log`: the number of used bytes of each segment.
        segments: The findings in each file.
        expired: Number of samples whose models are too old to wait for a reward.
        quarantined: Files to move aside, because too much of them is damaged or they have no complete header.
        unreadable: Files that are left out until they can be read: a permission is missing, or the disk is damaged.
        refused: Numbers of rejected tokens, by the number of the reason (`tokens.Refusal`).
        earliest_us: The earliest time in a record, in microseconds since 1970 (UTC); 0 without times.
        latest_us: The latest time; 0 without times.
    """

    samples: Samples
    waiting: Samples
    ledger: dict[str, int]
    segments: list[SegmentReport]
    expired: int = 0
    quarantined: list[SegmentReport] = field(default_factory=list)
    unreadable: list[SegmentReport] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    earliest_us: int = 0
    latest_us: int = 0

    def expire(self, model_iter_id: int, max_age: int) -> None:
        """Drop waiting samples of models that are more than `max_age` updates old."""
        before = len(self.waiting)
        self.waiting = recent(self.waiting, model_iter_id, max_age)
        self.expired += before - len(self.waiting)

    @property
    def pending(self) -> int:
        """Number of served samples that have no finite reward yet that counts."""
        return len(self.waiting)

    @property
    def damaged_bytes(self) -> int:
        """Total number of damaged bytes."""
        return sum(segment.damaged_bytes for segment in self.segments)

    @cached_property
    def _one_each(self) -> Samples:
        told_apart = self.samples.keys > NO_KEY
        if told_apart.all():
            return self.samples.joined()
        parts = [self.samples.where(told_apart).joined(), self.samples.where(~told_apart)]
        return Samples.concatenated(parts).sorted_runs()[0]

    @cached_property
    def infos(self) -> list[SamplingInfo]:
        """One record for each sample with a reward (or for each reward without a key), sorted by model and key."""
        return self._one_each.infos()

    @cached_property
    def rewards(self) -> list[float]:
        """Mean reward of each sample of `infos`."""
        rewards: list[float] = self._one_each.rewards.tolist()
        return rewards


def read_log(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    ledger: Mapping[str, int] | None = None,
    *,
    max_damage: float = 0.01,
    waiting: Samples | None = None,
    until: Mapping[str, int] | None = None,
    only_tokens: bool = False,
) -> LogContents:
    """Read the new records of logs.

    Args:
        paths: Logs: directories of segments, or single files; also files in the raw form.
        ledger: `ledger` of the previous call. Default: all records are new.
        max_damage: Share of all bytes of files with new records that may be damaged, 0 to 1. If more is damaged, the
            most damaged files are left out until the share of the rest is below this.
        waiting: `waiting` of the previous call: served samples without a reward.
        until: A later ledger, to repeat the call that returned it: only records up to that ledger are read.
        only_tokens: True if a sample whose rewards all came without a token continues to wait.

    Raises:
        LogError: A path does not exist, a file is of neither form, all new records would be left out, or `max_damage`
            is out of its range.
    """
    if not 0.0 <= max_damage <= 1.0:
        raise LogError(f"max_damage must be a share from 0 to 1, not {max_damage}")
    known = dict(ledger or {})
    logs = [paths] if isinstance(paths, str | PathLike) else list(paths)
    files = files_of(logs)
    left_out: dict[Path, SegmentReport] = {}
    unreadable: dict[Path, SegmentReport] = {}
    while True:
        try:
            reading = _ReadPass([file for file in files if file.path not in left_out], known, until)
        except FileGone:  # begin again without it
            files = files_of(logs)
            continue
        except FileUnreadable as error:  # the same; it may be read another time
            report = SegmentReport(error.path, "", 0, [], 0, f"it cannot be read: {error.reason}")
            left_out[error.path] = unreadable[error.path] = report
            continue
        reports = reading.reports
        left_out.update((report.path, report) for report in reports if report.problem and not report.records)
        worst = _too_damaged([report for report in reports if report.path not in left_out], max_damage)
        if not worst:
            break
        left_out.update((report.path, report) for report in worst)
    kept = [report for report in reports if report.path not in left_out]
    for report in left_out.values():
        report.problem = report.problem or (
            f"{report.lost_bytes} of {report.size} bytes are damaged, more than max_damage={max_damage:g} allows; "
            f"{report.records} new records are good. Set a larger max_damage to use them, or move the file away"
        )
    if left_out and not any(report.records for report in kept):
        raise LogError("; ".join(f"{report.path}: {report.problem}" for report in left_out.values()))
    rewarded, served = reading.batch.samples()
    rewarded, still_waiting = joined_rewards(
        served if waiting is None else Samples.concatenated([served, waiting]), rewarded, only_tokens
    )
    bad = [report for report in kept if report.lost_bytes > max_damage * report.size]
    return LogContents(
        rewarded,
        still_waiting,
        reading.known,
        kept + list(left_out.values()),
        quarantined=[report for path, report in left_out.items() if path not in unreadable] + bad,
        unreadable=list(unreadable.values()),
        refused=reading.batch.refused,
        earliest_us=reading.batch.earliest_us,
        latest_us=reading.batch.latest_us,
    )


def _too_damaged(reports: Sequence[SegmentReport], max_damage: float) -> list[SegmentReport]:
    """Return the worst files, without which the damage of the others is at most `max_damage`."""
    by_share = sorted(reports, key=lambda report: -report.lost_bytes / max(1, report.size))
    read, lost = sum(report.size for report in reports), sum(report.lost_bytes for report in reports)
    worst: list[SegmentReport] = []
    for report in by_share:
        if lost <= max_damage * read:
            break
        worst.append(report)
        read, lost = read - report.size, lost - report.lost_bytes
    return worst


class _ReadPass:
    """One pass over the files of logs."""

    def __init__(self, files: Sequence[LogFile], ledger: Mapping[str, int], until: Mapping[str, int] | None) -> None:
        self.known = dict(ledger)
        self.reports: list[SegmentReport] = []
        self.batch = Batch()
        names = [name[:DIGITS] for name in ledger]
        by_digits = dict(zip(names, ledger, strict=True)) if len(set(names)) == len(names) else {}
        segments: dict[str, tuple[Header, list[LogFile]]] = {}
        for file in files:
            segment = by_digits.get(file.digits) if until is None else None
            if segment is not None and file.size <= ledger[segment]:  # read to its end: not even opened
                self.reports.append(SegmentReport(file.path, segment, 0, [], 0))
                continue
            header, problem = read_header(file)
            if header is not None:
                segments.setdefault(header.segment, (header, []))[1].append(file)
            elif problem:
                if until is None:
                    damage = [(0, file.size)]
                    self.reports.append(SegmentReport(file.path, "", 0, damage, 0, problem, file.size))
            elif file.path.suffix == SUFFIX:
                self.reports.append(SegmentReport(file.path, "", 0, [], file.size))
            else:
                report, part, used = read_raw_file(file, self.known, until)
                self.known[report.segment] = used
                self.reports.append(report)
                self.batch.parts.append(part)
        for segment, (header, copies) in segments.items():
            if until is not None and segment not in until:
                continue
            found, used = read_segment(
                copies, header, ledger.get(segment, 0), self.batch, None if until is None else until[segment]
            )
            self.known[segment] = used
            self.reports += found
        self.batch.flush()


def write_raw(path: str | PathLike[str], infos: Iterable[SamplingInfo], rewards: Iterable[float]) -> None:
    """Write a complete file in the raw form, for programs that read only this form.

    Args:
        path: The file; an existing one is replaced.
        infos: Records of the samples.
        rewards: Reward of each sample.

    Raises:
        LogError: `path` is not a valid path.
        OSError: The file cannot be written; an existing file is unchanged, as after any other error.
    """
    with atomic_write(path_of(path, LogError)) as file:
        for info, reward in zip(infos, rewards, strict=True):
            data = info.SerializeToString()
            file.write(HEAD.pack(reward, len(data)) + data)


def read_raw(data: bytes) -> tuple[list[Record], int]:
    """Return the records of a complete file in the raw form.

    Returns:
        The records, and the number of their bytes: all, unless the rest is damaged or not yet written.
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


def read_raw_file(
    file: LogFile, ledger: Mapping[str, int], until: Mapping[str, int] | None = None
) -> tuple[SegmentReport, DecodedRecords, int]:
    """Read the new records of a file in the raw form.

    Args:
        file: The file, which may have grown since a part of it was used.
        ledger: The number of used bytes of each file.
        until: A later ledger, up to which to read. Default: to the end.

    Returns:
        The findings, the new records, and the number of bytes that are used now.

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
