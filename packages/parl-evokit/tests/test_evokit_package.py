"""The package as a whole: its names, its errors, and the imports that it must not have."""

import ast
import subprocess
import sys
from pathlib import Path

import parl_evokit
from parl_core.errors import ParlError
from parl_evokit import errors

SOURCE = Path(parl_evokit.__file__).parent


def test_the_public_names_are_exactly_these() -> None:
    assert parl_evokit.__all__ == [
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
    assert all(hasattr(parl_evokit, name) for name in parl_evokit.__all__)


def test_every_error_is_an_evolution_error_and_a_parl_error_and_is_drawn_in_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.EvolutionError)
        assert issubclass(getattr(errors, name), ParlError)
        assert name in drawn


def test_no_module_imports_pickle_or_a_framework_at_its_top_but_those_named_after_it() -> None:
    everywhere = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "torch", "paddle", "gymnasium", "parl"}
    for file in SOURCE.rglob("*.py"):
        forbidden = everywhere - {file.stem.split("_")[0]}  # models/torch_model, models/paddle_program, ...
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, file


def test_importing_does_nothing_but_import() -> None:
    program = (
        "import sys, threading, numpy, parl_evokit; from parl_evokit import *;"
        "assert threading.active_count() == 1;"
        "assert not {'torch', 'paddle', 'gymnasium', 'zmq', 'click'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
