"""Complete checkpoints in a folder: written under a temporary name, renamed, found again, and the oldest removed."""

import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parl_core import logger
from parl_core._version import __version__
from parl_core.checkpoint.tree import from_tree, to_tree
from parl_core.checks import check_int
from parl_core.errors import CheckpointError
from parl_core.replay.files import read_snapshot, write_snapshot
from parl_core.whole_file import sync

__all__ = ["AGENT_FILE", "VERSION", "Checkpoint", "CheckpointStore"]

VERSION = 1
"""Of the layout. A reader knows this one and all before it; it is raised when an older reader could not go on."""

AGENT_FILE = "agent.safetensors"
_FORMAT = "parl-checkpoint"
_MANIFEST, _STATE, _ARRAYS = "manifest.json", "state.json", "arrays.npz"
_COMPLETE = re.compile(r"\d{12}")
_TEMPORARY = ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint.

    Attributes:
        path: its folder.
        step: steps (or updates) that had been taken.
        state: what `CheckpointStore.write` was given.
        segments: names of the pieces of replay memory that belong to it.
        backend: whose agent it holds; empty where there is none.
    """

    path: Path
    step: int
    state: Any
    segments: tuple[str, ...]
    backend: str

    @property
    def agent(self) -> Path:
        """The file of the agent, which `agent.restore` of either backend reads."""
        return self.path / AGENT_FILE


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: where they are; made when the first one is written.
        keep: how many stay; at least 1. Of two, one is left when a disk spoils the other.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self._keep = check_int("keep", keep)

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, the oldest first."""
        return sorted(int(path.name) for path in self._complete())

    def needed_segments(self) -> set[str]:
        """Names of the pieces of replay memory that the checkpoints here belong with."""
        return {name for path in self._complete() for name in _manifest(path / _MANIFEST)["segments"]}

    def write(
        self,
        step: int,
        state: Any,
        *,
        save_agent: Callable[[Path], object] | None = None,
        backend: str = "",
        segments: Sequence[str] = (),
    ) -> Path:
        """Write a checkpoint, remove those that are too many, and return its folder.

        Args:
            step: its name; one that exists is replaced.
            state: see `parl_core.checkpoint.tree`.
            save_agent: writes the agent to the file that it is given.
            backend: of that agent.
            segments: pieces of replay memory that it needs; they are there already.

        Raises:
            OSError: it could not be written; the checkpoints before are untouched.
            CheckpointError: the state holds what a checkpoint cannot.
        """
        tree, arrays = to_tree(state)
        text = json.dumps(tree).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_unfinished()
        temporary = self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        final = self.folder / f"{step:012d}"
        try:
            temporary.mkdir()
            if save_agent is not None:
                save_agent(temporary / AGENT_FILE)
            write_snapshot(temporary / _ARRAYS, arrays)
            _write(temporary / _STATE, text)
            files = {path.name: _described(path) for path in sorted(temporary.iterdir())}
            manifest = {
                "format": _FORMAT,
                "version": VERSION,
                "written_by": f"parl-core {__version__}",
                "step": step,
                "backend": backend,
                "files": files,
                "segments": list(segments),
            }
            _write(temporary / _MANIFEST, json.dumps(manifest, indent=1).encode())
            sync(temporary)
            if final.exists():  # of a run that was continued from an older one
                self._discard(final)
            os.rename(temporary, final)
            sync(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for path in self._complete()[: -self._keep]:
            self._discard(path)
        return final

    def read(self, step: int) -> Checkpoint:
        """Read the checkpoint of a step.

        Raises:
            CheckpointError: there is none, it is damaged, or a newer PARL wrote it; the message names the file.
        """
        path = self.folder / f"{step:012d}"
        manifest = _manifest(path / _MANIFEST)
        for name, written in manifest["files"].items():
            found = _described(path / name)
            if found != written:
                raise CheckpointError(f"{path / name} is damaged: it is {found}, what was written is {written}")
        text = (path / _STATE).read_bytes()
        state = from_tree(json.loads(text), read_snapshot(path / _ARRAYS, set()))
        return Checkpoint(path, int(manifest["step"]), state, tuple(manifest["segments"]), str(manifest["backend"]))

    def read_latest(self, usable: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; None where there is none at all.

        One that a disk has spoiled gets another name, with a line in the log, and the one before it is taken.

        Args:
            usable: raises CheckpointError where something that belongs to a checkpoint is damaged.

        Raises:
            CheckpointError: none is whole, or a newer PARL wrote the newest one.
        """
        damage: CheckpointError | None = None
        for step in reversed(self.steps()):
            try:
                checkpoint = self.read(step)
                if usable is not None:
                    usable(checkpoint)
                return checkpoint
            except NewerCheckpoint:
                raise
            except CheckpointError as error:
                damage = damage or error
                path = self.folder / f"{step:012d}"
                aside = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
                os.rename(path, aside)
                logger.error("The checkpoint of step %d cannot be used and is now %s: %s", step, aside.name, error)
        if damage is not None:
            raise damage
        return None

    def _complete(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _COMPLETE.fullmatch(path.name))

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint, in one step for whoever looks for complete ones."""
        going = self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        os.rename(path, going)
        shutil.rmtree(going, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        for path in self.folder.glob(f"{_TEMPORARY}*"):  # of a program that was killed
            shutil.rmtree(path, ignore_errors=True)


class NewerCheckpoint(CheckpointError):
    """A newer PARL wrote it; going back to an older checkpoint in silence would lose work."""


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads(path.read_text())
        known = manifest["format"] == _FORMAT
        version = int(manifest["version"])
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a folder of a checkpoint has one") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not describe a checkpoint: {error}") from error
    if not known:
        raise CheckpointError(f"{path} describes something else than a checkpoint: {manifest['format']!r}")
    if version > VERSION:
        raise NewerCheckpoint(
            f"{path} has version {version}, written by {manifest.get('written_by')}; this is parl-core {__version__}, "
            f"which reads versions up to {VERSION}: pip install --upgrade parl-core"
        )
    return dict(manifest)


def _described(path: Path) -> Mapping[str, int] | None:
    """Size and checksum of a file; None where there is none."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    return {"bytes": len(content), "crc32": zlib.crc32(content)}


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
