"""The errors that parl-evokit raises, all of which are a `parl_core.errors.ParlError`.

    ParlError
    └─ EvolutionError
       ├─ ConfigError (ValueError)
       ├─ EvaluationFailed
       ├─ InvalidKey (ValueError)
       ├─ InvalidReward (ValueError)
       ├─ InvalidToken (ValueError)
       ├─ LayoutMismatch (ValueError)
       ├─ LogError
       ├─ NoiseDataError
       ├─ NothingToUpdate
       ├─ RecordError (ValueError)
       ├─ SecretError (ValueError)
       ├─ SolverError
       ├─ StorageError
       ├─ UpdateLocked
       └─ WorkersLost

An `EvolutionError` of no subclass reports a call that the object does not support. Attributes with values of modules
that import this one are annotated `Any`; their docstrings name the types.
"""

from typing import Any

from parl_core.errors import ParlError

_LONGEST_SHOWN = 100

__all__ = [
    "ConfigError",
    "EvaluationFailed",
    "EvolutionError",
    "InvalidKey",
    "InvalidReward",
    "InvalidToken",
    "LayoutMismatch",
    "LogError",
    "NoiseDataError",
    "NothingToUpdate",
    "RecordError",
    "SecretError",
    "SolverError",
    "StorageError",
    "UpdateLocked",
    "WorkersLost",
]


def _shown(value: object) -> str:
    """Return `repr(value)` for a message: not all of a long one, also where Python prints no such long integers."""
    try:
        text = repr(value)
    except ValueError:
        return f"<{type(value).__name__} of thousands of digits>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


class EvolutionError(ParlError):
    """The base of all errors that parl-evokit itself reports."""


class ConfigError(EvolutionError, ValueError):
    """A configuration cannot be read, or a setting is unknown, repeated, mistyped or out of its range."""


class EvaluationFailed(EvolutionError):
    """A function that evaluates samples raised an exception; the message contains the traceback of the worker.

    Attributes:
        summary: The exception in one line.
        info: The record of the sample (`SamplingInfo`); None if the worker was still being set up.
        sampled: The samples that were finished by then (`parallel.Sampled`), or None.
    """

    def __init__(self, summary: str, trace: str = "", info: Any = None) -> None:
        where = f"for {info}" if info is not None else "while a worker was made ready"
        framed = "".join(f"\n  | {line}" for line in trace.rstrip().splitlines())
        super().__init__(f"evaluate raised {summary} {where}; in the worker:{framed}" if framed else summary)
        self.summary = summary
        self.info = info
        self.sampled: Any = None


class InvalidKey(EvolutionError, ValueError):
    """The key of a sample is outside the 62 bits that noise specification v1 allows, or is reserved."""


class InvalidReward(EvolutionError, ValueError):
    """A reward is not a finite number, or rewards and samples differ in number."""


class InvalidToken(EvolutionError, ValueError):
    """The token of a sample is rejected.

    Attributes:
        reason: The reason (`tokens.Refusal`).
    """

    def __init__(self, message: str, reason: Any) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["InvalidToken"], tuple[str, Any]]:
        return InvalidToken, (str(self), self.reason)


class LayoutMismatch(EvolutionError, ValueError):
    """Arrays do not match the parameters: a name is missing or unknown, or two shapes differ."""


class LogError(EvolutionError):
    """A log cannot be read or written: it is missing or not a log, too much of it is damaged, or the disk is full."""


class NoiseDataError(EvolutionError):
    """The quantile table that ships with the package is damaged."""


class NothingToUpdate(EvolutionError):
    """Too few samples were usable; the model and the solver are unchanged.

    Attributes:
        report: The outcome for the samples (`UpdateReport`), or None.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class RecordError(EvolutionError, ValueError):
    """Bytes are not the record of a sample, or a number of a record does not fit its field."""


class SecretError(EvolutionError, ValueError):
    """A secret for tokens is missing, malformed, or not protected."""


class SolverError(EvolutionError):
    """A required earlier call is missing, or the files of a solver are damaged or belong to another model."""


class StorageError(EvolutionError):
    """Files cannot be written: the disk is full, or a permission is missing. The earlier files are unchanged."""


class UpdateLocked(EvolutionError):
    """Another update of the same directory is in progress."""


class WorkersLost(EvolutionError):
    """Too many workers of a pool were lost, or no worker can be started.

    Attributes:
        sampled: The samples that were finished by then (`parallel.Sampled`), or None.
    """

    sampled: Any = None
