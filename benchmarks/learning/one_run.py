"""One training run in the training process, with a claim that excludes other processes, and its result file.

    claim (a lock on `<backend>-<seed>.claim`) ──> train ──> `<backend>-<seed>.json` ──> claim released

The operating system releases the lock when the process ends, so that a stale claim file blocks no run. A result file
gets its name when it is complete.
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

TAKEN = 75  # exit status if another process has claimed the run (EX_TEMPFAIL of sysexits.h)

_writing = threading.Lock()


def result_file(folder: Path, gate: str, backend: str, seed: int) -> Path:
    """Return the path of a run's result."""
    return folder / gate / f"{backend}-{seed}.json"


def is_done(path: Path) -> bool:
    """Return whether a run has a result with the recipe's present settings; otherwise it is repeated."""
    try:
        result = read_result(path)
    except ValueError as error:
        if path.exists():
            print(f"{error}; the run is repeated", file=sys.stderr, flush=True)
        return False
    return has_numbers_of(result, GATES[result["gate"]]) if result["gate"] in GATES else True


def has_numbers_of(result: Mapping[str, Any], gate: Gate) -> bool:
    """Return whether a result was measured with the present settings of the gate's recipe.

    A newer setting that a record lacks had its default. Texts and stopping rules of `parl train` do not count.
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
        folder: Folder of all results.
        gate: Key of the gate.
        backend: torch, paddle, or sb3 for the same recipe in Stable-Baselines3.
        seed: Seed of the run.
        share: Share of the gate's steps; below 1 only for a trial run.
        progress: Callback that receives the completed share of the run.

    Returns:
        The exit status: 0, also if the result already exists; `TAKEN` if another process has claimed the run.
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
    """End this process when its standard input closes, which is a pipe that the parent holds until it ends."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not `sys.stdin.read`, whose lock the interpreter needs at its end
            pass
        with _writing:  # a result is written in a few milliseconds
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
    """Return the commit of a folder's repository, with `-dirty` if tracked files differ; None outside of a repository.

    Changes of tables and curves do not count, because earlier runs may have written them.
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
    partial = target.with_suffix(".part")  # the holder of the claim overwrites the partial file of a killed process
    with _writing:
        try:
            partial.write_text(json.dumps(result) + "\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold the claim, and yield False if another process holds it."""
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
        file.close()  # its holder has just removed it
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        file.close()
