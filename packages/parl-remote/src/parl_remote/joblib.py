"""The joblib backend "parl": runs batches of joblib, and so of scikit-learn, in the workers of `parl.Executor`.

    import parl
    with joblib.parallel_backend("parl", n_jobs=8):
        search.fit(X, y)

A program that imports `parl` need not register the backend; a program that imports only `parl_remote` calls `register`.
It needs joblib (`pip install "parl-remote[joblib]"`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from joblib._memmapping_reducer import _get_backing_memmap, _reduce_memmap_backed
from joblib._parallel_backends import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)
from joblib.parallel import Parallel, register_parallel_backend

from parl_remote import _current
from parl_remote._functions.executor import Executor
from parl_remote._future import CallbackThread
from parl_remote._system.facilities import cpu_count

__all__ = ["ParlBackend", "register"]

# Options that `Parallel` passes to every backend, or that are for joblib's own; all others are this backend's.
_OF_JOBLIB = {*inspect.signature(Parallel).parameters, "context", "idle_worker_timeout"}


class ParlBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """A backend that runs joblib's batches in the workers of `parl.Executor`.

    Args:
        nesting_level: The number of parallel calls around this one.
        inner_max_num_threads: Not supported and refused by joblib: a worker has as many threads as CPUs (`n_cpu`).
        **options: Options of `parl.Executor`: `n_cpu`, `retries`, `timeout_s`, `initializer` and others. `Parallel`
            accepts them as well.
    """

    supports_retrieve_callback = True
    supports_return_generator = True
    supports_timeout = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, inner_max_num_threads: int | None = None, **options: Any):
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._options = options
        self._executor: Executor | None = None
        self._n_jobs = 1
        self._given: dict[str, Any] = {}

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of batches that run at a time; -1 is one per CPU of the cluster, -2 one less, and so on.

        Raises:
            ValueError: `n_jobs` is 0.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(1, _cluster_cpus() + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **given: Any) -> int:
        """Prepare for a call of `Parallel` and return the number of batches that run at a time.

        Raises:
            TypeError: An option is unknown.
            ValueError: An option is out of its range.
        """
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._n_jobs = n_jobs
        self._given = {name: value for name, value in given.items() if name not in _OF_JOBLIB}
        self._executor = Executor(n_jobs, **{**self._options, **self._given})
        # A thread for each call, because a user's callback may call `Parallel`, which waits for joblib's callbacks.
        self._callbacks = CallbackThread(is_awaited=False)
        return n_jobs

    def submit(self, func: Any, callback: Any = None) -> Any:
        """Run a batch and return its future; `callback` is called with the future when it is done."""
        assert self._executor is not None  # joblib calls `configure` first
        func.items = [
            (one, tuple(map(_shared, args)), {name: _shared(value) for name, value in kwargs.items()})
            for one, args, kwargs in func.items
        ]
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(partial(_pass_on, self._callbacks, callback))
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """Return the results of a batch."""
        return out.result()

    def terminate(self) -> None:
        """End the call; the workers stay for the next one."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches that have not begun, and end the workers that run the others.

        It then gets ready for the next call if `ensure_ready` is True.
        """
        if self._executor is not None:
            self._executor._end_calls()
        self.terminate()
        if ensure_ready:
            self.configure(self._n_jobs, parallel=self.parallel, **self._given)


def _pass_on(thread: CallbackThread, callback: Callable[[Any], None], future: Any) -> None:
    thread.run(partial(callback, future))


def _cluster_cpus() -> int:
    """Return the number of CPUs of the cluster; without a connection, of the private one that would be started."""
    client: Any = _current.client_if_any()
    return (None if client is None else client.cpu_num) or cpu_count()


class _Mapped:
    """A writable array in a file; the worker maps the same file, so that its writes reach the file.

    Args:
        array: The array.
        memory: The mapped array that it is a view of, or itself.
    """

    def __init__(self, array: Any, memory: Any) -> None:
        self._reduced = _reduce_memmap_backed(array, memory)

    def __reduce__(self) -> Any:
        return self._reduced


def _shared(value: Any) -> Any:
    """Return the object to send for an argument: a writable mapped array by its file, any other value as a copy."""
    memory = _get_backing_memmap(value) if isinstance(value, np.ndarray) else None
    return _Mapped(value, memory) if isinstance(memory, np.memmap) and memory.mode in {"r+", "w+"} else value


def register() -> None:
    """Register the backend "parl" with joblib; a second call does nothing."""
    register_parallel_backend("parl", ParlBackend)
