"""joblib's backend, as its own users and scikit-learn's use it."""

from __future__ import annotations

import atexit
import os
import queue
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import parl_remote.joblib
from parl_remote import Executor

PATIENCE_S = 60.0

parl_remote.joblib.register()


def pid(_: int) -> int:
    return os.getpid()


def fails(number: int) -> int:
    if number == 3:
        raise KeyError(number)
    return number


def inner(number: int) -> int:
    return int(sum(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(n) for n in range(number))))


@pytest.mark.slow
def test_batches_run_in_workers(shared_cluster: None) -> None:
    with joblib.parallel_backend("parl", n_jobs=2):
        results = joblib.Parallel()(joblib.delayed(pow)(n, 2) for n in range(500))
        pids = set(joblib.Parallel()(joblib.delayed(pid)(n) for n in range(20)))
    assert results == [n * n for n in range(500)]
    assert os.getpid() not in pids


def test_an_error_ends_the_call_and_the_next_one_works(shared_cluster: None) -> None:
    with joblib.parallel_backend("parl", n_jobs=2):
        with pytest.raises(KeyError):
            joblib.Parallel()(joblib.delayed(fails)(n) for n in range(10))
        assert joblib.Parallel()(joblib.delayed(fails)(n) for n in range(3)) == [0, 1, 2]


def fails_beside(path: str) -> None:
    """The first call tells the second one its process and goes on for ever."""
    try:
        os.mkfifo(path)
    except FileExistsError:
        with open(path) as gate:
            raise KeyError(int(gate.read())) from None
    with open(path, "w") as gate:
        gate.write(str(os.getpid()))
    time.sleep(600)


def test_batches_that_run_end_with_a_call_that_fails(
    share_cluster: Callable[[int], None], tmp_path: Path, await_end: Callable[..., float]
) -> None:
    share_cluster(2)
    with pytest.raises(KeyError) as raised:
        joblib.Parallel(n_jobs=2, backend="parl")(joblib.delayed(fails_beside)(str(tmp_path / "pid")) for _ in range(2))
    await_end([raised.value.args[0]])
    assert joblib.Parallel(n_jobs=2, backend="parl")(joblib.delayed(abs)(-n) for n in range(3)) == [0, 1, 2]


def test_a_callback_of_a_future_may_call_parallel(shared_cluster: None) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call_parallel(_: object) -> None:
        answers.put(joblib.Parallel(n_jobs=2, backend="parl")(joblib.delayed(abs)(-n) for n in range(9)))

    with Executor(1) as executor:
        future = executor.submit(abs, -1)
        future.add_done_callback(call_parallel)
        assert answers.get(timeout=PATIENCE_S) == [*range(9)]


def test_a_call_leaves_no_exit_handler(shared_cluster: None) -> None:
    handlers = []
    for _ in range(3):
        joblib.Parallel(n_jobs=2, backend="parl")(joblib.delayed(abs)(-n) for n in range(3))
        handlers.append(atexit._ncallbacks())
    assert handlers[1:] == handlers[:1] * 2


def test_results_may_be_a_generator(shared_cluster: None) -> None:
    with joblib.parallel_config(backend="parl", n_jobs=2):
        results: Any = joblib.Parallel(return_as="generator")(joblib.delayed(abs)(-n) for n in range(50))
        assert list(results) == list(range(50))


def test_a_call_learns_the_size_of_batches_anew(shared_cluster: None) -> None:
    parallel = joblib.Parallel(n_jobs=2, backend="parl")
    first = parallel._backend._effective_batch_size
    parallel._backend._effective_batch_size = 64  # as it comes to be with a function that takes no time
    parallel(joblib.delayed(abs)(n) for n in range(8))
    assert parallel._backend._effective_batch_size == first


def raise_priority() -> None:
    os.environ["TEST_PRIORITY"] = "raised"


def priority(_: int) -> str | None:
    return os.environ.get("TEST_PRIORITY")


