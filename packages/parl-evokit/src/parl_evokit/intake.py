"""Sorting samples before an update: which count, in which group, and why the others do not.

    infos, rewards ──► set aside: foreign, orphan, too old, not finite, bad key
                   ──► control:   no noise, their rewards only
                   ──► groups:    by the model they perturbed, newest first; one reward a key

The outcome does not depend on the order in which the samples came.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum, isfinite

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import InvalidKey, InvalidReward
from parl_evokit.noise import CONTROL_KEY
from parl_evokit.records import SamplingInfo
from parl_evokit.report import SetAside

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
    keys: list[int]
    rewards: NDArray[np.float64]


@dataclass
class Intake:
    """All samples of an update, sorted.

    Attributes:
        groups: Usable samples, the youngest group first.
        control: Rewards without noise.
        repeated: Rewards beyond the first of a sample.
        set_aside: How many others there were, by reason.
    """

    groups: list[Group] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    repeated: int = 0
    set_aside: SetAside = field(default_factory=SetAside)

    @property
    def used(self) -> int:
        """The number of usable samples."""
        return sum(len(group.keys) for group in self.groups)

    @property
    def pairs(self) -> int:
        """Mirrored pairs of which both halves are there."""
        return sum(a ^ 1 == b for group in self.groups for a, b in pairwise(group.keys))


def sort_samples(
    infos: Iterable[SamplingInfo],
    rewards: Sequence[float] | NDArray[np.floating],
    *,
    model_iter_id: int,
    fingerprint: int,
    max_age: int,
) -> Intake:
    """Sort samples for an update.

    Args:
        infos: One a sample.
        rewards: As many numbers; taken as float32, as logs hold them.
        model_iter_id: Of the model that is to be updated.
        fingerprint: Of that model; a sample without one (0) is not checked.
        max_age: Samples of models more than this many updates older are set aside.

    Raises:
        InvalidReward: Infos and rewards differ in number.
    """
    infos = list(infos)
    if len(infos) != len(rewards):
        raise InvalidReward(f"{len(infos)} samples came with {len(rewards)} rewards: give one reward for each")
    intake, aside = Intake(), SetAside()
    found: dict[int, dict[int, list[float]]] = {}
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and is set aside
        values = np.asarray(rewards, np.float64).astype(np.float32).tolist()
    for info, reward in zip(infos, values, strict=True):
        age = model_iter_id - info.model_iter_id
        try:
            key = info.noise_key
        except InvalidKey:
            aside.bad_key += 1
            continue
        if info.fingerprint != fingerprint and info.fingerprint != 0:
            aside.foreign += 1
        elif age < 0:
            aside.orphan += 1
        elif age > max_age:
            aside.too_old += 1
        elif not isfinite(reward):
            aside.not_finite += 1
        elif key == CONTROL_KEY:
            intake.control.append(reward)
        else:
            found.setdefault(age, {}).setdefault(key, []).append(reward)
    intake.set_aside = aside
    for age in sorted(found):
        keys = sorted(found[age])
        lists = [found[age][key] for key in keys]
        intake.repeated += sum(map(len, lists)) - len(lists)
        means = [values[0] if len(values) == 1 else fsum(values) / len(values) for values in lists]
        intake.groups.append(Group(age, keys, np.array(means, np.float32).astype(np.float64)))
    return intake
