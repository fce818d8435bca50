"""Reading logs: every good record once, damage set aside and reported.

    files ─► segments ─► scan from where the ledger says ─► records ─► one reward a sample
                              │
                              └─► damage: skipped, told, and kept with `save_damaged`

The ledger says up to which byte each segment has been used. It lies in the solver's directory and changes together with
the model, so no record counts twice: not when an update runs again, not when a segment was copied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike

from parl_evokit.log.columns import Decoded
from parl_evokit.log.files import LogFile, files_of, look_into
from parl_evokit.log.raw_files import read_raw_file
from parl_evokit.log.segments import SegmentReport, nameless_segment, read_segment, require_little_damage
from parl_evokit.log.waiting import joined_rewards, young
from parl_evokit.records import SamplingInfo
from parl_evokit.samples import Samples

__all__ = ["LogContents", "SegmentReport", "read_log"]


@dataclass
class LogContents:
    """New samples of a log.

    Attributes:
        samples: Rows with a reward, as they were logged.
        waiting: Samples that were served and have no reward yet, those that waited before among them.
        ledger: What to hand to the next `read_log`.
        segments: What was found in each file.
        expired: How many samples are not waited for any more, because their models are too old.
    """

    samples: Samples
    waiting: Samples
    ledger: dict[str, int]
    segments: list[SegmentReport]
    expired: int = 0

    def expire(self, model_iter_id: int, max_age: int) -> None:
        """Wait no longer for the rewards of models more than `max_age` updates older than this one."""
        before = len(self.waiting)
        self.waiting = young(self.waiting, model_iter_id, max_age)
        self.expired = before - len(self.waiting)

    @property
    def pending(self) -> int:
        """How many samples were served and have no reward yet."""
        return len(self.waiting)

    @property
    def damaged_bytes(self) -> int:
        """The length of all damaged stretches."""
        return sum(segment.damaged_bytes for segment in self.segments)

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
    waiting: Samples | None = None,
    until: Mapping[str, int] | None = None,
) -> LogContents:
    """Read what is new.

    Args:
        paths: Logs: directories of segments, or single files; also files in the documents' form.
        ledger: From the last time. Default: everything is new.
        max_damage: The part of a segment's bytes that may be damaged, 0 to 1.
        waiting: From the last time: samples that were served and had no reward.
        until: A later ledger, for reading once more what was read then: segments that it does not know are left out,
            of the others what it has not.

    Raises:
        LogError: A path does not exist, a file is neither form, a segment's name cannot be read, or too much of one is
            damaged.
    """
    known = dict(ledger or {})
    reports: list[SegmentReport] = []
    parts: list[Decoded] = []
    segments: dict[str, list[LogFile]] = {}
    for path in files_of([paths] if isinstance(paths, str | PathLike) else paths):
        file = look_into(path)
        if not file.is_segment:
            report, part, known_to = read_raw_file(file, known, until)
            known[report.segment] = known_to
            reports.append(report)
            parts.append(part)
        elif file.header is None:
            report = nameless_segment(file)
            if until is None:
                require_little_damage(report, {}, file.size, max_damage)
            reports.append(report)
        else:
            segments.setdefault(file.header.segment, []).append(file)
    for segment, copies in segments.items():
        if until is not None and segment not in until:
            continue
        found, part, used = read_segment(
            copies, known.get(segment, 0), max_damage, None if until is None else until[segment]
        )
        known[segment] = used
        reports += found
        parts.append(part)
    rewarded = Samples.concatenated([part.rewarded for part in parts])
    served = [part.served for part in parts] + ([] if waiting is None else [waiting])
    rewarded, still_waiting = joined_rewards(Samples.concatenated(served), rewarded)
    return LogContents(rewarded, still_waiting, known, reports)
