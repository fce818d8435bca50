"""A description of the machine, which is printed with every result."""

import compileall
import importlib.util
import os
import platform
import subprocess
from pathlib import Path

_DISTRIBUTIONS = {
    "parl": "parl-remote",
    "ray": "ray",
    "zmq": "pyzmq",
    "parl221": "parl",
    "dask": "distributed",
    "numpy": "numpy",
}
_ASK = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def describe(interpreters: dict[str, str]) -> list[str]:
    """Return lines about the machine and versions.

    Args:
        interpreters: The Python interpreter of each peer.
    """
    asked = {**interpreters, "numpy": next(iter(interpreters.values()))}
    versions = [
        f"{distribution} {_version(asked[name], distribution)}"
        for name, distribution in _DISTRIBUTIONS.items()
        if name in asked
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}",
        f"{', '.join(versions)}; commit {_commit()}",
    ]


def compile_sources() -> None:
    """Compile this repository's modules, as pip does at installation; otherwise each start compiles them."""
    for package in ("parl", "parl_core", "parl_remote"):
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            compileall.compile_dir(place, quiet=2)
    compileall.compile_dir(Path(__file__).parent, maxlevels=0, quiet=2)  # else each actor compiles its class's module


def load() -> str:
    """Return the load average over one minute."""
    return f"{os.getloadavg()[0]:.1f}"


def _version(python: str, distribution: str) -> str:
    done = subprocess.run([python, "-c", _ASK, distribution], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "?"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
