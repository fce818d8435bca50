"""Noise specification v1: normal noise as a pure function of (seed, key, coordinate), and exact sums of it."""

from parl_evokit.noise._exact_sum import ExactSum
from parl_evokit.noise._gaussian import GaussianNoise
from parl_evokit.noise._keys import CONTROL_KEY, CounterKeys, KeySource, RandomKeys, check_key, join_key, split_key
from parl_evokit.noise._spec import SPEC_VERSION, NoiseSpec

__all__ = [
    "CONTROL_KEY",
    "SPEC_VERSION",
    "CounterKeys",
    "ExactSum",
    "GaussianNoise",
    "KeySource",
    "NoiseSpec",
    "RandomKeys",
    "check_key",
    "join_key",
    "split_key",
]
