"""`AsyncESAgent`: many services sample models of different ages, which are stored in one warehouse.

    warehouse: model_iter_id-0 … model_iter_id-N ──► clones sample the newest, or one of the others still online
                       ▲                                       │ records, rewards; late, of any N
                       └── update: N+1 ◄───────────────────────┘
                               └─► orphans-*.evl: samples of models that were removed

The record of the samples that `update` used is saved with model N+1 in one step; if that fails, the agent returns to
model N. Several processes may update one warehouse: they take turns, and each begins with the newest model.

    warehouse/model_iter_id-N/     weights and solver of model N (the PARL 1.x manual's model_dir_N is read as well)
    warehouse/orphans-*.evl        samples whose model had been removed when their rewards arrived
"""

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.atomic_write import atomic_write
from parl_evokit import _solver_dir
from parl_evokit._directories import clear_leftovers, path_of, read_unchanged, removed, update_lock
from parl_evokit._records import Record, SamplingInfo
from parl_evokit._report import SetAsideCounts, UpdateReport
from parl_evokit._sampler import Sampler
from parl_evokit._samples import Samples, distinct
from parl_evokit._sampling_agent import SamplerSource
from parl_evokit._solver_dir import read_history, read_summary
from parl_evokit.agent import ESAgent, Source
from parl_evokit.errors import EvolutionError, LogError, NothingToUpdate, SolverError, StorageError
from parl_evokit.log import LogContents, read_log
from parl_evokit.log._frames import Header, frame
from parl_evokit.models._find import adapt
from parl_evokit.noise._keys import KeySource
from parl_evokit.strategy import Strategy

__all__ = ["AsyncESAgent", "Warehouse"]

NAMES = re.compile(r"(?:model_iter_id-|model_dir_)(\d+)")


class Warehouse:
    """The models in a directory.

    Args:
        path: The directory; it need not exist.
        max_to_keep: See `expire`.
    """

    def __init__(self, path: str | os.PathLike[str], max_to_keep: int = 5) -> None:
        self.path = path_of(path, SolverError)
        self._max_to_keep = max_to_keep

    def models(self) -> dict[int, Path]:
        """Return the existing directories, by their models' numbers, ascending.

        Raises:
            SolverError: Two directories have one number.
            StorageError: The directory cannot be read.
        """
        found: dict[int, Path] = {}
        try:
            for path in sorted(self.path.iterdir()):
                match = NAMES.fullmatch(path.name)
                if match is None or not path.is_dir():
                    continue
                number = int(match[1])
                if number in found:
                    raise SolverError(f"{found[number]} and {path} both are model {number}: move one of them away")
                found[number] = path
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error}") from error
        return dict(sorted(found.items()))

    def newest(self) -> tuple[int, Path] | None:
        """Return the number and the directory of the newest model; None without models."""
        models = self.models()
        return None if not models else (number := max(models), models[number])

    def directory_of(self, model_iter_id: int) -> Path:
        """Return the directory of a model, which need not exist yet."""
        return self.models().get(model_iter_id, self.path / f"model_iter_id-{model_iter_id}")

    def expire(self, needed: Collection[int] = ()) -> list[int]:
        """Remove the directories of all models except the newest `max_to_keep` and those that are still needed.

        Call it with the lock of the warehouse held; it also removes the remains of killed writers.

        Args:
            needed: Models to which unread samples refer.

        Returns:
            The numbers of the removed models.
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
        """Write samples whose model was removed into a separate segment; equal samples give equal files.

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


Logs = str | PathLike[str] | Iterable[str | PathLike[str]]