def test_parallel_takes_the_options_of_executors(shared_cluster: None) -> None:
    parallel = joblib.Parallel(n_jobs=2, backend="parl", initializer=raise_priority, retries=1, max_nbytes=None)
    assert parallel(joblib.delayed(priority)(n) for n in range(4)) == ["raised"] * 4
    of_loky = joblib.Parallel(n_jobs=2, backend="parl", idle_worker_timeout=3)
    assert of_loky(joblib.delayed(abs)(n) for n in range(4)) == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="there is no option 'retrys'"):
        joblib.Parallel(n_jobs=2, backend="parl", retrys=3)(joblib.delayed(abs)(n) for n in range(4))


def test_all_jobs_are_as_many_as_the_cluster_has_cpus(connect: Callable[..., None]) -> None:
    connect(cpu_num=5)
    with joblib.parallel_config(backend="parl"):
        assert [joblib.effective_n_jobs(-1), joblib.effective_n_jobs(-2)] == [5, 4]


IN_A_CHILD = """
import os, warnings
import joblib
import parl_remote as parl
import parl_remote.joblib
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

parl_remote.joblib.register()
parl.connect(cpu_num=17)
child = os.fork()
if child == 0:
    with joblib.parallel_config(backend="parl"):
        print(joblib.effective_n_jobs(-1), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_all_jobs_of_a_child_are_as_many_as_the_cluster_of_its_parent_has_cpus(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_program(program=IN_A_CHILD)
    assert (done.stderr, done.stdout) == ("", "17\n")


def write(place: Any, number: int, to: Any) -> None:
    to[place] = number


def test_what_is_written_to_a_mapped_file_is_in_the_file(shared_cluster: None, tmp_path: Path) -> None:
    table = np.memmap(tmp_path / "table", dtype=float, shape=(3, 3), mode="w+")
    private = np.memmap(tmp_path / "table", dtype=float, shape=(3, 3), mode="c")
    with joblib.parallel_config(backend="parl", n_jobs=2):
        joblib.Parallel()(joblib.delayed(write)((0, n), n, to=table) for n in range(3))
        joblib.Parallel()(joblib.delayed(write)(n, 10 + n, np.asarray(table)[:, 2]) for n in range(1, 3))
        joblib.Parallel()(joblib.delayed(write)((2, n), 99, private) for n in range(2))
    assert table.tolist() == [[0, 1, 2], [0, 0, 11], [0, 0, 12]]


@pytest.mark.slow
def test_parallel_calls_within_parallel_calls(shared_cluster: None) -> None:
    with joblib.parallel_backend("parl", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(inner)(n) for n in range(5)) == [sum(range(n)) for n in range(5)]


def test_a_grid_search_finds_what_it_finds_alone(shared_cluster: None) -> None:
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    features, classes = make_classification(300, 10, random_state=1)
    grid = {"C": [0.01, 0.1, 1.0, 10.0], "fit_intercept": [True, False]}

    def search() -> GridSearchCV:
        return GridSearchCV(LogisticRegression(max_iter=500), grid, cv=3, n_jobs=2).fit(features, classes)

    with joblib.parallel_backend("parl"):
        ours = search()
    with joblib.parallel_backend("sequential"):
        alone = search()
    assert ours.best_params_ == alone.best_params_
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import parl, joblib", "import joblib, parl", "import sklearn, parl"])
def test_a_program_that_imports_parl_need_not_register_it(imports: str) -> None:
    program = f"""
    {imports}
    import joblib, sys
    assert "parl_remote" not in sys.modules
    if __name__ == "__main__":
        print(joblib.Parallel(n_jobs=2, backend="parl")(joblib.delayed(abs)(-n) for n in range(3)))
        with joblib.parallel_backend("parl", n_jobs=2):
            print(joblib.Parallel()(joblib.delayed(abs)(-n) for n in range(3)))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[0, 1, 2]\n" * 2, "")
