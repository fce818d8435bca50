"""The run of your own program: its settings are its command line, and are stored beside its checkpoints.

    @dataclass(frozen=True)
    class Settings:
        seed: Annotated[int, "of weights, environments and sampling"] = 0
        smoke: Annotated[bool, "a few updates only"] = False
        resume: Annotated[str, "continue with this run"] = ""

    settings = parse_settings(Settings)                    # --seed 3 --smoke; each field's text is its help
    with open_run("sac", settings) as run:                 # a new folder in settings.runs, or that of settings.resume
        train_off_policy(..., checkpoints=Checkpoints(run))

`--resume RUN` takes the settings of that run, which further flags change. `run_again` runs the program once more in a
fresh process, to see that what was saved is enough to go on. `parl train` has runs that describe themselves wholly: see
`parl_core.training.recipe_run`.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar, get_args, get_type_hints

from parl_core.atomic_write import write_json
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.training.run import Run

__all__ = ["SETTINGS_FILE", "open_run", "parse_settings", "read_settings", "run_again"]

SETTINGS_FILE = "settings.json"
"""Name of the file with a run's settings, in its folder."""
FORMAT, VERSION = "parl-settings", 1

Settings = TypeVar("Settings")


def open_run(name: str, settings: Any, *, out: TextIO | None = None) -> Run:
    """Return a new run of a program, or the one that its settings resume; `settings.json` in its folder has them.

    The settings are a dataclass as `parse_settings` makes it. Two of its fields are known here, and may be missing:
    `runs`, the folder in which every run gets a new one (default `"runs"`), and `resume`, the folder of the run to go
    on with (empty: none).

    Args:
        name: of the program: first part of the new folder's name.
        settings: numbers, texts and flags.
        out: where messages go; default: standard error.

    Raises:
        CheckpointError: there is no run of this program to resume.
        RunInUseError: another program is writing there.
        HyperparameterError: the name is no part of a path, or `settings` is no dataclass.
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
        CheckpointError: the folder is none of such a run.
    """
    return _read(Path(folder).expanduser())[1]


class _ProgramRun(Run):
    """Writes the settings when there is a folder for them."""

    def with_settings(self, settings: Any, name: str = "") -> Self:
        values = {key: value for key, value in dataclasses.asdict(settings).items() if key != "resume"}
        self._described = {"format": FORMAT, "version": VERSION, "program": name or self.name, "settings": values}
        self._resumable = hasattr(settings, "resume")
        if self._path is not None:
            self._describe(self._path)
        return self

    @property
    def path(self) -> Path:
        """The folder; made when it is asked for first, with the settings in it."""
        new = self._path is None
        path = super().path
        if new:
            self._describe(path)
        return path

    def _describe(self, path: Path) -> None:
        write_json(path / SETTINGS_FILE, self._described)
        if self._resumable:
            self.how_to_resume = f"python {os.path.relpath(sys.argv[0])} --resume {path}"


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
            f"{folder} is no folder of a run that can be resumed: it has no {SETTINGS_FILE}; `ls {folder.parent}` "
            "shows what is there"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} does not hold the settings of a run: {error}") from error


def parse_settings(
    settings: type[Settings], arguments: Sequence[str] | None = None, description: str | None = None
) -> Settings:
    """Build a settings object from the command line.

    Args:
        settings: a dataclass whose fields all have defaults and are annotated `Annotated[type, "help"]`, with type
            `int`, `float`, `str` or `bool`. A flag that is off by default is `--name`, one that is on `--no-name`.
        arguments: default: those of the program. `--env_num` is read as `--env-num`.
        description: shown by `--help`; default: the class's docstring.

    Raises:
        SystemExit: `--help` was asked for, or an argument is wrong; argparse has said what.
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
    """Run this program again, wait for its end, and return what it prints.

    Its standard error is shown. Ctrl-C ends it together with this program, which alone says so.

    Args:
        arguments: put behind those that this program was started with, such as `"--restore", path`.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # `python -m module` has one, `python file` has none
    program = [sys.argv[0]] if spec is None else ["-m", spec.name]
    command = [sys.executable, *program, *sys.argv[1:], *(os.fspath(argument) for argument in arguments)]
    process: subprocess.Popen[str] | None = None
    try:
        with _interruptions_wait():
            # In a process group of its own: the terminal's Ctrl-C reaches this process, which then kills the other one.
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
    """Hold Ctrl-C back: one that falls into the start of a process would leave that process to itself."""
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
