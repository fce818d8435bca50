"""Sorting samples before an update: which count, in which group, and why the others do not.

    samples ──► set aside: no key, foreign, orphan, too old, not finite
            ──► control:   no noise, their rewards only
            ──► groups:    by the model they perturbed, newest first; one reward a key

The outcome does not depend on the order in which the samples came.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parl_evokit.noise import CONTROL_KEY
from parl_evokit.report import SetAside
from parl_evokit.samples import NO_KEY, Samples

__all__ = ["Group", "Intake", "sort_samples"]


@dataclass(frozen=True)
class Group:
    """The samples of one model.

    Attributes:
        age: Updates since that model, 0 or more.
        keys: Ascending, without repetition, `[n]`.
        rewards: `[n]`.
    """

    age: int
    keys: NDArray[np.uint64]
    rewards: NDArray[np.float64]


@dataclass
class Intake:
    """All samples of an update, sorted.

    Attributes:
        groups: Usable samples, the youngest group first.
        controls: Rewards without noise, sorted, by the age of their model.
        repeated: Rewards beyond the first of a sample.
        set_aside: How many others there were, by reason.
    """

    groups: list[Group] = field(default_factory=list)
    controls: dict[int, list[float]] = field(default_factory=dict)
    repeated: int = 0
    set_aside: SetAside = field(default_factory=SetAside)

    @property
    def control(self) -> list[float]:
        """All rewards without noise, sorted."""
        return sorted(reward for rewards in self.controls.values() for reward in rewards)

    @property
    def used(self) -> int:
        """The number of usable samples."""
        return sum(len(group.keys) for group in self.groups)

    @property
    def pairs(self) -> int:
        """Mirrored pairs of which both halves are there."""
        return sum(int(np.count_nonzero(group.keys[:-1] ^ np.uint64(1) == group.keys[1:])) for group in self.groups)


def sort_samples(samples: Samples, *, model_iter_id: int, fingerprint: int, max_age: int) -> Intake:
    """Sort samples for an update.

    Args:
        samples: In any order.
        model_iter_id: Of the model that is to be updated.
        fingerprint: Of that model; a sample without one (0) is not checked.
        max_age: Samples of models more than this many updates older are set aside.
    """
    if (usual := _usual(samples, model_iter_id, fingerprint)) is not None:
        return Intake([usual])
    ages = model_iter_id - samples.models
    left = np.ones(len(samples), np.bool_)

    def take(rows: NDArray[np.bool_]) -> int:
        """How many of the samples that are left these are; they are left no longer."""
        if not np.count_nonzero(rows):
            return 0
        found = int(np.count_nonzero(left & rows))
        left[rows] = False
        return found

    aside = SetAside(
        bad_key=take(samples.keys == NO_KEY),
        foreign=take((samples.fingerprints != fingerprint) & (samples.fingerprints != 0)),
        orphan=take(ages < 0),
        too_old=take(ages > max_age),
        not_finite=take(~np.isfinite(samples.rewards)),
    )
    control = left & (samples.keys == CONTROL_KEY)
    controls: dict[int, list[float]] = {}
    if take(control):
        controls = {
            age: sorted(samples.rewards[control & (ages == age)].tolist()) for age in np.unique(ages[control]).tolist()
        }
    # A sample may have come with its fingerprint and without: it is the same sample.
    usable = Samples(samples.keys, samples.models, np.zeros_like(samples.fingerprints), samples.rewards, samples.counts)
    if aside.total or controls:
        usable = usable.where(left)
    one = usable.joined()
    return Intake(_groups(one, model_iter_id), controls, len(usable) - len(one), aside)


def _usual(samples: Samples, model_iter_id: int, fingerprint: int) -> Group | None:
    """The group of samples that all count, once each, for the present model; None where it takes a closer look."""
    if not len(samples) or np.count_nonzero(samples.models != model_iter_id):
        return None
    if np.count_nonzero(samples.fingerprints != fingerprint) or not np.isfinite(samples.rewards).all():
        return None
    order = samples.keys.argsort()
    keys = samples.keys[order]
    if keys[0] <= NO_KEY or np.count_nonzero(keys[1:] == keys[:-1]):  # control traffic, no key, or repeated
        return None
    return Group(0, keys, samples.rewards[order].astype(np.float64))


def _groups(samples: Samples, model_iter_id: int) -> list[Group]:
    """Samples that are sorted by model and key, by model; the youngest first."""
    if not len(samples):
        return []
    rewards = samples.rewards.astype(np.float64)
    changes = np.flatnonzero(samples.models[1:] != samples.models[:-1]) + 1
    bounds = [0, *changes.tolist(), len(samples)]
    return [
        Group(model_iter_id - int(samples.models[start]), samples.keys[start:stop], rewards[start:stop])
        for start, stop in zip(bounds[-2::-1], bounds[:0:-1], strict=True)
    ]
