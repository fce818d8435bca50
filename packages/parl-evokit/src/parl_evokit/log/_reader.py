"""Reading logs: every good record once, damage set aside and reported, rewards joined to their samples.

    files ─► segments ─► scan from where the ledger says ─► records ─► one reward a sample
                              │
                              └─► damage: skipped, reported, and kept with `save_damaged`

The ledger says up to which byte each segment has been used. It lies in the solver's directory and changes together with
the model, so no record counts twice: not when an update runs again, not when a segment was copied.

Samples that were served wait for their reward across segments, processes and updates:

    served ─┐                       ┌─ rewarded: ready for the update
    waiting ┼─► joined by sample ─► ┤
    rewards ┘                       └─ waiting: kept in the solver's directory until they are too old

A reward's record names its sample whole. Where only the key is known when a reward is logged, as with a click that
comes back through a browser, the rest is that of the sample that was served with this key.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from parl_evokit._records import SamplingInfo
from parl_evokit._samples import NO_KEY, Decoded, Samples
from parl_evokit.log._raw import read_raw_file
from parl_evokit.log._segments import (
    LogFile,
    SegmentReport,
    files_of,
    look_into,
    nameless_segment,
    read_segment,
    require_little_damage,
)
from parl_evokit.noise._keys import CONTROL_KEY

__all__ = ["LogContents", "SegmentReport", "joined_rewards", "read_log", "young"]


def joined_rewards(served: Samples, rewarded: Samples) -> tuple[Samples, Samples]:
    """Join rewards to the samples that were served.

    Args:
        served: Samples without reward, those that have been waiting among them; repetitions count once.
        rewarded: Rewards. One without model (0) and fingerprint (0) is taken for that of the served sample with its
            key, if there is just one.

    Returns:
        The rewards, as complete as they can be, and the samples that have none yet.
    """
    served = served.where((served.keys != CONTROL_KEY) & (served.keys != NO_KEY))  # they cannot be told apart
    if not len(served):
        return rewarded, served
    ordered, starts = served.sorted_runs()
    one = ordered.where(starts)
    rewarded = _named(one, rewarded)
    without_reward = replace(one, counts=np.zeros_like(one.counts))
    with_reward = replace(rewarded, counts=np.ones_like(rewarded.counts))
    together, starts = Samples.concatenated([without_reward, with_reward]).sorted_runs()
    without = np.add.reduceat(together.counts, starts) == 0
    waiting = together.where(starts[without])
    return rewarded, replace(waiting, counts=np.ones_like(waiting.counts), rewards=np.zeros_like(waiting.rewards))


def young(waiting: Samples, model_iter_id: int, max_age: int) -> Samples:
    """Return the samples whose models are at most `max_age` updates older than this one."""
    return waiting.where(model_iter_id - waiting.models <= max_age)


def _named(served: Samples, rewarded: Samples) -> Samples:
    """Return rewards; those with a key alone get model and fingerprint of the one served sample that has it."""
    bare = np.flatnonzero((rewarded.fingerprints == 0) & (rewarded.models == 0))
    if not len(bare):
        return rewarded
    by_key: NDArray[np.intp] = np.argsort(served.keys, kind="stable")
    keys = served.keys[by_key]
    first = np.searchsorted(keys, rewarded.keys[bare], "left")
    one = np.searchsorted(keys, rewarded.keys[bare], "right") - first == 1
    rows, sources = bare[one], by_key[first[one]]
    models, fingerprints = rewarded.models.copy(), rewarded.fingerprints.copy()
    models[rows], fingerprints[rows] = served.models[sources], served.fingerprints[sources]
    return replace(rewarded, models=models, fingerprints=fingerprints)


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
        """Number of samples that were served and have no reward yet."""
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
        """One record for each sample that has a reward, by model and key."""
        return self._one_each.infos()

    @cached_property
    def rewards(self) -> list[float]:
        """Mean of each sample's rewards."""
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
    """Read what is new in logs.

    Args:
        paths: Logs: directories of segments, or single files; also files in the raw form.
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
