"""One library and one case in a separate process, which runs on request.

The process is separate because a library changes its process: parl-torch configures the C library to keep freed memory,
from which other libraries in the same process would benefit.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

__all__ = ["LIBRARIES", "Contender"]

LIBRARIES: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {
    "torch": {
        "ours": ("ours", "Parl", {}),
        "ours, compiled": ("ours", "Parl", {"compile": True}),
        "ours, bfloat16": ("ours", "Reduced", {}),
        "by hand": ("by_hand", "Floor", {}),
        "without autograd": ("by_hand", "WithoutAutograd", {}),
        "SB3": ("sb3", "StableBaselines3", {}),
        "PARL 2.2.1": ("parl2", "Parl2", {}),
    },
    "paddle": {
        "ours": ("ours", "Parl", {"backend": "paddle"}),
        "PARL 2.2.1": ("parl2_paddle", "Parl2", {}),
    },
}
"""Module, class and arguments of the class, by backend and name; its methods are the cases."""


class Contender:
    """A process that is prepared for a case.

    Args:
        backend: torch or paddle.
        library: Its name in `LIBRARIES`.
        case: A method of its class.
        threads: Number of threads of the arithmetic; with several, seconds are wall-clock time.
        device: `cpu` or `cuda`; on a GPU, seconds are wall-clock time until the last update is complete.

    Attributes:
        lacks: Reason why it cannot run; empty if the library has no such algorithm, None if it can.
    """

    def __init__(self, backend: str, library: str, case: str, threads: int, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, backend, library, case, threads, device))
        self._process.start()
        other_end.close()
        self.lacks: str | None = self._pipe.recv()

    def seconds(self, updates: int) -> float:
        """Return the seconds of a number of updates."""
        self._pipe.send(updates)
        took: float = self._pipe.recv()
        return took

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, backend: str, library: str, case: str, threads: int, device: str) -> None:
    module, name, options = LIBRARIES[backend][library]
    options = {**options, "device": device}
    # a spawned process has another default; PARL 2.2.1 requires this one
    multiprocessing.set_start_method("fork", force=True)
    try:
        _set_threads(backend, threads)
        make = getattr(getattr(import_module(module), name)(**options), case, None)
        run: Callable[[int], None] | None = None if make is None else make()
    except ModuleNotFoundError as missing:
        pipe.send(str(missing))
        return
    if run is None:
        pipe.send("")
        return
    pipe.send(None)
    clock = time.process_time if threads == 1 and device == "cpu" else time.perf_counter
    wait: Callable[[], None] = (lambda: None) if device == "cpu" else import_module("torch").cuda.synchronize
    while True:
        try:
            updates = pipe.recv()
        except EOFError:
            return
        began = clock()
        run(updates)
        wait()
        pipe.send(clock() - began)


def _set_threads(backend: str, threads: int) -> None:
    if backend == "torch":
        torch = import_module("torch")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
    elif os.environ.get("OMP_NUM_THREADS") != str(threads):
        raise SystemExit(f"paddle takes its threads from the environment: start this with OMP_NUM_THREADS={threads}")
