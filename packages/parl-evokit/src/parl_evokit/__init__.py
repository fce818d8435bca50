"""parl-evokit: evolution strategies with samples of a few bytes and exact updates.

Each name is imported from its module at its first use, so that a service that only writes logs does not import the code
of updates.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from parl_core._compatibility import require_core
from parl_evokit._version import PARL_CORE, __version__

if TYPE_CHECKING:
    from parl_evokit import parallel as parallel
    from parl_evokit._directories import update_lock as update_lock
    from parl_evokit._params import ParameterLayout as ParameterLayout
    from parl_evokit._records import Record as Record
    from parl_evokit._records import SamplingInfo as SamplingInfo
    from parl_evokit._report import UpdateReport as UpdateReport
    from parl_evokit._sampling_agent import SamplingAgent as SamplingAgent
    from parl_evokit.adaptive_std import PGPE as PGPE
    from parl_evokit.adaptive_std import SNES as SNES
    from parl_evokit.agent import ESAgent as ESAgent
    from parl_evokit.async_agent import AsyncESAgent as AsyncESAgent
    from parl_evokit.cem import CEM as CEM
    from parl_evokit.cma_es import CMAES as CMAES
    from parl_evokit.config import Config as Config
    from parl_evokit.cr_fm_nes import CRFMNES as CRFMNES
    from parl_evokit.errors import ConfigError as ConfigError
    from parl_evokit.errors import EvaluationFailed as EvaluationFailed
    from parl_evokit.errors import EvolutionError as EvolutionError
    from parl_evokit.errors import InvalidKey as InvalidKey
    from parl_evokit.errors import InvalidReward as InvalidReward
    from parl_evokit.errors import InvalidToken as InvalidToken
    from parl_evokit.errors import LayoutMismatch as LayoutMismatch
    from parl_evokit.errors import LogError as LogError
    from parl_evokit.errors import NoiseDataError as NoiseDataError
    from parl_evokit.errors import NothingToUpdate as NothingToUpdate
    from parl_evokit.errors import RecordError as RecordError
    from parl_evokit.errors import SecretError as SecretError
    from parl_evokit.errors import SolverError as SolverError
    from parl_evokit.errors import StorageError as StorageError
    from parl_evokit.errors import UpdateLocked as UpdateLocked
    from parl_evokit.errors import WorkersLost as WorkersLost
    from parl_evokit.genetic import GA as GA
    from parl_evokit.lm_ma_es import LMMAES as LMMAES
    from parl_evokit.log import LogContents as LogContents
    from parl_evokit.log import LogWriter as LogWriter
    from parl_evokit.log import read_log as read_log
    from parl_evokit.map_elites import MapElites as MapElites
    from parl_evokit.models import ModelAdapter as ModelAdapter
    from parl_evokit.models import NumpyModel as NumpyModel
    from parl_evokit.models import mlp as mlp
    from parl_evokit.noise import CounterKeys as CounterKeys
    from parl_evokit.noise import GaussianNoise as GaussianNoise
    from parl_evokit.noise import NoiseSpec as NoiseSpec
    from parl_evokit.noise import RandomKeys as RandomKeys
    from parl_evokit.openai_es import ARS as ARS
    from parl_evokit.openai_es import ES as ES
    from parl_evokit.sep_cma_es import SepCMAES as SepCMAES
    from parl_evokit.tokens import Refusal as Refusal
    from parl_evokit.tokens import Tokens as Tokens

_MODULES = {
    "ARS": "openai_es",
    "CEM": "cem",
    "AsyncESAgent": "async_agent",
    "CMAES": "cma_es",
    "CRFMNES": "cr_fm_nes",
    "Config": "config",
    "ConfigError": "errors",
    "CounterKeys": "noise",
    "ES": "openai_es",
    "ESAgent": "agent",
    "EvaluationFailed": "errors",
    "EvolutionError": "errors",
    "GA": "genetic",
    "GaussianNoise": "noise",
    "InvalidKey": "errors",
    "InvalidReward": "errors",
    "InvalidToken": "errors",
    "LayoutMismatch": "errors",
    "LMMAES": "lm_ma_es",
    "LogContents": "log",
    "LogError": "errors",
    "LogWriter": "log",
    "MapElites": "map_elites",
    "ModelAdapter": "models",
    "NoiseDataError": "errors",
    "NoiseSpec": "noise",
    "NothingToUpdate": "errors",
    "NumpyModel": "models",
    "PGPE": "adaptive_std",
    "ParameterLayout": "_params",
    "RandomKeys": "noise",
    "Record": "_records",
    "RecordError": "errors",
    "Refusal": "tokens",
    "SNES": "adaptive_std",
    "SamplingAgent": "_sampling_agent",
    "SamplingInfo": "_records",
    "SecretError": "errors",
    "SepCMAES": "sep_cma_es",
    "SolverError": "errors",
    "StorageError": "errors",
    "Tokens": "tokens",
    "UpdateLocked": "errors",
    "UpdateReport": "_report",
    "WorkersLost": "errors",
    "mlp": "models",
    "parallel": "parallel",
    "read_log": "log",
    "update_lock": "_directories",
}

__all__ = [
    "ARS",
    "CEM",
    "CMAES",
    "CRFMNES",
    "ES",
    "GA",
    "LMMAES",
    "PGPE",
    "SNES",
    "AsyncESAgent",
    "Config",
    "ConfigError",
    "CounterKeys",
    "ESAgent",
    "EvaluationFailed",
    "EvolutionError",
    "GaussianNoise",
    "InvalidKey",
    "InvalidReward",
    "InvalidToken",
    "LayoutMismatch",
    "LogContents",
    "LogError",
    "LogWriter",
    "MapElites",
    "ModelAdapter",
    "NoiseDataError",
    "NoiseSpec",
    "NothingToUpdate",
    "NumpyModel",
    "ParameterLayout",
    "RandomKeys",
    "Record",
    "RecordError",
    "Refusal",
    "SamplingAgent",
    "SamplingInfo",
    "SecretError",
    "SepCMAES",
    "SolverError",
    "StorageError",
    "Tokens",
    "UpdateLocked",
    "UpdateReport",
    "WorkersLost",
    "__version__",
    "mlp",
    "parallel",
    "read_log",
    "update_lock",
]


require_core(f"parl-evokit {__version__}", PARL_CORE)


def __getattr__(name: str) -> Any:
    path = _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{path}")
    value = module if name == "parallel" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
