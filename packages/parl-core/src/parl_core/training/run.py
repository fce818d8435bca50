"""The folder of one training run, which one program writes at a time, and the handling of interruptions.

runs/<name>-<date>-<time>/      made at first use, never one that exists

Ctrl-C cannot get lost: an interruption that was swallowed is raised again until it is noticed.

    SIGINT ──> KeyboardInterrupt ──> … ──> noticed()        the usual way
                     └─ swallowed ──(1 s)──> KeyboardInterrupt again
    SIGINT again ──> the process ends at once, by that signal, and cleans nothing up

Extension modules clear errors while they import others, and exceptions in callbacks of the garbage collector are only
printed; a `KeyboardInterrupt` that falls there is gone, and may leave a module half imported.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TextIO

from parl_core.errors import CheckpointError, HyperparameterError, RunExistsError, RunInUseError

__all__ = ["Interruption", "Run", "RunLock"]

# Unwinding to the place that notices takes less, so that no clean-up is disturbed; a person waits for it.
SECONDS_UNTIL_AGAIN = 1.0

# What a shell reports of a program that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED_EXIT_CODE = 130


class Interruption:
    """Handles Ctrl-C between `begin` and `end`, unless the program has its own handler.

    It is not in other threads than the main one, and not where the program has a handler of its own or ignores SIGINT.
    """

    def __init__(self) -> None:
        self.happened = False
        self._alarm_before: Any = None
        self._watching = False

    def begin(self) -> None:
        """Replace Python's own handler."""
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._watching = True
            self._alarm_before = signal.signal(signal.SIGALRM, self._raise)
            signal.signal(signal.SIGINT, self._pressed)

    def noticed(self) -> None:
        """Note that the interruption was noticed, so that it is not raised again."""
        if self._watching:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def end(self) -> None:
        """Restore the previous handlers."""
        if self._watching:
            self.noticed()
            self._watching = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, self._alarm_before)
            if self.happened:  # who presses again while the interpreter ends wants no traceback of its last callbacks
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if not self.happened:
            self._raise(number, frame)
        # A user who presses again does not want to wait for what cleans up. What is on disk is whole at any moment.
        os.write(2, b"\nInterrupted again: ended at once.\n")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    def _raise(self, number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG002  # what signal calls
        self.happened = True
        signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_AGAIN)
        raise KeyboardInterrupt


class RunLock:
    """A lock on a folder, which the system releases when the program ends; on Windows it does nothing."""

    def __init__(self) -> None:
        self._handle: int | None = None

    def take(self, folder: Path) -> None:
        """Lock the folder.

        Raises:
            RunInUseError: another program has it.
        """
        try:
            import fcntl
        except ImportError:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise RunInUseError(
                f"another program is writing into {folder}: wait for its end, or end it first "
                f"(`fuser {folder}` names its process)"
            ) from None
        self._handle = handle

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()


