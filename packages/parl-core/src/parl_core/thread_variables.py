"""The environment variables by which numeric libraries are told how many threads to use when they are loaded."""

from collections.abc import Mapping

__all__ = ["VARIABLES", "chosen_variables", "one_thread_unless_chosen"]

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def chosen_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What an environment says about numbers of threads."""
    return {name: environment[name] for name in VARIABLES if environment.get(name)}


def one_thread_unless_chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of one of several processes that share a machine: one thread each, or what the user chose."""
    return dict(environment) if chosen_variables(environment) else {**environment, **dict.fromkeys(VARIABLES, "1")}
