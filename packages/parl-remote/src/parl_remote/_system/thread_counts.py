"""Thread counts of numeric libraries in an actor: as many as the actor has CPUs.

Otherwise eight actors on eight cores would start sixty-four threads. Libraries read the environment when they are
loaded, which suffices for those that the actor loads itself: torch, paddle, MKL, numexpr, numba. Those that the zygote
has loaded already, numpy's OpenBLAS and the `preload` modules, are set through their own functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping

from parl_core._config import VARIABLES, chosen_variables

__all__ = ["VARIABLES", "chosen_by_user", "chosen_number", "chosen_variables", "limit_numeric_threads", "set_variables"]

_SETTERS = {  # by what the library's file is called: functions that take the number as a C int
    "openblas": ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "gomp": ("omp_set_num_threads",),
    "iomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
}
_MODULES = ("torch", "numexpr")  # whose own function, too, is called set_num_threads


def chosen_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of threads that an environment sets for all libraries, or else for one of them."""
    numbers = (text.partition(",")[0].strip() for text in chosen_variables(environment).values())
    return next((int(number) for number in numbers if number.isdecimal() and int(number) > 0), None)


def chosen_by_user(environment: Mapping[str, str]) -> bool:
    """Return whether the environment sets a number of threads that must be respected."""
    return bool(chosen_variables(environment))


def set_variables(environment: MutableMapping[str, str], threads: int) -> None:
    """Set the number of threads for libraries that are loaded later."""
    for name in VARIABLES:
        environment[name] = str(threads)


def limit_numeric_threads(threads: int | None) -> None:
    """Set the number of threads for libraries loaded now or later; None changes nothing."""
    if threads is None:
        return
    set_variables(os.environ, threads)
    if threads > 1:  # the zygote has loaded everything with one
        _tell_loaded_libraries(threads)
        _tell_loaded_modules(threads)


def _tell_loaded_libraries(threads: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {fields[5].strip() for line in maps if len(fields := line.split(maxsplit=5)) > 5}
        for path in paths:
            name = os.path.basename(path)
            setters = next((names for part, names in _SETTERS.items() if part in name and ".so" in name), ())
            for setter in setters:
                _call(path, setter, threads)


def _call(path: str, name: str, number: int) -> None:
    with contextlib.suppress(OSError):
        function = getattr(ctypes.CDLL(path), name, None)
        if function is not None:
            function(ctypes.c_int(number))


def _tell_loaded_modules(threads: int) -> None:
    for name in _MODULES:
        setter = getattr(sys.modules.get(name), "set_num_threads", None)
        if setter is not None:
            with contextlib.suppress(Exception):  # numexpr refuses more than it has prepared for
                setter(threads)