class Run:
    """One run's folder, as a context manager that turns Ctrl-C into a message about what was saved.

    Any other error that leaves the block gets the same as a note.

    Nothing that exists is overwritten or deleted: a name that is taken gets a number behind it.

    `Run.at` takes a folder of exactly that name, and `Run.resume` goes on in one that exists. While one program writes
    into a folder no other one can continue with it.

    Args:
        name: first part of the folder's name; no path separators.
        root: where the folders of all runs lie; `~` is the user's home.
        started: date and time in the name; default: now.
        out: where messages go; default: standard error.
    """

    def __init__(
        self,
        name: str,
        root: str | Path = "runs",
        *,
        started: datetime | None = None,
        out: TextIO | None = None,
    ) -> None:
        if not name or Path(name).name != name:
            raise HyperparameterError(f"the name of a run must be one part of a path, got {name!r}")
        self.name = name
        self._stem = Path(root).expanduser() / f"{name}-{(started or datetime.now()):%Y%m%d-%H%M%S}"
        self._path: Path | None = None
        self._exact = False
        self._out = out
        self._saved: dict[Path, str] = {}
        self._told = False
        self._interruption = Interruption()
        self._lock = RunLock()
        self.resumed = False
        self._how_to_resume = ""

    @classmethod
    def at(cls, folder: str | Path, *, out: TextIO | None = None) -> Self:
        """Return a new run in exactly this folder.

        Raises:
            RunExistsError: the folder is there already.
        """
        path = Path(folder).expanduser()
        run = cls(path.name, path.parent, out=out)
        run._stem, run._exact = path, True
        if path.exists():
            raise _exists(path)
        return run

    @classmethod
    def resume(cls, folder: str | Path, *, out: TextIO | None = None) -> Self:
        """Return a run that continues in the folder of an earlier one: `Checkpoints` restores it, tables are continued.

        Raises:
            CheckpointError: there is no such folder.
            RunInUseError: another program is writing there.
        """
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise CheckpointError(f"{path} is no folder of a run; `ls {path.parent}` shows what is there")
        run = cls(path.name or "run", path.parent, out=out)
        run._lock.take(path)
        run._path, run.resumed = path, True
        return run

    @property
    def path(self) -> Path:
        """The folder; made at first use."""
        if self._path is None:
            self._path = _make_exactly(self._stem) if self._exact else _make_new(self._stem)
            self._lock.take(self._path)
        return self._path

    def saved(self, path: Path, what: str) -> None:
        """Note that a file is complete, for the message after an interruption.

        Args:
            path: the file or folder.
            what: what it holds, such as `"agent with evaluated return 497.3"`; replaces an earlier note of the path.
        """
        self._saved[path] = what

    def save(
        self, agent: Any, name: str = "agent.ckpt", what: str = "trained agent", *, normalization: Any = None
    ) -> Path:
        """Save an agent in the folder, note it, and return the file's path.

        Args:
            agent: has `save(path)`.
            name: of the file.
            what: see `saved`.
            normalization: as in `parl.Agent.save`.
        """
        path = self.path / name
        agent.save(path, **({} if normalization is None else {"normalization": normalization}))
        self.saved(path, what)
        return path

    def inventory(self) -> str:
        """Return a list of the saved files, one line per file."""
        if not self._saved:
            return "Nothing was saved yet."
        return "\n".join(["Saved:", *(f"  {path}: {what}" for path, what in self._saved.items())])

    def tell_interrupted(self) -> None:
        """Print once what was saved, without delay, because a second signal may follow soon."""
        self._interruption.noticed()
        if self._told:
            return
        self._told = True
        print(f"\nInterrupted. {self.inventory()}", file=self._stream, flush=True)

    @property
    def how_to_resume(self) -> str:
        """Return the call that continues this run, for messages; `parl train` gives its own command."""
        return self._how_to_resume or f"Run.resume({str(self.path)!r})"

    @how_to_resume.setter
    def how_to_resume(self, command: str) -> None:
        self._how_to_resume = command

    def __enter__(self) -> Self:
        self._interruption.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interruption.end()
        self._lock.release()
        # After a swallowed interruption other errors follow from it, such as names that a module has not got yet.
        if isinstance(error, KeyboardInterrupt) or (self._interruption.happened and isinstance(error, Exception)):
            self.tell_interrupted()
            gc.freeze()  # else the interpreter's last collections walk over all of a framework, for a second
            raise SystemExit(INTERRUPTED_EXIT_CODE) from None
        if isinstance(error, Exception) and self._saved:
            error.add_note(self.inventory())

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._out is None else self._out


def _make_exactly(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
        return path
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: Path) -> RunExistsError:
    return RunExistsError(
        f"{path} exists, and nothing in it is overwritten. Go on with that run: parl resume {path} (in a program: "
        f"Run.resume({str(path)!r})), or choose another name"
    )


def _make_new(stem: Path) -> Path:
    number = 1
    while True:
        path = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            path.mkdir(parents=True)  # the test and the making in one step: two runs never share a folder
            return path
        except FileExistsError:
            number += 1
