"""parl-evokit: evolution strategies whose samples are a few bytes and whose updates are exact."""

from parl_evokit._version import __version__
from parl_evokit.errors import EvolutionError, InvalidKey, InvalidReward, LayoutMismatch, NoiseDataError
from parl_evokit.noise import CounterKeys, GaussianNoise, NoiseSpec, RandomKeys
from parl_evokit.params import ParameterLayout

__all__ = [
    "CounterKeys",
    "EvolutionError",
    "GaussianNoise",
    "InvalidKey",
    "InvalidReward",
    "LayoutMismatch",
    "NoiseDataError",
    "NoiseSpec",
    "ParameterLayout",
    "RandomKeys",
    "__version__",
]
