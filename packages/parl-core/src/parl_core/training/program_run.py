"""The run of a program of one's own: its settings lie beside its checkpoints, so that `--resume RUN` goes on with it.

    settings = parse_settings(Settings)                    # --resume RUN: those of that run, and what is given besides
    with open_run("sac", settings) as run:                 # a new folder in settings.runs, or that of settings.resume
        train_off_policy(..., checkpoints=Checkpoints(run))

`parl train` has runs that describe themselves wholly: see `preset_run`.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, Self, TextIO

from parl_core.atomic_write import write_json
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.training.run import Run

__all__ = ["SETTINGS_FILE", "open_run", "read_settings"]

SETTINGS_FILE = "settings.json"
FORMAT, VERSION = "parl-settings", 1


def open_run(name: str, settings: Any, *, out: TextIO | None = None) -> Run:
    """A new run of a program, or the one that its settings say to resume; its settings are kept in `settings.json`.

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
    """The settings of a run that `open_run` made, by name, without `resume`.

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
