"""The number of threads that numeric libraries use in actors."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable

import pytest

from parl_remote._system.processes import VARIABLES, chosen_by_user, chosen_number, chosen_variables

PROGRAM = textwrap.dedent(
    """
    import ctypes, os
    import parl_remote as parl

    @parl.remote_class
    class Actor:
        def threads(self):
            import numpy
            numpy.ones((600, 600)) @ numpy.ones((600, 600))
            with open("/proc/self/maps") as maps:
                (path,) = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
            library = ctypes.CDLL(path)
            names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads")
            count = next(getattr(library, name) for name in names if hasattr(library, name))
            return count(), os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS")

        def make_another(self):
            return Actor.options(n_cpu=1)().threads()

    parl.connect(cpu_num=8)
    for n_cpu in (0.5, 1, 2, 3):
        print(Actor.options(n_cpu=n_cpu)().threads())
    print(Actor.options(n_cpu=3)().make_another())
    """
)


def without_choice() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VARIABLES}


@pytest.mark.slow
def test_an_actor_s_libraries_use_as_many_threads_as_it_has_cpus(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_program(program=PROGRAM, env=without_choice())
    assert done.stdout.splitlines() == [
        "(1, '1', '1')",
        "(1, '1', '1')",
        "(2, '2', '2')",
        "(3, '3', '3')",
        "(1, '1', '1')",
    ], done.stderr


def test_what_the_user_has_chosen_is_left_as_it_is(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_program(program=PROGRAM, env={**without_choice(), "OMP_NUM_THREADS": "2"})
    assert {line.partition(", ")[2] for line in done.stdout.splitlines()} == {"'2', None)"}, done.stderr


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, None),
        ({"HOME": "3"}, None),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, 4),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": "many", "MKL_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": ""}, None),
    ],
)
def test_a_program_s_choice_is_read_as_libraries_read_it(variables: dict[str, str], number: int | None) -> None:
    assert chosen_number(variables) == number
    assert chosen_by_user(variables) is bool(chosen_variables(variables))
