"""The errors that parl-core raises, and the root of those of every other package.

    ParlError
    ├─ HyperparameterError (ValueError)
    │  └─ UnknownOptionError (TypeError)
    ├─ ModelContractError (TypeError)
    ├─ WeightsMismatchError (ValueError)
    ├─ CheckpointError (ValueError)
    ├─ RunExistsError (FileExistsError)
    ├─ RunInUseError (BlockingIOError)
    ├─ DivergedError (ArithmeticError)
    │  └─ SpoiledBatchError (ValueError)
    ├─ EnvironmentContractError (TypeError)
    ├─ DatasetError (ValueError)
    ├─ LostActor
    │  └─ ActorProcessLost (ConnectionError)
    ├─ IncompatiblePackages (ImportError)
    └─ BackendError
       ├─ BackendNotInstalled (ImportError)
       └─ UnknownBackend (ValueError)

`parl_remote.errors` and `parl_evokit.errors` add their own branches below `ParlError`.
"""

__all__ = [
    "ActorProcessLost",
    "BackendError",
    "BackendNotInstalled",
    "CheckpointError",
    "DatasetError",
    "DivergedError",
    "EnvironmentContractError",
    "HyperparameterError",
    "IncompatiblePackages",
    "LostActor",
    "ModelContractError",
    "ParlError",
    "RunExistsError",
    "RunInUseError",
    "SpoiledBatchError",
    "UnknownBackend",
    "UnknownOptionError",
    "WeightsMismatchError",
]


class ParlError(Exception):
    """Base of all errors that PARL itself reports; parl-core never wraps a user's own exceptions in it."""


class HyperparameterError(ParlError, ValueError):
    """An argument of an algorithm, memory, schedule or loop is out of its documented range."""


class UnknownOptionError(HyperparameterError, TypeError):
    """A method of acting was given an option that the algorithm does not take; the message names both."""


class ModelContractError(ParlError, TypeError):
    """The model lacks a method that the algorithm calls, or returned something of another shape."""


class WeightsMismatchError(ParlError, ValueError):
    """Weights do not fit the model: a name is missing or unknown, or two shapes differ."""


class CheckpointError(ParlError, ValueError):
    """A file that should hold a checkpoint is missing, damaged, or of an unknown version."""


class RunExistsError(ParlError, FileExistsError):
    """The folder of a new run exists already; the message has the way to continue the run in it."""


class RunInUseError(ParlError, BlockingIOError):
    """Another program is writing into the folder of the run."""


class DivergedError(ParlError, ArithmeticError):
    """A loss or another figure of an update is NaN or infinite: further updates would only damage the weights."""


class SpoiledBatchError(DivergedError, ValueError):
    """A number of a batch or of observations is NaN or infinite and spoils losses or actions; the message names it."""


class EnvironmentContractError(ParlError, TypeError):
    """An environment breaks the rules of Gymnasium's API that training relies on; the message lists how."""


class DatasetError(ParlError, ValueError):
    """Logged data is unusable: a key is missing, lengths differ, a number is not finite, or a file is damaged."""


class LostActor(ParlError):
    """An actor of any system (`parl_core.actors`) ended while calls on it waited, or before they were made.

    Attributes:
        from_outside: Whether the cause lies outside the actor: its host is gone, or it was stopped from outside.
    """

    from_outside: bool = False


class ActorProcessLost(LostActor, ConnectionError):
    """The process of an actor ended while calls on it waited; the message describes its end."""


class IncompatiblePackages(ParlError, ImportError):
    """A package of PARL does not fit the installed parl-core, or the original PARL has replaced parts of parl-core."""


class BackendError(ParlError):
    """No usable backend could be chosen."""


class BackendNotInstalled(BackendError, ImportError):
    """The package of the requested name is not installed; the message has the `pip install` line."""


class UnknownBackend(BackendError, ValueError):
    """`PARL_BACKEND` or `parl.set_backend` named a backend that does not exist."""
