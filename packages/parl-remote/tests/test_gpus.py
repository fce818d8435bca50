"""The GPUs that an actor sees."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable

import pytest

from parl_remote._master.placement import GpuShares
from parl_remote._system.host import visible_gpus


def test_whole_gpus_go_to_one_actor_each_and_come_back() -> None:
    shares = GpuShares(("0", "1", "2"))
    assert shares.take(2) == ("0", "1")
    assert shares.take(1) == ("2",)
    shares.give(("0", "1"), 2)
    assert shares.take(1) == ("0",)


def test_fractions_fill_one_gpu_before_they_break_another() -> None:
    shares = GpuShares(("0", "1"))
    taken = [shares.take(0.4) for _ in range(4)]
    assert taken[0] == taken[1]
    assert taken[2] == taken[3] != taken[0]
    shares.give(taken[0], 0.4)
    shares.give(taken[1], 0.4)
    assert shares.take(1) == taken[0]


def test_an_actor_without_a_share_gets_none() -> None:
    assert GpuShares(("0",)).take(0) == ()


@pytest.mark.parametrize(
    ("variable", "found"), [("0,2", ("0", "2")), ("", ()), ("-1", ()), ("GPU-8f3a, GPU-1", ("GPU-8f3a", "GPU-1"))]
)
def test_the_user_s_choice_of_gpus_is_respected(variable: str, found: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": variable}) == found


def test_actors_see_their_own_gpus_and_no_others(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program = textwrap.dedent(
        """
        import os
        import parl_remote as parl

        @parl.remote_class
        class Actor:
            def gpus(self):
                return os.environ["CUDA_VISIBLE_DEVICES"]

        parl.connect(cpu_num=4, lease_timeout_s=0)
        one = parl.with_options(Actor, n_gpu=1)
        pair = [one(), one()]
        print(sorted(actor.gpus() for actor in pair), repr(Actor().gpus()))
        try:
            one()
        except parl.NoResources as error:
            print(error)
        """
    )
    done = run_program(program=program, env={**os.environ, "CUDA_VISIBLE_DEVICES": "3,5"})
    lines = done.stdout.splitlines()
    assert lines[0] == "['3', '5'] ''"
    assert lines[1].startswith("Actor asked for 1 CPU, 1 GPU; the cluster has 4 CPU, 2 GPU")
