"""The errors that parl-evokit raises, below `parl_core.errors.ParlError`.

    ParlError
    └─ EvolutionError
       ├─ ConfigError (ValueError)
       ├─ EvaluationFailed
       ├─ InvalidKey (ValueError)
       ├─ InvalidReward (ValueError)
       ├─ LayoutMismatch (ValueError)
       ├─ LogError
       ├─ NoiseDataError
       ├─ NothingToUpdate
       ├─ RecordError (ValueError)
       ├─ SolverError
       ├─ StorageError
       ├─ UpdateLocked
       └─ WorkersLost

An `EvolutionError` that is none of its branches reports a call that the object does not offer.
"""

from typing import TYPE_CHECKING

from parl_core.errors import ParlError

if TYPE_CHECKING:
    from parl_evokit.parallel.sampling import Sampled
    from parl_evokit.records import SamplingInfo
    from parl_evokit.report import UpdateReport

__all__ = [
    "ConfigError",
    "EvaluationFailed",
    "EvolutionError",
    "InvalidKey",
    "InvalidReward",
    "LayoutMismatch",
    "LogError",
    "NoiseDataError",
    "NothingToUpdate",
    "RecordError",
    "SolverError",
    "StorageError",
    "UpdateLocked",
    "WorkersLost",
]


class EvolutionError(ParlError):
    """Anything that parl-evokit itself reports."""


class ConfigError(EvolutionError, ValueError):
    """A configuration cannot be read, or a setting is unknown, repeated, mistyped or out of its range."""


class EvaluationFailed(EvolutionError):
    """A function that evaluates samples raised; the message has the traceback of the worker in which it did.

    Attributes:
        summary: The exception in one line.
        info: Of which sample; None if it was raised while a worker was made ready.
        sampled: What had come back by then (`parallel.Sampled`).
    """

    def __init__(self, summary: str, trace: str = "", info: "SamplingInfo | None" = None) -> None:
        where = f"for {info}" if info is not None else "while a worker was made ready"
        framed = "".join(f"\n  | {line}" for line in trace.rstrip().splitlines())
        super().__init__(f"evaluate raised {summary} {where}; in the worker:{framed}" if framed else summary)
        self.summary = summary
        self.info = info
        self.sampled: Sampled | None = None


class InvalidKey(EvolutionError, ValueError):
    """A sample's key is outside of the 62 bits that noise specification v1 allows, or is reserved."""


class InvalidReward(EvolutionError, ValueError):
    """A reward is not a finite number, or rewards and samples do not match in number."""


class LayoutMismatch(EvolutionError, ValueError):
    """Arrays do not fit the parameters: a name is missing or unknown, or two shapes differ."""


class LogError(EvolutionError):
    """A log cannot be read or written: it is missing, no log, too much of it is damaged, or the disk is full."""


class NoiseDataError(EvolutionError):
    """The quantile table that ships with the package is damaged."""


class NothingToUpdate(EvolutionError):
    """None of the samples could be used, or too few; the model and the solver are as they were.

    Attributes:
        report: What became of each sample (`report.UpdateReport`).
    """

    def __init__(self, message: str, report: "UpdateReport | None" = None) -> None:
        super().__init__(message)
        self.report = report


class RecordError(EvolutionError, ValueError):
    """Bytes are not a sample's record, or a record has a number that its wire form cannot hold."""


class SolverError(EvolutionError):
    """A call comes before another that it needs, or a solver's files are damaged or belong to another model."""


class StorageError(EvolutionError):
    """Files cannot be written: the disk is full, or a permission is missing. What was there before is still there."""


class UpdateLocked(EvolutionError):
    """Another update of the same directory is under way."""


class WorkersLost(EvolutionError):
    """Workers of a pool end again and again, or none can be made.

    Attributes:
        sampled: What had come back by then (`parallel.Sampled`).
    """

    sampled: "Sampled | None" = None
