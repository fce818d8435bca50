"""How many threads numeric libraries of an actor may use: as many as the actor has CPUs.

Otherwise eight actors on eight cores would start sixty-four threads that take turns. Libraries read the environment
when they are loaded; numpy is loaded in the zygote already, so its OpenBLAS is told through its own function.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping, MutableMapping

__all__ = ["VARIABLES", "chosen_by_user", "limit_numeric_threads", "set_variables"]

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


def chosen_by_user(environment: Mapping[str, str]) -> bool:
    """Whether the environment has a number of threads that must be respected."""
    return any(environment.get(name) for name in VARIABLES)


def set_variables(environment: MutableMapping[str, str], threads: int) -> None:
    """Ask libraries that are loaded later for `threads` threads."""
    for name in VARIABLES:
        environment[name] = str(threads)


def limit_numeric_threads(threads: int | None) -> None:
    """Use `threads` threads in libraries that this process has loaded or will load; None leaves all as it is."""
    if threads is None:
        return
    set_variables(os.environ, threads)
    if threads > 1:  # one is what the zygote has loaded numpy with
        _tell_loaded_openblas(threads)


def _tell_loaded_openblas(threads: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
        for path in paths:
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                setter = getattr(library, name, None)
                if setter is not None:
                    setter(ctypes.c_int(threads))
