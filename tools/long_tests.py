"""Run tests that take too long for every change, before a release or for a closing note.

    python tools/long_tests.py                      all parts; fails if any of them fails
    python tools/long_tests.py release newcomer     some of them

| part | what it does |
| --- | --- |
| `release` | the dry run of a release of every package: `hatch run release:check` |
| `newcomer` | the commands of the READMEs in bare environments (tools/newcomer.py) |
| `pythons` | the base suite under each supported Python that is installed |
| `properties` | a thousand random examples, new ones in each run, of each test that Hypothesis draws examples for |
| `cases` | the tests marked `long` |
| `futures` | a hundred rounds of ten thousand futures, with every way to wait |
| `soak` | an hour of random faults under load |
| `soak_evolution` | an hour of random faults of an online product: kills, clocks, full disks, damage |
"""

import shlex
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
    # for the network namespaces of its cluster
    sources = (f"-e{ROOT / 'packages' / package}" for package in PACKAGES[:2])
    python = _environment(folder / "newcomer", *sources, "build", "hatchling")
    _do(ROOT, python, "tools/newcomer.py")


def pythons(folder: Path) -> str:
    """Run the base suite with every supported Python that is installed, and return the results.

    Raises:
        RuntimeError: It failed with one of them, or none is installed; the message has all results.
    """
    settings = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]["base"]
    members = [part for member in settings["workspace"]["members"] for part in ("-e", ROOT / member)]
    results = {}
    for version in PYTHONS:
        python = folder / version / "bin" / "python"
        if not runs(f"python{version}"):
            results[version] = "not installed"
            continue
        try:
            _do(folder, f"python{version}", "-m", "venv", folder / version)
            _do(ROOT, python, "-m", "pip", "install", "--quiet", *members, *settings["dependencies"])
            _do(ROOT, python, "tools/suites.py", "base")
        except subprocess.CalledProcessError as error:
            results[version] = f"FAILED: {shlex.join(error.cmd)}"
        else:
            results[version] = "passed"
    told = "; ".join(f"{version} {result}" for version, result in results.items())
    if "passed" not in results.values() or any(result.startswith("FAILED") for result in results.values()):
        raise RuntimeError(told)
    return told


def runs(python: str) -> bool:
    """Return whether a Python is on the PATH and starts; a shim of pyenv may exist without its Python."""
    try:
        return not subprocess.run([python, "--version"], capture_output=True, check=False).returncode
    except OSError:
        return False


def properties(folder: Path) -> None:
    """Run the tests that Hypothesis draws examples for with random ones; `hatch run test` repeats the same few."""
    base = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]["base"]
    members = (f"-e{ROOT / member}" for member in base["workspace"]["members"])
    python = _environment(folder / "properties", *members, *base["dependencies"])
    _do(ROOT, python, "tools/suites.py", "base", "-m", "hypothesis", "--hypothesis-profile=random")


def futures(folder: Path) -> None:
    """Wait for ten thousand futures a hundred times in each way."""
    sources = (f"-e{ROOT / 'packages' / package}" for package in PACKAGES[:2])
    python = _environment(folder / "futures", *sources, "pytest", "pytest-timeout")
    command = [python, "-m", "pytest", "-q", "-c", "tools/pytest.ini", "--rootdir", ".", "-m", "slow"]
    _do(ROOT, "env", "PARL_FUTURES_ROUNDS=100", *command, "packages/parl-remote/tests/test_many_futures.py")


def cases(folder: Path) -> None:  # noqa: ARG001  # the suites have environments of their own
    """Run the slow tests that `hatch run test:all` leaves out."""
    _do(ROOT, sys.executable, "tools/suites.py", "all", "-m", "long")


def soak(folder: Path) -> None:
    """Run random faults under load for an hour; the tables are written beside the benchmark."""
    python = _environment(folder / "soak", *(f"-e{ROOT / 'packages' / package}" for package in PACKAGES[:2]))
    _do(ROOT, python, "benchmarks/soak/run.py", "--seconds", SOAK_S)


def soak_evolution(folder: Path) -> None:
    """Run random faults of an online product for an hour: no reward may be lost, and none may count twice."""
    python = _environment(folder / "soak", *(f"-e{ROOT / 'packages' / name}" for name in ("parl-core", "parl-evokit")))
    _do(ROOT, python, "benchmarks/soak/evolution.py", "--seconds", SOAK_S, "--place", folder)


PARTS: dict[str, Callable[[Path], str | None]] = {
    "release": release,
    "newcomer": newcomer,
    "pythons": pythons,
    "properties": properties,
    "cases": cases,
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
                told = PARTS[name](Path(folder))
            except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
                results[name] = f"FAILED  {error}"
            else:
                results[name] = f"passed  {told or ''}".rstrip()
    print()
    for name, result in results.items():
        print(f"{name:14} {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    unknown = sorted({*sys.argv[1:]} - {*PARTS})
    if unknown:
        sys.exit(f"{', '.join(unknown)} is not a part; there are {', '.join(PARTS)}")
    sys.exit(main(*sys.argv[1:]))
