"""The environment variables of parl-core and its backends, which read them only here.

`VARIABLES` set the number of threads of numeric libraries when they are loaded.
"""

import os
from collections.abc import Mapping

__all__ = [
    "VARIABLES",
    "backend_choice",
    "chosen_variables",
    "device_choice",
    "one_thread_unless_chosen",
    "sets_malloc",
    "visible_gpus",
]

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def backend_choice() -> str | None:
    """Return `PARL_BACKEND`: the backend's name, or None when unset or empty."""
    return os.environ.get("PARL_BACKEND", "").strip().lower() or None


def device_choice() -> str | None:
    """Return `PARL_DEVICE`: the device of models (`cpu`, `cuda`, `cuda:1`), or None when unset or empty."""
    return os.environ.get("PARL_DEVICE", "").strip() or None


def visible_gpus() -> str | None:
    """Return `CUDA_VISIBLE_DEVICES`: the GPUs visible to this process, or None when unset; empty means no GPUs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def chosen_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in an environment that set numbers of threads."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}


def sets_malloc(environment: Mapping[str, str]) -> bool:
    """Return whether an environment sets glibc's thresholds of freed memory."""
    is_set = any(environment.get(name) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"))
    tunables = environment.get("GLIBC_TUNABLES", "")
    return is_set or any(f"glibc.malloc.{name}_threshold" in tunables for name in ("trim", "mmap"))


def one_thread_unless_chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one of several processes on a machine: one thread unless the user chose a number."""
    return dict(environment) if chosen_variables(environment) else {**environment, **dict.fromkeys(VARIABLES, "1")}
