"""The folder of one training run, which one program writes at a time, its settings, and the handling of interruptions.

runs/<name>-<date>-<time>/      created at first use, never an existing one

Ctrl-C is never lost: a swallowed interruption is raised again until it is noticed.

    SIGINT ──> KeyboardInterrupt ──> … ──> noticed()        the usual way
     │               └─ swallowed ──(1 s)──> KeyboardInterrupt again
     └─ in a round of a loop with checkpoints ──> its end, a checkpoint, KeyboardInterrupt; after 10 s at the latest
    SIGINT again ──> the process ends at once, by that signal, without cleaning up

Extension modules clear errors while they import others, and exceptions in callbacks of the garbage collector are only
printed. A `KeyboardInterrupt` raised there would be lost, and may leave a module half imported.

The settings of your own program are its command line, and are stored in the folder of its run:

    @dataclass(frozen=True)
    class Settings:
        seed: Annotated[int, "of weights, environments and sampling"] = 0
        smoke: Annotated[bool, "a few updates only"] = False
        resume: Annotated[str, "continue with this run"] = ""

    settings = parse_settings(Settings)                    # --seed 3 --smoke; each field's text is its help
    with open_run("sac", settings) as run:                 # a new folder in settings.runs, or that of settings.resume
        train_off_policy(..., checkpoints=Checkpoints(run))

`--resume RUN` takes the settings of that run, which further flags change. `run_again` runs the program once more in a
fresh process, to check that the saved files are enough to continue. The runs of `parl train` contain their complete
description: see `parl_core.training._recipe_run`.
"""

import argparse
import atexit
import contextlib
import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from shlex import quote
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TextIO, TypeVar, get_args, get_type_hints

from parl_core.atomic_write import write_json
from parl_core.errors import CheckpointError, HyperparameterError, ParlError, RunExistsError, RunInUseError

__all__ = [
    "SETTINGS_FILE",
    "Interruption",
    "Run",
    "RunLock",
    "open_run",
    "parse_settings",
    "read_settings",
    "run_again",
]


# Unwinding to the place that notices takes less, so that no clean-up is disturbed; a person waits for it.
SECONDS_UNTIL_AGAIN = 1.0

# Most rounds of training take less, and users press Ctrl-C again if a checkpoint takes longer.
SECONDS_OF_A_ROUND = 10.0

# Exit status from a program that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED_EXIT_CODE = 130


