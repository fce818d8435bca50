"""The errors that parl-evokit raises, below `parl_core.errors.ParlError`.

    ParlError
    └─ EvolutionError
       ├─ ConfigError (ValueError)
       ├─ InvalidKey (ValueError)
       ├─ InvalidReward (ValueError)
       ├─ LayoutMismatch (ValueError)
       └─ NoiseDataError

An `EvolutionError` that is none of its branches reports a call that the object does not offer.
"""

from parl_core.errors import ParlError

__all__ = ["ConfigError", "EvolutionError", "InvalidKey", "InvalidReward", "LayoutMismatch", "NoiseDataError"]


class EvolutionError(ParlError):
    """Anything that parl-evokit itself reports."""


class ConfigError(EvolutionError, ValueError):
    """A configuration cannot be read, or a setting is unknown, repeated, mistyped or out of its range."""


class InvalidKey(EvolutionError, ValueError):
    """A sample's key is outside of the 62 bits that noise specification v1 allows, or is reserved."""


class InvalidReward(EvolutionError, ValueError):
    """A reward is not a finite number, or rewards and samples do not match in number."""


class LayoutMismatch(EvolutionError, ValueError):
    """Arrays do not fit the parameters: a name is missing or unknown, or two shapes differ."""


class NoiseDataError(EvolutionError):
    """The quantile table that ships with the package is damaged."""
