"""Run the standard library's own tests of futures, waiters and executors against those of parl-remote.

    python stdlib_suites.py REPORT      with the `test` package of this interpreter's minor version on the path

Tests run against three things: `parl.Executor`; futures of calls to actors, by an executor that submits to them; and a
future that is settled by hand. The report is JSON: names by outcome, and each test that is left out with its reason.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import itertools
import json
import multiprocessing
import sys
import unittest
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import parl_remote
from parl_remote import RemoteFuture

WORKERS = 5  # as the suites have
_PROCESSES = "looks at processes that ProcessPoolExecutor starts and ends with each executor; ours are shared and kept"
_THREADS = "is about the threads of ThreadPoolExecutor, or passes what only threads share"
_CONTEXT = "chooses how multiprocessing starts processes, which is not how ours start"
_REPLACED = "expects a worker that ends to break the executor; ours is replaced and the call is run again"
_NAMED = "its script imports the executor by name from concurrent.futures; test_functions.py has one that does not"
_PICKLED = "expects the SystemExit that pickling a result raises; ours raises SerializationError, which names it"
_READ = "expects that a result that cannot be read breaks the executor; ours raises SerializationError, and goes on"
_TRACEBACK = "looks for a private class of ProcessPoolExecutor; ours is RemoteCallError, with the same text"

# By class and test, "*" for all tests of a class.
LEFT_OUT: dict[str, str] = {
    "ThreadPoolShutdownTest.*": _THREADS,
    "ThreadPoolWaitTests.*": _THREADS,
    "ThreadPoolExecutorTest.*": _THREADS,
    "ThreadPoolWaitTest.*": _THREADS,
    "ThreadPoolAsCompletedTest.*": _THREADS,
    "ProcessPoolShutdownTest.*": _PROCESSES,
    "ProcessPoolExecutorTest.test_saturation": _PROCESSES,
    "ProcessPoolExecutorTest.test_idle_process_reuse_one": _PROCESSES,
    "ProcessPoolExecutorTest.test_idle_process_reuse_multiple": _PROCESSES,
    "ProcessPoolExecutorTest.test_max_workers_too_large": "the limit of Windows on handles, which ours do not need",
    "ProcessPoolExecutorTest.test_max_tasks_per_child": _PROCESSES,
    "ProcessPoolExecutorTest.test_max_tasks_per_child_defaults_to_spawn_context": _CONTEXT,
    "ProcessPoolExecutorTest.test_max_tasks_early_shutdown": _PROCESSES,
    "ProcessPoolExecutorTest.test_python_finalization_error": _PROCESSES,
    "ProcessPoolExecutorTest.test_process_fork_from_a_threadpool": _CONTEXT,
    "ProcessPoolExecutorTest.test_force_shutdown_workers": _PROCESSES,
    "ProcessPoolExecutorTest.test_force_shutdown_workers_invalid_op": _PROCESSES,
    "ProcessPoolExecutorTest.test_force_shutdown_workers_stops_pool": _PROCESSES,
    "ProcessPoolExecutorTest.test_killed_child": _REPLACED,
    "ExecutorDeadlockTest.test_exit_during_result_pickle_on_worker": _PICKLED,
    "ExecutorDeadlockTest.test_error_at_task_unpickle": _READ,
    "ExecutorDeadlockTest.test_exit_at_task_unpickle": _READ,
    "ExecutorDeadlockTest.test_error_during_result_unpickle_in_result_handler": _READ,
    "ExecutorDeadlockTest.test_exit_during_result_unpickle_in_result_handler": _READ,
    "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": _PROCESSES,
    "ExecutorShutdownTest.test_interpreter_shutdown": _NAMED,
    "ExecutorShutdownTest.test_submit_after_interpreter_shutdown": _NAMED,
    "ExecutorShutdownTest.test_hang_gh83386": _NAMED,
    "ProcessPoolExecutorTest.test_traceback": _TRACEBACK,
}


class Executor(parl_remote.Executor):
    """Our executor with the arguments that the suite gives to every executor of processes."""

    def __init__(self, max_workers: int | None = None, *, mp_context: object = None, **others: Any) -> None:
        super().__init__(max_workers, **others)
        del mp_context
        if not others.get("initializer"):  # else a test that fails it would fail here
            self.submit(abs, 1).result()  # the suite expects that some call begins before it shuts the executor down


class Future(RemoteFuture[Any]):
    """A future that a test settles; its name is in texts that the suite expects."""

    def __init__(self) -> None:
        super().__init__(None)


@parl_remote.remote_class(wait=False)
class Runner:
    """Runs functions in an actor."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)