class Interruption:
    """Handles Ctrl-C between `begin` and `end`, unless the program has its own handler.

    It does nothing in threads other than the main one, or if the program has its own handler or ignores SIGINT.
    """

    def __init__(self) -> None:
        self.happened = False
        self.waits_for_round = False
        """True if the loop checks at the end of each round for an interruption, and then ends."""
        self._alarm_before: Any = None
        self._watching = False

    def begin(self) -> None:
        """Replace Python's own handler."""
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._watching = True
            self._alarm_before = signal.signal(signal.SIGALRM, self._raise)
            signal.signal(signal.SIGINT, self._on_interrupt)

    def noticed(self) -> None:
        """Record that the interruption was noticed, so that it is not raised again."""
        if self._watching:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def end(self) -> None:
        """Restore the previous handlers."""
        if self._watching:
            self.noticed()
            self._watching = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, self._alarm_before)
            if self.happened:  # no traceback of the interpreter's last callbacks where it ends already
                atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.happened and self.waits_for_round:
            self.happened = True
            signal.setitimer(signal.ITIMER_REAL, SECONDS_OF_A_ROUND)
            os.write(2, b"\nInterrupted: ends with a checkpoint after this round; Ctrl-C again ends it at once.\n")
            return
        if not self.happened:
            self._raise(number, frame)
        # After a second Ctrl-C, the program does not clean up; files on disk are complete at any time.
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
            RunInUseError: Another program has locked it.
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
                f"(`fuser {quote(str(folder))}` names its process)"
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
    """The folder of a run, as a context manager that reports saved files after Ctrl-C.

    Any other error that leaves the block gets the message as a note.

    Existing files are not overwritten or deleted: if a name is taken, a number is appended.

    `Run.at` takes a folder of exactly that name, and `Run.resume` continues in an existing one. While a program writes
    into a folder, no other program can continue the run.

    Args:
        name: First part of the folder's name; no path separators.
        root: Folder of all runs; `~` is the user's home.
        started: Date and time in the name; default: now.
        out: Stream for messages; default: standard error.
    """

    def __init__(
        self,
        name: str,
        root: str | Path = "runs",
        *,
        started: datetime | None = None,
        out: TextIO | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise HyperparameterError(f"the name of a run must be one part of a path, got {name!r}")
        self.name = name
        self._stem = Path(root).expanduser() / f"{name}-{(started or datetime.now()):%Y%m%d-%H%M%S}"
        self._path: Path | None = None
        self._exact = False
        self._out = out
        self._saved: dict[Path, str] = {}
        self._is_announced = False
        self._interruption = Interruption()
        self._lock = RunLock()
        self.resumed = False
        self._how_to_resume = ""

    @classmethod
    def at(cls, folder: str | Path, *, out: TextIO | None = None) -> Self:
        """Return a new run in exactly this folder.

        Raises:
            RunExistsError: The folder exists already.
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
            CheckpointError: The folder does not exist.
            RunInUseError: Another program is writing there.
        """
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise CheckpointError(
                f"{path} is not a folder of a run; `ls {quote(str(path.parent))}` shows what is there"
            )
        run = cls(path.name or "run", path.parent, out=out)
        run._lock.take(path)
        run._path, run.resumed = path, True
        return run

    @property
    def path(self) -> Path:
        """The folder, which is created at first use."""
        if self._path is None:
            self._path = _make_exactly(self._stem) if self._exact else _make_new(self._stem)
            self._lock.take(self._path)
        return self._path

    def saved(self, path: Path, what: str) -> None:
        """Record that a file is complete, for the message after an interruption.

        Args:
            path: The file or folder.
            what: The content of the file or folder, such as `"agent with evaluated return 497.3"`; it replaces an
                earlier record of the path.
        """
        self._saved[path] = what

    def save(
        self, agent: Any, name: str = "agent.ckpt", what: str = "trained agent", *, normalization: Any = None
    ) -> Path:
        """Save an agent in the folder, record the file, and return its path.

        Args:
            agent: The agent, or another object with a method `save(path)`.
            name: The name of the file.
            what: See `saved`.
            normalization: As in `parl.Agent.save`.
        """
        path = self.path / name
        agent.save(path, **({} if normalization is None else {"normalization": normalization}))
        self.saved(path, what)
        return path

    @property
    def interruption(self) -> Interruption:
        """The state of Ctrl-C."""
        return self._interruption

    def inventory(self) -> str:
        """Return a list of the saved files, one line per file."""
        if not self._saved:
            return "Nothing was saved yet."
        return "\n".join(["Saved:", *(f"  {path}: {what}" for path, what in self._saved.items())])

    def tell_interrupted(self) -> None:
        """Print the saved files once, without delay, because a second signal may follow soon."""
        self._interruption.noticed()
        if self._is_announced:
            return
        self._is_announced = True
        print(f"\nInterrupted. {self.inventory()}", file=self._stream, flush=True)

    @property
    def how_to_resume(self) -> str:
        """Return the call that continues this run, for messages; `parl train` replaces it by its own command."""
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
            # Otherwise the interpreter's last garbage collections would traverse a whole framework for a second; a
            # program may continue.
            atexit.register(gc.freeze)
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
    except OSError as error:
        raise _not_made(path, error) from error


def _not_made(path: Path, error: OSError) -> ParlError:
    return ParlError(f"the folder {path} of the run cannot be made: {error.strerror or error}; choose another one")


def _exists(path: Path) -> RunExistsError:
    return RunExistsError(
        f"{path} exists, and nothing in it is overwritten. Continue that run: parl resume {quote(str(path))} (in a "
        f"program: Run.resume({str(path)!r})), or choose another name"
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
        except OSError as error:
            raise _not_made(path, error) from error


SETTINGS_FILE = "settings.json"
"""Name of the file with a run's settings, in its folder."""
FORMAT, VERSION = "parl-settings", 1

Settings = TypeVar("Settings")


def open_run(name: str, settings: Any, *, out: TextIO | None = None) -> Run:
    """Return a new run from a program, or the one that its settings resume; its `settings.json` has the settings.

    The settings are a dataclass as `parse_settings` makes it. Two optional fields have a meaning: `runs`, the folder in
    which every run creates its own folder (default `"runs"`), and `resume`, the folder of the run to continue (empty
    for a new run).

    Args:
        name: Name of the program: first part of the new folder's name.
        settings: Numbers, texts and flags.
        out: Stream for messages; default: standard error.

    Raises:
        CheckpointError: The folder contains no run of this program.
        RunInUseError: Another program is writing there.
        HyperparameterError: The name is not a part of a path, or `settings` is not a dataclass.
    """
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise HyperparameterError(f"the settings of a run must be a dataclass, got {settings!r}")
    folder = getattr(settings, "resume", "")
    if not folder:
        return _ProgramRun(name, getattr(settings, "runs", "runs"), out=out).with_settings(settings)
    described, _ = _read(Path(folder).expanduser())
    if described != name:
        raise CheckpointError(f"{folder} is a run of {described!r}, and this is {name!r}: resume it with that program")
    run = _ProgramRun.resume(folder, out=out)
    return run.with_settings(settings, name)


def read_settings(folder: str | Path) -> dict[str, Any]:
    """Return the settings of a run that `open_run` made, by name, without `resume`.

    Raises:
        CheckpointError: The folder does not belong to such a run.
    """
    return _read(Path(folder).expanduser())[1]


class _ProgramRun(Run):
    """Run from a program that writes its settings to its folder."""

    def with_settings(self, settings: Any, name: str = "") -> Self:
        values = {key: value for key, value in dataclasses.asdict(settings).items() if key != "resume"}
        self._described = {"format": FORMAT, "version": VERSION, "program": name or self.name, "settings": values}
        self._resumable = hasattr(settings, "resume")
        if self._path is not None:
            self._describe(self._path)
        return self

    @property
    def path(self) -> Path:
        """The folder, which is created at first use with the settings in it."""
        new = self._path is None
        path = super().path
        if new:
            self._describe(path)
        return path

    def _describe(self, path: Path) -> None:
        write_json(path / SETTINGS_FILE, self._described)
        if self._resumable:
            self.how_to_resume = f"python {quote(os.path.relpath(sys.argv[0]))} --resume {quote(str(path))}"


def _read(folder: Path) -> tuple[str, dict[str, Any]]:
    path = folder / SETTINGS_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        if found["version"] > VERSION:
            raise ValueError(
                f"it has version {found['version']}; this reads {VERSION}: pip install --upgrade parl-core"
            )
        return str(found["program"]), dict(found["settings"])
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{folder} is not a folder of a run that can be resumed: it has no {SETTINGS_FILE}; "
            f"`ls {quote(str(folder.parent))}` shows what is there"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} does not hold the settings of a run: {error}") from error


def parse_settings(
    settings: type[Settings], arguments: Sequence[str] | None = None, description: str | None = None
) -> Settings:
    """Build a settings object from the command line.

    Args:
        settings: A dataclass whose fields all have defaults and are annotated `Annotated[type, "help"]`, with type
            `int`, `float`, `str` or `bool`. A flag that is off by default is `--name`, one that is on `--no-name`.
        arguments: The arguments to parse; default: those of the program. `--env_num` is read as `--env-num`.
        description: The description shown by `--help`; default: the class's docstring.

    Raises:
        SystemExit: `--help` was given, or an argument is wrong; argparse has printed the reason.
    """
    parser = argparse.ArgumentParser(
        description=description or settings.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    hints = get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]  # a TypeVar cannot say "a dataclass"
        kind, text = _annotation(field.name, hints[field.name])
        flag = f"--{field.name.replace('_', '-')}"
        options: dict[str, Any] = {"dest": field.name, "default": field.default, "help": text}
        if kind is bool:
            action = argparse.BooleanOptionalAction if field.default else "store_true"
            parser.add_argument(flag, action=action, **options)
        else:
            parser.add_argument(flag, type=kind, metavar=kind.__name__.upper(), **options)
    given = [_with_dashes(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    found = parser.parse_args(given)
    if getattr(found, "resume", ""):
        parser.set_defaults(**_resumed(parser, found))
        found = parser.parse_args(given)
    return settings(**vars(found))


def _with_dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def _resumed(parser: argparse.ArgumentParser, found: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run to resume, which then stand for the defaults."""
    try:
        saved = read_settings(found.resume)
    except CheckpointError as error:
        parser.error(str(error))
    if unknown := sorted(saved.keys() - vars(found).keys()):
        parser.error(f"{found.resume} is a run of another program or version: it has the settings {', '.join(unknown)}")
    return saved


def _annotation(name: str, hint: Any) -> tuple[type, str]:
    kind, *texts = get_args(hint) or (hint,)
    if kind not in (int, float, str, bool) or len(texts) != 1 or not isinstance(texts[0], str):
        raise HyperparameterError(
            f'the setting {name!r} must be annotated Annotated[int | float | str | bool, "help"], got {hint}'
        )
    return kind, texts[0].replace("%", "%%")


def run_again(*arguments: str | os.PathLike[str]) -> str:
    """Run this program again, wait for its end, and return its output.

    Its standard error is shown. Ctrl-C ends both programs, and only this one reports it.

    Args:
        arguments: Arguments appended to those of this program, such as `"--restore", path`.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # `python -m module` has a spec, `python file` does not
    program = [sys.argv[0]] if spec is None else ["-m", spec.name]
    command = [sys.executable, *program, *sys.argv[1:], *(os.fspath(argument) for argument in arguments)]
    process: subprocess.Popen[str] | None = None
    try:
        with _interruptions_wait():
            # In a separate process group: the terminal's Ctrl-C reaches this process, which then kills the other one.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
            )
        printed, _ = process.communicate()
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed)
    return printed


@contextlib.contextmanager
def _interruptions_wait() -> Iterator[None]:
    """Delay Ctrl-C, which would leave a process behind if it interrupted its start."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
