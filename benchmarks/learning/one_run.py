"""One training run, in the process that trains: claimed, so that nobody else does the same, and its result file.

    claim (a lock on `<backend>-<seed>.claim`) ──> train ──> `<backend>-<seed>.json` ──> claim released

The operating system releases the lock with the process, however that ends: a claim file that was left behind keeps
nobody from running. A result has its name only when it is complete.
"""

import fcntl
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gates import GATES, Gate

from parl_core.errors import HyperparameterError
from parl_core.training.offline import OfflineSettings
from parl_core.training.recipes import Recipe
from parl_core.training.results import read_result

__all__ = ["TAKEN", "claimed", "commit_of", "die_with_parent", "has_numbers_of", "is_done", "result_file", "run_one"]

TAKEN = 75  # exit status of a run that another process is at (EX_TEMPFAIL of sysexits.h)

_writing = threading.Lock()


def result_file(folder: Path, gate: str, backend: str, seed: int) -> Path:
    """Return the path of a run's result."""
    return folder / gate / f"{backend}-{seed}.json"


def is_done(path: Path) -> bool:
    """Return whether a run has a result of the numbers that its recipe has now; else it is done again."""
    try:
        result = read_result(path)
    except ValueError as error:
        if path.exists():
            print(f"{error}; the run is done again", file=sys.stderr, flush=True)
        return False
    return has_numbers_of(result, GATES[result["gate"]]) if result["gate"] in GATES else True


def has_numbers_of(result: Mapping[str, Any], gate: Gate) -> bool:
    """Return whether a result was measured with the numbers that the gate's recipe has now.

    A setting that a record does not have, because it is younger, was at its default. Words and what stops `parl train`
    are not numbers of a run.
    """
    if result.get("share", 1.0) != 1.0:
        return True
    try:
        recorded = Recipe.from_json(result.get("recipe") or {})
    except HyperparameterError:
        return False
    return _numbers(recorded) == _numbers(gate.recipe)


def _numbers(recipe: Recipe) -> dict[str, Any]:
    return replace(recipe, source="", deviations=(), goal=None, evaluate_every=None).as_json()


def run_one(
    folder: Path, gate: str, backend: str, seed: int, share: float, progress: Callable[[float], None] = lambda _: None
) -> int:
    """Train one agent and write its result.

    Args:
        folder: of all results.
        gate: its key.
        backend: torch, paddle, or sb3 for the same recipe in Stable-Baselines3.
        seed: of the run.
        share: of the gate's steps; below 1 only to see that everything runs.
        progress: told the share of the run that is over.

    Returns:
        the exit status: 0, also when the result is there already; `TAKEN` when another process is at this run.
    """
    target = result_file(folder, gate, backend, seed)
    target.parent.mkdir(parents=True, exist_ok=True)
    with claimed(target.with_suffix(".claim")) as mine:
        if not mine:
            return TAKEN
        if not is_done(target):
            _write(target, _trained(gate, backend, seed, share, progress))
    return 0


def die_with_parent() -> None:
    """End this process when its standard input closes: it is a pipe that the parent holds as long as it lives."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not `sys.stdin.read`: its lock is wanted at the interpreter's end
            pass
        with _writing:  # the few milliseconds that a result needs
            os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _trained(gate: str, backend: str, seed: int, share: float, progress: Callable[[float], None]) -> dict[str, Any]:
    from parl_core.training.results import logged, machine

    if backend == "sb3":
        from beside_sb3 import measure
    else:
        from parl_core.backends import set_backend
        from parl_core.training.results import measure

        set_backend(backend)
    wanted = GATES[gate]
    recipe = wanted.recipe if share == 1.0 else wanted.recipe.with_steps(max(int(wanted.recipe.steps * share), 1))
    commit = commit_of(Path(__file__).parent)
    load, began, cpu = os.getloadavg()[0], time.time(), time.process_time()
    episodes = {} if share == 1.0 else {"episodes": 3}
    measured = measure(wanted.algorithm, wanted.env, recipe, seed, progress=progress, **episodes)
    result: dict[str, Any] = {
        "gate": gate,
        "algorithm": wanted.algorithm,
        "env": wanted.env,
        "backend": backend,
        "seed": seed,
        "steps": measured.steps,
        "share": share,
        "returns": measured.returns,
        "curve": measured.curve,
        "wall_s": round(time.time() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "load_before": round(load, 1),
        "machine": machine(),
        "commit": commit,
        "versions": {name: version(name) for name in _packages(backend)},
        "python": platform.python_version(),
        "source": recipe.source,
        "recipe": recipe.as_json(),
    }
    if isinstance(recipe.loop, OfflineSettings):
        result["data_return"] = float(logged(wanted.env, recipe.log).episode_returns.mean())
    return result


def _packages(backend: str) -> list[str]:
    modules = {"torch": "torch", "paddle": "paddlepaddle", "mujoco": "mujoco", "minatar": "minatar"}
    used = [name for module, name in modules.items() if module in sys.modules]
    library = "stable-baselines3" if backend == "sb3" else f"parl-{backend}"
    return ["parl-core", library, "gymnasium", "numpy", *used]


def commit_of(folder: Path) -> str | None:
    """The commit of a folder's repository, with `-dirty` behind it where tracked files differ; None outside of one.

    Tables and curves do not count, which earlier runs of the same evening have written.
    """
    git = ["git", "-C", str(folder)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=30)
        changes = [*git, "status", "--porcelain", "--untracked-files=no", ":/", ":!results"]
        changed = subprocess.run(changes, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = found.stdout.strip()
    return f"{commit}-dirty" if commit and changed.stdout.strip() else commit or None


def _write(target: Path, result: dict[str, Any]) -> None:
    partial = target.with_suffix(".part")  # the claim's holder overwrites leftovers of a killed one
    with _writing:
        try:
            partial.write_text(json.dumps(result) + "\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold the claim, or say that somebody else does."""
    while True:
        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            yield False
            return
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # its owner has just removed it
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        file.close()
