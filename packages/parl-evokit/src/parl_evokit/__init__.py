"""parl-evokit: evolution strategies whose samples are a few bytes and whose updates are exact."""

from parl_evokit._version import __version__
from parl_evokit.agent import ESAgent
from parl_evokit.cma_es import CMAES
from parl_evokit.config import Config
from parl_evokit.errors import (
    ConfigError,
    EvolutionError,
    InvalidKey,
    InvalidReward,
    LayoutMismatch,
    LogError,
    NoiseDataError,
    NothingToUpdate,
    RecordError,
    SolverError,
)
from parl_evokit.log import LogContents, LogWriter, read_log
from parl_evokit.models import ModelAdapter, NumpyModel, mlp
from parl_evokit.noise import CounterKeys, GaussianNoise, NoiseSpec, RandomKeys
from parl_evokit.openai_es import ES
from parl_evokit.params import ParameterLayout
from parl_evokit.records import Record, SamplingInfo
from parl_evokit.report import UpdateReport
from parl_evokit.sampling_agent import SamplingAgent
from parl_evokit.sep_cma_es import SepCMAES

__all__ = [
    "CMAES",
    "ES",
    "Config",
    "ConfigError",
    "CounterKeys",
    "ESAgent",
    "EvolutionError",
    "GaussianNoise",
    "InvalidKey",
    "InvalidReward",
    "LayoutMismatch",
    "LogContents",
    "LogError",
    "LogWriter",
    "ModelAdapter",
    "NoiseDataError",
    "NoiseSpec",
    "NothingToUpdate",
    "NumpyModel",
    "ParameterLayout",
    "RandomKeys",
    "Record",
    "RecordError",
    "SamplingAgent",
    "SamplingInfo",
    "SepCMAES",
    "SolverError",
    "UpdateReport",
    "__version__",
    "mlp",
    "read_log",
]
