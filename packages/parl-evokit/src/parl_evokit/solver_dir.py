"""A solver's state in a model directory: `solver.json` says what there is, `solver.npz` has the arrays.

    solver.json   format, package version, configuration, model_iter_id, ledger, SHA-256 of parameters and of solver.npz
    solver.npz    float32 and int64 arrays: the optimizer's moments, counters

Both are data only; nothing in them is executed or names code.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parl_evokit._version import __version__
from parl_evokit.arrays import read_arrays, write_arrays
from parl_evokit.errors import LayoutMismatch, SolverError
from parl_evokit.report import vector_digest
from parl_evokit.strategy import Strategy

__all__ = ["read", "write"]

FORMAT = 1
SUMMARY = "solver.json"
ARRAYS = "solver.npz"


def write(directory: Path, strategy: Strategy, ledger: Mapping[str, int] | None = None) -> None:
    """Write the state of `strategy` into an existing directory that no one reads yet (see `directories.replacing`).

    Args:
        directory: Where.
        strategy: Whose state.
        ledger: Which log segments have been used, up to which byte.
    """
    write_arrays(directory / ARRAYS, strategy.state())
    (directory / SUMMARY).unlink(missing_ok=True)  # it may be a link to the file of the directory being replaced
    summary = {
        "format": FORMAT,
        "parl_evokit": __version__,
        "model_iter_id": strategy.sampler.model_iter_id,
        "fingerprint": strategy.sampler.fingerprint,
        "parameters_sha256": vector_digest(strategy.mean),
        "config": strategy.config.to_prototxt(),
        "ledger": dict(ledger or {}),
        "files": {ARRAYS: _digest(directory / ARRAYS)},
    }
    (directory / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def read(directory: Path, strategy: Strategy) -> dict[str, int]:
    """Load into `strategy`, which must hold the model's parameters already, what `write` wrote.

    Returns:
        The ledger.

    Raises:
        SolverError: A file is missing, damaged, of another version, or does not belong to the model.
    """
    summary = _summary(directory / SUMMARY)
    for name, wanted in summary["files"].items():
        file = directory / name
        found = _digest(file) if file.is_file() else "missing"
        if found != wanted:
            raise SolverError(f"{file} is not the file that {SUMMARY} describes: SHA-256 {found}, not {wanted}")
    sampler = strategy.sampler
    if summary["fingerprint"] != sampler.fingerprint:
        raise SolverError(
            f"{directory}: the solver is for another model, noise seed or table "
            f"(fingerprint {summary['fingerprint']:#010x}, here {sampler.fingerprint:#010x})"
        )
    if summary["parameters_sha256"] != vector_digest(strategy.mean):
        raise SolverError(
            f"{directory}: the solver belongs to other weights than the model has; load those of the same directory"
        )
    path = directory / ARRAYS
    try:
        strategy.load_state(read_arrays(path))
    except LayoutMismatch as error:
        raise SolverError(f"{path} does not fit the solver: {error}") from error
    return {str(segment): int(offset) for segment, offset in summary["ledger"].items()}


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SolverError(f"{path} is missing: call save_solver() there first (evokit init-solver)") from error
    except (OSError, ValueError) as error:
        raise SolverError(f"{path} cannot be read: {error}") from error
    if not isinstance(summary, dict) or summary.get("format") != FORMAT:
        raise SolverError(f"{path} is not a solver's summary of format {FORMAT}")
    types = {"files": dict, "fingerprint": int, "parameters_sha256": str, "ledger": dict}
    wrong = [name for name, kind in types.items() if not isinstance(summary.get(name), kind)]
    if wrong:
        raise SolverError(f"{path} lacks {', '.join(wrong)}")
    return summary


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
