"""Training runs in separate processes, several at a time; none of them outlives this process.

run_all ── thread a slot ──> run.py --one GATE SEED      stdout: `progress 0.35`; stderr: kept, shown on failure
     └── once a second ──> Progress                      stdin: closes when we end, and so does the run
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from one_run import TAKEN

__all__ = ["Outcome", "Run", "run_all"]

SECONDS_TO_END = 10.0  # for a run that was asked to end; a training step and the interpreter's end take less


class Outcome(Enum):
    """The end of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TAKEN = "taken"  # claimed by another process
    STOPPED = "stopped"


@dataclass
class Run:
    """One run and its state.

    Attributes:
        gate: Key of the gate.
        backend: torch or paddle.
        seed: Seed of the run.
        outcome: The outcome so far.
        began: Time of its start, in seconds of `time.monotonic`.
        progress: Completed share of the run.
    """

    gate: str
    backend: str
    seed: int
    outcome: Outcome = Outcome.WAITING
    began: float = 0.0
    progress: float = 0.0
    process: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.gate}, {self.backend}, seed {self.seed}"


def run_all(
    runs: Sequence[Run],
    options: Sequence[str],
    jobs: int,
    changed: Callable[[Run], None],
    tick: Callable[[], None],
) -> None:
    """Run all, and set the outcome of each; runs in progress are ended when this function is left in any way.

    Args:
        runs: The runs, in the order in which they begin.
        options: Options of `run.py` for all of them.
        jobs: Number of parallel runs.
        changed: Callback for each run that begins or ends; called by the threads, one at a time.
        tick: Callback that is called once a second.
    """
    slots = _Slots(options, changed)
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = {pool.submit(slots.run, run) for run in runs}
        while waiting:
            over, waiting = wait(waiting, timeout=1.0)
            for future in over:
                future.result()
            tick()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        slots.stop(runs)
        pool.shutdown()


class _Slots:
    def __init__(self, options: Sequence[str], changed: Callable[[Run], None]) -> None:
        self._options, self._changed = list(options), changed
        self._lock = threading.Lock()  # held while runs are started or stopped, so that stopping finds all of them
        self._stopped = False

    def run(self, run: Run) -> None:
        command = [sys.executable, str(Path(__file__).with_name("run.py")), "--one", run.gate, str(run.seed)]
        # A separate working directory, because MuJoCo writes its log there.
        with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+") as errors:
            with self._lock:
                if self._stopped:
                    return
                # A separate process group: Ctrl-C in the terminal reaches only this process, which ends the run.
                process = run.process = subprocess.Popen(
                    [*command, "--backend", run.backend, "--until-stdin-closes", *self._options],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                    process_group=0,
                )
                run.outcome, run.began = Outcome.RUNNING, time.monotonic()
            with process:
                self._say(run)
                assert process.stdout is not None
                for line in process.stdout:
                    word, _, number = line.partition(" ")
                    if word == "progress":
                        run.progress = float(number)
                status = process.wait()  # before its standard input is closed, which would end the run
            run.outcome = {0: Outcome.DONE, TAKEN: Outcome.TAKEN}.get(status, Outcome.FAILED)
            if self._stopped and run.outcome is Outcome.FAILED:
                run.outcome = Outcome.STOPPED
            if run.outcome is Outcome.FAILED:
                errors.seek(0)
                sys.stderr.write(f"\n{run} ended with status {status}:\n{errors.read()}\n")
            self._say(run)

    def stop(self, runs: Sequence[Run]) -> None:
        with self._lock:
            self._stopped = True
        running = [run.process for run in runs if run.process is not None and run.process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_END
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()

    def _say(self, run: Run) -> None:
        with self._lock:
            self._changed(run)
