"""The report of one update: its changes, and the outcome for each sample."""

import functools
import hashlib
from dataclasses import dataclass, field

from parl_evokit._params import FlatVector

__all__ = ["SetAsideCounts", "UpdateReport", "vector_digest"]


@dataclass
class SetAsideCounts:
    """Numbers of samples that were not used, by reason.

    Attributes:
        too_old: Samples whose model is more than `max_age` updates old.
        orphan: Samples whose model is newer than this one (an older solver was restored, or records are damaged), or
            was removed from the warehouse.
        foreign: Samples with another fingerprint: of another model, seed or table.
        not_finite: Samples whose reward is NaN or infinite.
        bad_key: Samples with an invalid key.
        used: Samples that an earlier update has used; their reward was logged again.
        untrusted: Samples whose reward has no token although the settings require one (`update.only_tokens`).
        diverged: Samples whose step would not be finite.
        too_few: Samples that were fewer than `min_samples` when the model was rolled back.
    """

    too_old: int = 0
    orphan: int = 0
    foreign: int = 0
    not_finite: int = 0
    bad_key: int = 0
    used: int = 0
    untrusted: int = 0
    diverged: int = 0
    too_few: int = 0

    @property
    def total(self) -> int:
        """Total number of samples that were set aside."""
        return sum(vars(self).values())

    def add(self, other: "SetAsideCounts") -> None:
        """Add the numbers of another instance to these."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        reasons = {name.replace("_", " "): count for name, count in vars(self).items() if count}
        return ", ".join(f"{count} {name}" for name, count in reasons.items()) or "none"


@dataclass(frozen=True, eq=False)
class UpdateReport:
    """The outcome of one update.

    Attributes:
        model_iter_id: Number of the new model.
        used: Number of samples that the update used; several rewards of one sample count once, by their mean.
        pairs: Number of mirrored pairs among these of which both halves have a reward.
        repeated: Number of rewards beyond the first of a sample.
        mean_reward: Mean reward of the used samples; without a step, of those that it would have used.
        best_reward: Largest reward of these samples.
        control: Number of samples without noise, except those of `holdout`.
        control_mean: Mean reward of these samples; None without such samples.
        stale: Numbers of used samples of older models, by age in updates, 1 or more.
        set_aside: Numbers of samples that were not used.
        gradient_norm: Euclidean norm of the estimated gradient.
        update_norm: Euclidean norm of the change of the parameters.
        parameters: The new parameters `[n]`, read-only.
        rolled_back: Reason for the return to the trusted model instead of an update; empty if there was none.
        refused: Numbers of tokens that were rejected before this update, by reason.
        quarantined: Names of the log's damaged files, which are moved aside unless they are still written to.
        timed_out: Number of samples that count with a default because their reward did not arrive in time.
        stale_rule: The rule for samples of older models, such as IMPORTANCE (`config.StaleKind`); empty without any.
        effective: Equivalent number of samples of equal weight, (sum of weights)^2 / sum of squares.
        holdout: Number of samples of the trusted model, without noise.
        holdout_mean: Mean reward of these samples; None without such samples.
        advantage: Difference in mean reward between the models since and the trusted model: a confidence interval
            that holds at all times (`guard.level`); None while there is none.
        rejected: Reason for which the step was not taken, so that the parameters are unchanged; empty if it was taken.
    """

    model_iter_id: int
    used: int
    pairs: int
    repeated: int
    mean_reward: float
    best_reward: float
    control: int
    control_mean: float | None
    stale: dict[int, int]
    set_aside: SetAsideCounts
    gradient_norm: float = 0.0
    update_norm: float = 0.0
    parameters: FlatVector | None = field(default=None, repr=False)
    rolled_back: str = ""
    rejected: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
    timed_out: int = 0
    stale_rule: str = ""
    effective: float = 0.0
    holdout: int = 0
    holdout_mean: float | None = None
    advantage: tuple[float, float] | None = None

    @functools.cached_property
    def parameters_sha256(self) -> str:
        """SHA-256 of the new parameters (little-endian float32); equal logs give equal digests on every machine."""
        return "" if self.parameters is None else vector_digest(self.parameters)


def vector_digest(vector: FlatVector) -> str:
    """Return SHA-256 over the vector as little-endian float32, in hexadecimal."""
    return hashlib.sha256(vector.astype("<f4", copy=False).data).hexdigest()