class AsyncESAgent(ESAgent):
    """An agent whose models are stored in a warehouse (`async_es.model_warehouse` of the configuration).

    It starts from the newest model of the warehouse, or, if that is empty, from `model`, which gets the number
    `async_es.model_iter_id`. The configuration file is only read.

    Args:
        model: As for `ESAgent.load_inference_model`, or a directory with the initial weights of a model that needs no
            code (see there). Weights of the warehouse replace those of the model.
        config: As for `ESAgent.load_config`.
        logs: Logs whose unread samples keep their models from expiring; logs that `update_from_log` reads are added.
        wait_s: Maximum time to wait for another process that updates the warehouse, in seconds.

    Raises:
        ConfigError: See `Config.load`.
        EvolutionError: `model` cannot be adapted.
        SolverError: The directory of the newest model is damaged, cannot be read, or is of another model.
        StorageError: The warehouse cannot be read.
        UpdateLocked: The warehouse is empty or has no solver, and another process is writing the first model.
    """

    def __init__(self, model: Any, config: Source, *, logs: Logs = (), wait_s: float = 60.0) -> None:
        super().__init__()
        self.load_config(config)
        if isinstance(model, str | PathLike):
            self.load_inference_model(model)
        else:
            self._model = adapt(model)
        assert self._config is not None
        settings = self._config.async_es
        self.warehouse = Warehouse(settings.model_warehouse, settings.max_to_keep)
        self._first_number = settings.model_iter_id
        self._wait_s = wait_s
        self._logs = dict.fromkeys(_paths(logs))
        self._writing = threading.Lock()
        if not (self._has_solver(self.warehouse.newest()) and self._take_newest()):
            with update_lock(self.warehouse.path, wait_s):
                self._open()

    def refresh(self) -> bool:
        """Load the newest model of the warehouse; clones follow at their next `add_noise`.

        Returns:
            True if there was a newer model.

        Raises:
            SolverError: The directory of that model is damaged, cannot be read, or is of another model.
            StorageError: The warehouse cannot be read.
        """
        return self._take_newest(self.model_iter_id)

    @staticmethod
    def _has_solver(newest: tuple[int, Path] | None) -> bool:
        return newest is not None and os.path.lexists(newest[1] / _solver_dir.SUMMARY)

    def _take_newest(self, present: int = -1) -> bool:
        """Load the newest model if its number is above the present one's; return whether there was one."""
        while (newest := self.warehouse.newest()) is not None and newest[0] > present:
            try:
                self._take_up(*newest)
            except SolverError:
                if os.path.lexists(newest[1]):
                    raise  # otherwise it has expired, so that there is a newer one
            else:
                return True
        return False

    def update(self, infos: Iterable[SamplingInfo], rewards: Sequence[float] | NDArray[np.floating]) -> UpdateReport:
        """Update the newest model with samples of any model in the warehouse, and save the next model.

        Args:
            infos: As for `ESAgent.update`; samples whose model was removed are written to `orphans-*.evl`.
            rewards: As for `ESAgent.update`.

        Returns:
            The report of the update; `set_aside.orphan` counts the samples whose model was removed.

        Raises:
            NothingToUpdate: Too few samples could be used; nothing has changed.
            InvalidReward: Infos and rewards differ in number.
            UpdateLocked: Another process has been updating the warehouse for longer than `wait_s`.
            StorageError: The new model cannot be written; the agent keeps the previous one.
        """
        samples = list(infos)
        with self._transaction():
            return super().update(samples, rewards)

    def update_from_log(self, paths: Logs, *, max_damage: float = 0.01) -> tuple[UpdateReport, LogContents]:
        """Update from the new records of logs; see `update` and `ESAgent.update_from_log`."""
        logs = _paths(paths)
        with self._transaction():
            result = super().update_from_log(logs, max_damage=max_damage)
            self._logs.update(dict.fromkeys(logs))
            return result

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Hold the warehouse's lock from the newest model to the next one's save; go back if that fails."""
        with self._writing, update_lock(self.warehouse.path, self._wait_s):
            try:
                self.refresh()
                restore = self._restorer()
            except OSError as error:
                raise StorageError(f"{self.warehouse.path} cannot be read: {error}") from error
            try:
                yield
                self.save(self.warehouse.path / f"model_iter_id-{self.model_iter_id}")
            except BaseException as error:
                restore()
                if isinstance(error, OSError):
                    raise StorageError(f"{self.warehouse.path} cannot be updated: {error}") from error
                raise
            with contextlib.suppress(OSError, EvolutionError):  # the next update will clear away
                self.warehouse.expire(self._needed())

    def _restorer(self) -> Callable[[], None]:
        """Return a function that restores the agent's present state, without reading a file."""
        strategy, _ = self._ready("update")
        back, progress, history, versions = strategy.snapshot(), self._progress, list(self._history), {**self._versions}

        def restore() -> None:
            back()
            self._progress, self._history, self._versions = progress, history, versions
            self._to_quarantine = []
            self._bind()

        return restore

    def _tell(
        self, samples: Samples, aside: SetAsideCounts, last: Samples | None = None, lost: int = 0, **of_log: Any
    ) -> UpdateReport:
        last = Samples.of([], []) if last is None else last
        gone, last_gone = self._removed(samples), self._removed(last)
        self._gone = distinct(np.concatenate([samples.models[gone], last.models[last_gone]]))
        orphans = int(np.count_nonzero(gone))
        if not self._gone:
            return super()._tell(samples, aside, last, lost, **of_log)
        aside.orphan += orphans
        lost += int(np.count_nonzero(last_gone))
        try:
            report = super()._tell(samples.where(~gone), aside, last.where(~last_gone), lost, **of_log)
        except NothingToUpdate as error:
            if not orphans:
                raise
            raise NothingToUpdate(
                f"{error}; {orphans} samples are of models that were removed", error.report
            ) from error
        kept = samples.where(gone)
        if report.set_aside.orphan > aside.orphan:
            kept = Samples.concatenated([kept, last.where(last_gone)])
        if len(kept):
            self.warehouse.keep_orphans(kept)
        return report

    def _removed(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask of the samples whose model was removed, `[n]`."""
        there = np.array([*self.warehouse.models(), self.model_iter_id], np.int64)
        recordable = samples.models >> 31 == 0  # other numbers are no models, but mistakes
        removed: NDArray[np.bool_] = self._own(samples) & recordable & ~np.isin(samples.models, there)
        return removed

    def _needed(self) -> set[int]:
        """Return the models to which samples refer that have not been used yet; all, where the log cannot be read."""
        logs = [log for log in self._logs if log.exists()]
        waiting = self._progress.waiting
        try:
            unread = read_log(logs, self._progress.ledger, max_damage=1.0, waiting=waiting)
        except LogError:
            return set(self.warehouse.models())
        return {*np.unique(unread.samples.models).tolist(), *np.unique(unread.waiting.models).tolist()}

    def _open(self) -> None:
        newest = self.warehouse.newest()
        if self._has_solver(newest) and self._take_newest():
            return
        if newest is not None:  # weights only, as the first model of the PARL 1.x manual
            self.load_inference_model(newest[1])
        self.init_solver()
        number = self._first_number if newest is None else newest[0]
        strategy, _ = self._ready("AsyncESAgent")
        strategy.number_from(number)
        self.save(self.warehouse.directory_of(number))

    def _take_up(self, number: int, directory: Path) -> None:
        """Load a model and its solver atomically."""
        strategy, progress, lines = read_unchanged(directory, lambda: self._loaded(directory))
        found = strategy.sampler.model_iter_id
        if found != number:
            raise SolverError(f"{directory} holds model {found}, not {number} as its name says")
        if self._strategy is not None:
            strategy.keys = self._strategy.keys
            strategy.keys.start_pair()
        self._strategy, self._progress, self._history = strategy, progress, lines
        self._bind()

    def _loaded(self, directory: Path) -> tuple[Strategy, _solver_dir.Progress, list[str]]:
        model = self._having_model("AsyncESAgent").clone()
        model.load(directory)
        strategy = self._strategy_for(model)
        progress = _solver_dir.read(directory, strategy)
        # completely, so that buffers that do not evolve come from the files
        self._having_model("AsyncESAgent").load(directory)
        return strategy, progress, read_history(directory, read_summary(directory))

    def _source(self) -> SamplerSource:
        return _CurrentSolver(self)


class _CurrentSolver:
    """The `SamplerSource` of clones whose agent loads new solvers."""

    def __init__(self, agent: AsyncESAgent) -> None:
        self._agent = agent

    @property
    def sampler(self) -> Sampler:
        """The present model."""
        return self._agent._ready("clone")[0].sampler

    @property
    def keys(self) -> KeySource:
        """The source of samples' keys."""
        return self._agent._ready("clone")[0].keys

    @property
    def takes_stale_samples(self) -> bool:
        """True if samples of older models can be used."""
        return self._agent._ready("clone")[0].takes_stale_samples


def _paths(logs: Logs) -> list[Path]:
    return [path_of(log, LogError) for log in ([logs] if isinstance(logs, str | PathLike) else logs)]
