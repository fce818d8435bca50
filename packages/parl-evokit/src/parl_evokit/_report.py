"""The report of one update: what it changed, and what became of each sample."""

import functools
import hashlib
from dataclasses import dataclass, field

from parl_evokit._params import FlatVector

__all__ = ["SetAside", "UpdateReport", "vector_digest"]


@dataclass
class SetAside:
    """Numbers of samples that were not used, by reason.

    Attributes:
        too_old: Their model is more than `max_age` updates old.
        orphan: Their model is newer than this one, which cannot be (a restored older solver, or damage).
        foreign: Their fingerprint is not this model's: another model, seed or table.
        not_finite: Their reward is NaN or infinite.
        bad_key: Their key is not one that was ever given.
        used: An earlier update has used them; their reward came again.
        untrusted: Their reward came without a token, and the settings want one (`update.only_tokens`).
        diverged: The step that they lead to is not finite.
        too_few: They were fewer than `min_samples` when the model was rolled back.
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
        """All samples that were set aside."""
        return sum(vars(self).values())

    def add(self, other: "SetAside") -> None:
        """Count these as well."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        reasons = {name.replace("_", " "): count for name, count in vars(self).items() if count}
        return ", ".join(f"{count} {name}" for name, count in reasons.items()) or "none"


@dataclass(frozen=True, eq=False)
class UpdateReport:
    """The outcome of one update.

    Attributes:
        model_iter_id: Of the new model.
        used: Samples whose noise counted; several rewards of one sample count once, by their mean.
        pairs: Of these, mirrored pairs of which both halves were there.
        repeated: Rewards beyond the first of a sample.
        mean_reward: Mean over the used samples.
        best_reward: Largest among the used samples.
        control: Samples without noise.
        control_mean: Mean reward of these; None without any.
        stale: Used samples by age in updates, 1 and more.
        set_aside: Samples that were not used.
        gradient_norm: Euclidean norm of the estimated gradient.
        update_norm: Euclidean norm of the change of the parameters.
        parameters: The new parameters `[n]`, read-only.
        rolled_back: Why the model before is taken up again instead of an update; empty if it is not.
        refused: Tokens that were refused before this update, by reason.
        timed_out: Samples that count with a default because their reward did not come in time.
        stale_rule: How samples of older models counted, such as IMPORTANCE (`config.StaleKind`); empty without any.
        effective: How many samples of equal weight the used ones are worth, (sum of weights)^2 / sum of squares.
        holdout: Samples of the trusted model, without noise.
        holdout_mean: Mean reward of these; None without any.
        advantage: How much better than the trusted model those since are: an interval that holds at all times
            (`guard.level`); None while there is none.
        rejected: Why the step was not taken, so that the new model is the present one again; empty if it was.
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
    set_aside: SetAside
    gradient_norm: float = 0.0
    update_norm: float = 0.0
    parameters: FlatVector | None = field(default=None, repr=False)
    rolled_back: str = ""
    rejected: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    timed_out: int = 0
    stale_rule: str = ""
    effective: float = 0.0
    holdout: int = 0
    holdout_mean: float | None = None
    advantage: tuple[float, float] | None = None

    @functools.cached_property
    def parameters_sha256(self) -> str:
        """SHA-256 of the new parameters (little-endian float32): equal logs give equal digests on every machine."""
        return "" if self.parameters is None else vector_digest(self.parameters)


def vector_digest(vector: FlatVector) -> str:
    """Return SHA-256 over the vector as little-endian float32, in hexadecimal."""
    return hashlib.sha256(vector.astype("<f4", copy=False).data).hexdigest()
