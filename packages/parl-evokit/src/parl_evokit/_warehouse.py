"""A model warehouse: one directory for each model, numbered by the updates that it has seen.

warehouse/model_iter_id-N/     weights and solver of model N (the PARL 1.x manual's model_dir_N is read as well)
warehouse/orphans-*.evl        samples whose model was gone when they came
"""

import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from parl_core.atomic_write import atomic_write
from parl_evokit._directories import clear_leftovers, removed
from parl_evokit._records import Record
from parl_evokit._samples import Samples
from parl_evokit.errors import SolverError, StorageError
from parl_evokit.log._frames import Header, frame

__all__ = ["Warehouse"]

NAMES = re.compile(r"(?:model_iter_id-|model_dir_)(\d+)")


class Warehouse:
    """The models in a directory.

    Args:
        path: The directory; it need not exist.
        max_to_keep: See `expire`.
    """

    def __init__(self, path: str | os.PathLike[str], max_to_keep: int = 5) -> None:
        self.path = Path(path)
        self._max_to_keep = max_to_keep

    def models(self) -> dict[int, Path]:
        """Return the directories that are there, by their models' numbers, ascending.

        Raises:
            SolverError: Two directories have one number.
        """
        found: dict[int, Path] = {}
        if not self.path.is_dir():
            return found
        for path in sorted(self.path.iterdir()):
            match = NAMES.fullmatch(path.name)
            if match is None or not path.is_dir():
                continue
            number = int(match[1])
            if number in found:
                raise SolverError(f"{found[number]} and {path} both are model {number}: move one of them away")
            found[number] = path
        return dict(sorted(found.items()))

    def newest(self) -> tuple[int, Path] | None:
        """Return number and directory of the newest model; None while there is none."""
        models = self.models()
        return None if not models else (number := max(models), models[number])

    def directory_of(self, model_iter_id: int) -> Path:
        """Return where a model is, or will be."""
        return self.models().get(model_iter_id, self.path / f"model_iter_id-{model_iter_id}")

    def expire(self, needed: Collection[int] = ()) -> list[int]:
        """Remove the directories of all but the newest `max_to_keep` models, and of those that are needed still.

        To be called with the lock of the warehouse held; what killed writers left goes as well.

        Args:
            needed: Models to which unread samples refer.

        Returns:
            The models that are gone.
        """
        models = self.models()
        if not models:
            return []
        clear_leftovers(self.path)
        for path in self.path.glob(".orphans-*.evl.*.tmp"):
            path.unlink(missing_ok=True)
        oldest = max(models) - self._max_to_keep + 1
        gone = [number for number in models if number < oldest and number not in needed]
        for number in gone:
            removed(models[number])
        return gone

    def keep_orphans(self, samples: Samples) -> Path:
        """Write samples whose model is gone into a segment of their own; the same samples give the same file.

        Raises:
            StorageError: It cannot be written.
        """
        records = [
            Record(info, reward, count=count)
            for info, reward, count in zip(
                samples.infos(), samples.rewards.tolist(), samples.counts.tolist(), strict=True
            )
        ]
        frames = b"".join(sorted(frame(record.encode()) for record in records))
        name = hashlib.sha256(frames).hexdigest()[:32]
        header = frame(Header(name, 0).encode())
        path = self.path / f"orphans-{name[:12]}.evl"
        try:
            with atomic_write(path) as file:
                file.write(header + header + frames)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error
        return path
