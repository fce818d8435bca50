"""Run the checks of `hatch run check`.

    python tools/checks.py all     the checks of all environments, through hatch
    python tools/checks.py lint    those of one environment (lint, torch, paddle), with this Python

All checks run, even after failures, as many at a time as there are cores. A line shows the result of each, followed by
the output of failed ones.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
_STRICT = ("mypy", "--config-file", "tools/mypy.ini")
# They start in this order, the longest first.
CHECKS: dict[str, dict[str, tuple[str, ...]]] = {
    "lint": {
        "types of tests and benchmarks": ("tools/check_types.py", "tests", "packages", "benchmarks"),
        "types of packages": (
            *_STRICT,
            *(f"packages/parl-{name}/src" for name in ("core", "remote", "evokit")),
            "tests/conformance",
            "tests/faults",
        ),
        "types of tools and examples": ("tools/check_types.py", "tools", "examples"),
        "ruff: rules": ("ruff", "check", "--config", "tools/ruff.toml", "."),
        "ruff: format": ("ruff", "format", "--config", "tools/ruff.toml", "--check", "."),
        "layers of imports": ("lint-imports",),
        "cycles of imports": ("tools/structure.py", "--check"),
        "public names": ("tools/public_names.py",),
        "backends have the same names": ("tools/parity.py",),
        "notebooks equal their scripts": ("tools/notebooks.py",),
        "changelog fragments": ("tools/changelog.py", "--check"),
    },
    "torch": {
        "types of parl-torch": (*_STRICT, "packages/parl-torch/src", "packages/parl-evokit/src/parl_evokit/models")
    },
    "paddle": {"types of parl-paddle": (*_STRICT, "packages/parl-paddle/src")},
}
_HATCH = {"lint": "lint:check", "torch": "torch:types", "paddle": "paddle:types"}


def one(environment: str) -> int:
    """Run the checks of an environment and return 0 if all of them passed."""
    checks = CHECKS[environment]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(_run, checks, checks.values()))
    return int(not all(results))


def _run(name: str, command: tuple[str, ...]) -> bool:
    if command[0].endswith(".py"):
        command = (sys.executable, *command)
    else:
        found = shutil.which(command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        command = (found or command[0], *command[1:])
    started = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    passed = ended.returncode == 0
    line = f"{'passed' if passed else 'FAILED':7} {name} ({time.monotonic() - started:.0f} s)"
    print(line if passed else f"{ended.stdout.rstrip()}\n{line}", flush=True)
    return passed


def every() -> int:
    """Run the checks of all environments, even after failures, and return 0 if all of them passed."""
    results = [subprocess.run(["hatch", "run", script], cwd=ROOT, check=False).returncode for script in _HATCH.values()]
    return int(any(results))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["all"]:
            return every()
        case [environment] if environment in CHECKS:
            return one(environment)
    sys.exit(f"name one of: all, {', '.join(CHECKS)}; not {' '.join(arguments) or 'nothing'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