class ActorExecutor(concurrent.futures.Executor):
    """Submits to actors, so that its futures are those of their calls."""

    _runners: ClassVar[list[Any]] = []

    def __init__(self, max_workers: int = WORKERS) -> None:
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        while len(self._runners) < max_workers:
            self._runners.append(Runner())
        self._next = itertools.cycle(self._runners[:max_workers])
        self._futures: weakref.WeakSet[RemoteFuture[Any]] = weakref.WeakSet()
        self._shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self._shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = next(self._next).run(fn, args, kwargs)
        self._futures.add(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shut_down = True
        if cancel_futures:
            for future in list(self._futures):
                future.cancel()
        if wait:
            concurrent.futures.wait(self._futures)


def _suite_of_futures() -> list[ModuleType]:
    """Return the modules of the suite; it was one module up to Python 3.11."""
    package = importlib.import_module("test.test_concurrent_futures")
    if not hasattr(package, "__path__"):
        return [package]
    names = ("util", "executor", "test_wait", "test_as_completed", "test_init", "test_shutdown", "test_thread_pool",
             "test_process_pool", "test_deadlock", "test_future")  # fmt: skip
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def _put_futures_in(modules: list[ModuleType]) -> None:
    """Let the suite make our futures where it makes futures by hand."""
    base = concurrent.futures._base

    def create_future(state: str = base.PENDING, exception: Any = None, result: Any = None) -> Future:
        future = Future()
        future._state = state
        future._exception = exception
        future._result = result
        return future

    ready = {
        "PENDING_FUTURE": create_future(base.PENDING),
        "RUNNING_FUTURE": create_future(base.RUNNING),
        "CANCELLED_FUTURE": create_future(base.CANCELLED),
        "CANCELLED_AND_NOTIFIED_FUTURE": create_future(base.CANCELLED_AND_NOTIFIED),
        "EXCEPTION_FUTURE": create_future(base.FINISHED, exception=OSError()),
        "SUCCESSFUL_FUTURE": create_future(base.FINISHED, result=42),
        "create_future": create_future,
        "Future": Future,
        "BrokenProcessPool": concurrent.futures.BrokenExecutor,
    }
    for module in modules:
        for name, value in ready.items():
            if hasattr(module, name):
                setattr(module, name, value)


def _generic(modules: list[ModuleType]) -> dict[str, type]:
    """Return the classes of tests that executors are mixed into, by name."""
    names = ("ExecutorTest", "WaitTests", "WaitTest", "AsCompletedTests", "AsCompletedTest", "ExecutorShutdownTest",
             "InitializerMixin", "FailingInitializerMixin", "ProcessPoolExecutorTest", "ThreadPoolExecutorTest",
             "ThreadPoolShutdownTest", "ProcessPoolShutdownTest", "ExecutorDeadlockTest",
             "ThreadPoolWaitTests")  # fmt: skip
    return {name: getattr(module, name) for module in modules for name in names if hasattr(module, name)}


def _tests(report: dict[str, Any]) -> unittest.TestSuite:
    modules = _suite_of_futures()
    _put_futures_in(modules)
    everything: dict[str, Any] = {name: value for module in modules for name, value in vars(module).items()}
    generics = _generic(modules)
    suite = unittest.TestSuite()
    loader = unittest.TestLoader()

    def add(cls: type[unittest.TestCase], generic: str, against: str) -> None:
        for test in loader.getTestCaseNames(cls):
            first = next(base for base in cls.__mro__ if test in base.__dict__).__name__
            if first != generic and first in generics:
                continue  # it is run with the class that has it
            reason = next(
                (
                    text
                    for name, text in LEFT_OUT.items()
                    if name in {f"{generic}.*", f"{generic}.{test}"}
                    or (name.partition(".")[2] == test and "*" not in name)
                ),
                None,
            )
            if reason is None:
                suite.addTest(cls(test))
            else:
                report["left out"][f"{against}: {generic}.{test}"] = reason

    kinds = {"parl.Executor": Executor, "calls of actors": ActorExecutor}
    for against, kind in kinds.items():
        for name, cls in generics.items():
            if kind is ActorExecutor and name not in {"ExecutorTest", "WaitTests", "WaitTest", "AsCompletedTests",
                                                      "AsCompletedTest"}:  # fmt: skip
                continue
            mixin = type("Mixin", (everything["ExecutorMixin"],), {"executor_type": kind, "worker_count": WORKERS})
            bases = [base for base in (cls, mixin) if not (issubclass(cls, unittest.TestCase) and base is mixin)]
            if issubclass(cls, everything["ExecutorMixin"]) and mixin in bases:
                bases.remove(mixin)
            if not issubclass(cls, unittest.TestCase):
                bases.append(everything["BaseTestCase"])
            others = {"get_context": lambda _: multiprocessing}
            made = type(
                f"{name} against {against}", tuple(bases), {"executor_type": kind, "worker_count": WORKERS, **others}
            )
            add(made, name, against)
    add(everything["FutureTests"], "FutureTests", "a future settled by hand")
    return suite


def _tests_of_asyncio() -> unittest.TestSuite:
    suite = unittest.TestSuite()
    loader = unittest.TestLoader()
    futures = importlib.import_module("test.test_asyncio.test_futures")
    tasks = importlib.import_module("test.test_asyncio.test_tasks")
    for module, wanted in ((futures, "wrap_future"), (tasks, "threadsafe")):
        for name, cls in vars(module).items():
            if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ == module.__name__:
                for test in loader.getTestCaseNames(cls):
                    if wanted in test or (wanted == "threadsafe" and "Threadsafe" in name):
                        suite.addTest(cls(test))
    return suite


class _Result(unittest.TextTestResult):
    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802  # the name that unittest calls
        super().addSuccess(test)
        self.passed.append(test.id())


def main(path: str) -> int:
    """Run the suites and write the report."""
    parl_remote.connect(cpu_num=2 * WORKERS)
    with parl_remote.Executor(WORKERS) as executor:  # its threads are there before the first test counts threads
        list(executor.map(abs, range(100)))
    ActorExecutor(WORKERS).submit(abs, 1).result()
    report: dict[str, Any] = {"left out": {}, "run": 0, "passed": 0, "failed": [], "skipped": {}}
    _run(_tests(report), report)
    with mock.patch("concurrent.futures.Future", Future), mock.patch("concurrent.futures._base.Future", Future):
        _run(_tests_of_asyncio(), report)  # they and asyncio make futures of that name, and so do threads
    with open(path, "w") as file:
        json.dump(report, file, indent=1)
    parl_remote.disconnect()
    return int(bool(report["failed"]))


def _run(suite: unittest.TestSuite, report: dict[str, Any]) -> None:
    result: Any = unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)
    report["run"] += result.testsRun
    report["passed"] += len(result.passed)
    report["failed"] += [test.id() for test, _ in [*result.failures, *result.errors]]
    report["skipped"].update({test.id(): why for test, why in result.skipped})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
