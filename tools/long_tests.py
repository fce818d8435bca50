"""Run what takes longer than a change can wait for: before a release, and where a closing note asks for it.

    python tools/long_tests.py                      every part; fails if any of them did
    python tools/long_tests.py release newcomer     some of them

| part | what it does |
| --- | --- |
| `release` | the dry run of a release of every package: `hatch run release:check` |
| `newcomer` | the commands of the READMEs, each as written, in bare environments (tools/newcomer.py) |
| `pythons` | the base suite under each supported Python that is on the PATH |
| `futures` | a hundred rounds of ten thousand futures, by everything that waits for them |
| `soak` | an hour of random faults under load |
| `soak_evolution` | an hour of random faults of an online product: kills, clocks, full disks, damage |
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("parl-core", "parl-remote", "parl-torch", "parl-paddle", "parl-evokit")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SOAK_S = 3600


def release(folder: Path) -> None:
    """Rehearse a release of every package."""
    required = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]["release"]["dependencies"]
    python = _environment(folder / "release", *required)
    _do(ROOT, python, "tools/release.py", "--check", "--out", folder / "dist")


def newcomer(folder: Path) -> None:
    """Run the commands of the READMEs in bare environments."""
    sources = (f"-e{ROOT / 'packages' / package}" for package in PACKAGES[:2])  # for the networks of its cluster
    python = _environment(folder / "newcomer", *sources, "build", "hatchling")
    _do(ROOT, python, "tools/newcomer.py")


def pythons(folder: Path) -> None:
    """Run the base suite under the other Pythons."""
    settings = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]["base"]
    failed = []
    for version in PYTHONS:
        found = shutil.which(f"python{version}")
        if found is None:
            print(f"Python {version} is not on the PATH and is left out")
            continue
        _do(folder, found, "-m", "venv", folder / version)
        python = folder / version / "bin" / "python"
        members = [part for member in settings["workspace"]["members"] for part in ("-e", ROOT / member)]
        _do(ROOT, python, "-m", "pip", "install", "--quiet", *members, *settings["dependencies"])
        if subprocess.run([str(python), "tools/suites.py", "base"], cwd=ROOT, check=False).returncode:
            failed.append(version)
    if failed:
        raise RuntimeError(f"the base suite failed under Python {', '.join(failed)}")


def futures(folder: Path) -> None:
    """Wait for ten thousand futures a hundred times in every way."""
    sources = (f"-e{ROOT / 'packages' / package}" for package in PACKAGES[:2])
    python = _environment(folder / "futures", *sources, "pytest", "pytest-timeout")
    command = [python, "-m", "pytest", "-q", "-c", "tools/pytest.ini", "--rootdir", ".", "-m", "slow"]
    _do(ROOT, "env", "PARL_FUTURES_ROUNDS=100", *command, "packages/parl-remote/tests/test_many_futures.py")


def soak(folder: Path) -> None:
    """Run random faults under load for an hour; the tables are written beside the benchmark."""
    python = _environment(folder / "soak", *(f"-e{ROOT / 'packages' / package}" for package in PACKAGES[:2]))
    _do(ROOT, python, "benchmarks/soak/run.py", "--seconds", SOAK_S)


def soak_evolution(folder: Path) -> None:
    """Run random faults of an online product for an hour: no reward may be lost, and none may count twice."""
    python = _environment(folder / "soak", *(f"-e{ROOT / 'packages' / name}" for name in ("parl-core", "parl-evokit")))
    _do(ROOT, python, "benchmarks/soak/evolution.py", "--seconds", SOAK_S, "--place", folder)


PARTS: dict[str, Callable[[Path], None]] = {
    "release": release,
    "newcomer": newcomer,
    "pythons": pythons,
    "futures": futures,
    "soak": soak,
    "soak_evolution": soak_evolution,
}


def _environment(folder: Path, *requirements: str) -> Path:
    """Return the Python of a new virtual environment."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = ROOT / "tools" / "constraints.txt"
    _do(ROOT, python, "-m", "pip", "install", "--quiet", "--constraint", constraints, *requirements)
    return python


def _do(folder: Path, *command: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=folder, check=True)


def main(*chosen: str) -> int:
    """Run the parts and print a line for each."""
    results = {}
    for name in chosen or PARTS:
        with tempfile.TemporaryDirectory(prefix="parl-long-") as folder:
            try:
                PARTS[name](Path(folder))
            except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
                results[name] = f"FAILED  {error}"
            else:
                results[name] = "passed"
    print()
    for name, result in results.items():
        print(f"{name:9} {result}")
    return int(any(result != "passed" for result in results.values()))


if __name__ == "__main__":
    unknown = sorted({*sys.argv[1:]} - {*PARTS})
    if unknown:
        sys.exit(f"{', '.join(unknown)} is not a part; there are {', '.join(PARTS)}")
    sys.exit(main(*sys.argv[1:]))
