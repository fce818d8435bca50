"""paddle in actors uses as many threads as the actor has CPUs, whether the actor imports it or its node has done so."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import sys
    import parl_remote as parl

    @parl.remote_class
    class Actor:
        def threads(self):
            import os
            import threading
            import paddle
            (paddle.ones((800, 800)) @ paddle.ones((800, 800))).numpy()
            return len(os.listdir("/proc/self/task")) - len(threading.enumerate()) + 1  # without those of Python

    parl.connect(cpu_num=4, preload=sys.argv[1:])
    one, two = (Actor.options(n_cpu=n_cpu)().threads() for n_cpu in (1, 2))
    print(one, one < two <= 4)  # paddle keeps one more to hand out work
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("preload", [[], ["paddle"]])
def test_paddle_uses_as_many_threads_as_its_actor_has_cpus(preload: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *preload],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "1 True\n", done.stderr
