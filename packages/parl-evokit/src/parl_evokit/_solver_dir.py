"""A model directory beside its weights: the state of the solver, and the history of its updates.

    solver.json    format, package version, configuration, model_iter_id, ledger, the name of a built-in model,
                   SHA-256 of the parameters and of the other files, number and digest of the history's lines
    solver.npz     float32 and int64 arrays: the optimizer's moments, counters
    waiting.npz    samples that were served and have no reward yet, where there are any
    used-N.npy     keys of the samples that update N has used, as long as a reward for them could come again
    history.jsonl  one line for each update, each with the digest of the line before it:
                   {"model_iter_id": 7, "used": 20, ..., "parameters_sha256": "...", "previous": SHA-256 of the last}

All are data only; nothing in them is executed or names code. A line of the history that is changed or taken out later
does not fit the next one's `previous`, nor the newest line the digest in `solver.json`, and the file is refused;
without the file a new history begins. There is no time of day in it, because the same update of the same log has to
give the same bytes; a directory's own time says when.

A reward that comes again finds its sample among the used ones, and changes nothing:

    update N ─► used-N.npy: keys, sorted within each model ─► a link in later directories, until its models are too old

A sample is forgotten together with its model's `max_age`: from then on its rewards are set aside as too old. Keys of
the present model need not be looked for, since no earlier update can have had them. So what is held is mapped from
files, and an update costs nothing but the look-up of its stale samples.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import read_arrays, write_arrays
from parl_evokit._report import UpdateReport, vector_digest
from parl_evokit._samples import NO_KEY, Samples, distinct
from parl_evokit._version import __version__
from parl_evokit.errors import LayoutMismatch, SolverError
from parl_evokit.noise._keys import CONTROL_KEY
from parl_evokit.strategy import Strategy

__all__ = [
    "HISTORY",
    "Progress",
    "UsedSamples",
    "check_history",
    "history_line",
    "read",
    "read_history",
    "read_summary",
    "version",
    "write",
]

FORMAT = 2
READABLE = (1, FORMAT)  # 1 has no used samples
SUMMARY = "solver.json"
ARRAYS = "solver.npz"
WAITING = "waiting.npz"
COLUMNS = ("keys", "models", "fingerprints")
TIMES = "times"
HISTORY = "history.jsonl"
_REMEDY = "take it from a copy, or move it away to continue with a new history"
_KEPT = 10_000  # lines of some 400 bytes; all are written anew at each save


@dataclass(frozen=True, eq=False)
class _Batch:
    """The samples that one update has used.

    Attributes:
        update: The number of the model that it made.
        ranges: {model: (first row, row after the last)}.
        keys: Ascending within each model.
    """

    update: int
    ranges: Mapping[int, tuple[int, int]]
    keys: NDArray[np.uint64]

    @property
    def name(self) -> str:
        return f"used-{self.update}.npy"


class UsedSamples:
    """The samples that updates have used, as far back as their models may still be rewarded; immutable.

    Args:
        batches: Of the updates.
    """

    def __init__(self, batches: Iterable[_Batch] = ()) -> None:
        self._batches = tuple(batches)

    def __len__(self) -> int:
        return sum(stop - start for batch in self._batches for start, stop in batch.ranges.values())

    def has(self, samples: Samples) -> NDArray[np.bool_]:
        """Return which of these samples have been used, `[n]`."""
        found = np.zeros(len(samples), np.bool_)
        if not self._batches:
            return found
        for model in distinct(samples.models):
            rows = np.flatnonzero(samples.models == model)
            keys = samples.keys[rows]
            for batch in self._batches:
                if model not in batch.ranges:
                    continue
                known = batch.keys[slice(*batch.ranges[model])]
                places = np.searchsorted(known, keys)
                places[places == len(known)] = 0
                found[rows] |= known[places] == keys
        return found

    def adding(
        self, keys: NDArray[np.uint64], models: NDArray[np.int64], update: int, oldest: int, trusted: int | None = None
    ) -> "UsedSamples":
        """Return these and those that an update has used.

        Args:
            keys: Of what it has used; those that cannot be told apart are left out.
            models: Of each.
            update: The number of the model that it made.
            oldest: Models before this one are forgotten.
            trusted: But not this one.
        """
        kept = [
            batch
            for batch in self._batches
            if (max(batch.ranges) >= oldest or trusted in batch.ranges) and batch.update != update
        ]
        rows = (keys != CONTROL_KEY) & (keys != NO_KEY) & ((models >= oldest) | (models == trusted))
        if not rows.all():
            keys, models = keys[rows], models[rows]
        ranges: dict[int, tuple[int, int]] = {}
        parts: list[NDArray[np.uint64]] = []
        size = 0
        for model in distinct(models):
            part = np.sort(keys[models == model])
            part = part[np.append(True, part[1:] != part[:-1])]
            parts.append(part)
            ranges[model] = (size, size + len(part))
            size += len(part)
        if parts:
            kept.append(_Batch(update, ranges, np.concatenate(parts)))
        return UsedSamples(kept)

    def write(self, directory: Path) -> dict[str, dict[str, list[int]]]:
        """Write into a directory what is not there yet, and remove what is forgotten.

        Returns:
            For `read`: the ranges of each file.
        """
        names = {batch.name for batch in self._batches}
        for path in directory.glob("used-*.npy"):
            if path.name not in names:
                path.unlink()
        for batch in self._batches:
            path = directory / batch.name
            if not path.exists() or path.stat().st_size != _size(batch.keys):
                path.unlink(missing_ok=True)
                with path.open("xb") as file:
                    np.save(file, batch.keys, allow_pickle=False)
        return {batch.name: {str(model): list(rows) for model, rows in batch.ranges.items()} for batch in self._batches}

    @classmethod
    def read(cls, directory: Path, ranges: Mapping[str, Mapping[str, Any]]) -> "UsedSamples":
        """Return what `write` wrote.

        Raises:
            SolverError: A file is missing, or not what `ranges` says.
        """
        batches = []
        for name, models in ranges.items():
            path = directory / name
            try:
                keys = np.load(path, mmap_mode="r", allow_pickle=False)
                rows = {int(model): (int(first), int(last)) for model, (first, last) in models.items()}
                update = int(name.removeprefix("used-").removesuffix(".npy"))
            except (OSError, ValueError) as error:
                raise SolverError(f"{path} cannot be read: {error}") from error
            if keys.dtype != np.uint64 or not rows or max(last for _, last in rows.values()) != len(keys):
                raise SolverError(f"{path} does not hold the keys of {dict(models)}")
            batches.append(_Batch(update, rows, keys))
        return cls(batches)


def _size(keys: NDArray[np.uint64]) -> int:
    """Return the size of numpy's file of these keys: a header of 128 bytes and the numbers."""
    return 128 + keys.nbytes


@dataclass(frozen=True)
class Progress:
    """The progress of reading logs.

    Attributes:
        ledger: Which segments, up to which byte.
        waiting: Samples that were served and have no reward yet.
        used: Samples that updates have used.
        missing: Segments of the ledger that the last update has not seen, and the model that was present when one last
            did; they are forgotten once all of their models are too old.
        now_us: The time up to which records have been read, in microseconds since 1970; 0 where they have none.
        since_us: From when on the samples that the last update read first have waited, whatever earlier time their
            records have; 0: from that time.
    """

    ledger: Mapping[str, int] = field(default_factory=dict)
    waiting: Samples = field(default_factory=lambda: Samples.of([], []))
    used: UsedSamples = field(default_factory=UsedSamples)
    missing: Mapping[str, int] = field(default_factory=dict)
    now_us: int = 0
    since_us: int = 0


def write(
    directory: Path,
    strategy: Strategy,
    progress: Progress | None = None,
    model: str | None = None,
    history: Sequence[str] = (),
) -> None:
    """Write the state of `strategy` into an existing directory that no one reads yet (see `directories.replacing`).

    Args:
        directory: Where.
        strategy: Whose state.
        progress: The progress of reading logs.
        model: Name of a built-in model (see `built_in`), if it is one.
        history: One line for each update; of very long ones only the newest are kept.
    """
    progress, history = progress or Progress(), history[-_KEPT:]
    (directory / HISTORY).unlink(missing_ok=True)  # it may be a link to the file of the directory being replaced
    (directory / HISTORY).write_text("".join(f"{line}\n" for line in history), encoding="utf-8")
    write_arrays(directory / ARRAYS, strategy.state())
    (directory / WAITING).unlink(missing_ok=True)
    if len(progress.waiting):
        columns = vars(progress.waiting.joined())
        write_arrays(directory / WAITING, {name: columns[name] for name in (*COLUMNS, TIMES)})
    used = progress.used.write(directory)
    names = [name for name in (ARRAYS, WAITING, *used) if (directory / name).exists()]
    (directory / SUMMARY).unlink(missing_ok=True)  # it may be a link to the file of the directory being replaced
    summary = {
        "format": FORMAT,
        "parl_evokit": __version__,
        "model_iter_id": strategy.sampler.model_iter_id,
        "fingerprint": strategy.sampler.fingerprint,
        "parameters_sha256": vector_digest(strategy.mean),
        "config": strategy.config.to_prototxt(),
        "model": model,
        "ledger": dict(progress.ledger),
        "missing": dict(progress.missing),
        "used": used,
        "now_us": progress.now_us,
        "since_us": progress.since_us,
        "history": _summary_of(history),
        "files": {name: _digest(directory / name) for name in names},
    }
    summary["checksum"] = _checksum(summary)
    (directory / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def read(directory: Path, strategy: Strategy) -> Progress:
    """Load into `strategy`, which must hold the model's parameters already, what `write` wrote.

    Returns:
        The progress of reading logs.

    Raises:
        SolverError: A file is missing, damaged, of another version, or does not belong to the model.
    """
    summary = read_summary(directory)
    for name, wanted in summary["files"].items():
        file = directory / name
        found = _digest(file) if file.is_file() else "missing"
        if found != wanted:
            raise SolverError(f"{file} is not the file that {SUMMARY} describes: SHA-256 {found}, not {wanted}")
    sampler = strategy.sampler
    if summary["fingerprint"] != sampler.fingerprint:
        raise SolverError(
            f"{directory}: the solver is for another model, noise seed or table "
            f"(fingerprint {summary['fingerprint']:#010x}, here {sampler.fingerprint:#010x})"
        )
    if summary["parameters_sha256"] != vector_digest(strategy.mean):
        raise SolverError(
            f"{directory}: the solver belongs to other weights than the model has; load those of the same directory"
        )
    path = directory / ARRAYS
    try:
        strategy.load_state(read_arrays(path))
    except LayoutMismatch as error:
        raise SolverError(f"{path} does not fit the solver: {error}") from error
    ledger = {str(segment): int(offset) for segment, offset in summary["ledger"].items()}
    return Progress(
        ledger,
        _waiting(directory / WAITING if WAITING in summary["files"] else None),
        UsedSamples.read(directory, summary.get("used", {})),
        {str(segment): int(model) for segment, model in summary.get("missing", {}).items()},
        int(summary.get("now_us", 0)),
        int(summary.get("since_us", 0)),
    )


def read_summary(directory: Path) -> dict[str, Any]:
    """Return what `solver.json` says.

    Raises:
        SolverError: It is missing, damaged, or of another version.
    """
    path = directory / SUMMARY
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SolverError(f"{path} is missing: call save_solver() there first (evokit init-solver)") from error
    except (OSError, ValueError) as error:
        raise SolverError(f"{path} cannot be read: {error}") from error
    if not isinstance(summary, dict) or summary.get("format") not in READABLE:
        raise SolverError(f"{path} is not a solver's summary of format {' or '.join(map(str, READABLE))}")
    types = {"files": dict, "fingerprint": int, "parameters_sha256": str, "ledger": dict, "model_iter_id": int}
    wrong = [name for name, kind in types.items() if not isinstance(summary.get(name), kind)]
    if wrong:
        raise SolverError(f"{path} lacks {', '.join(wrong)}")
    if summary.get("checksum", "") != _checksum(summary):
        raise SolverError(f"{path} is damaged or was changed by hand: its own checksum does not hold")
    return summary


def version(directory: Path) -> str:
    """Return the checksum of a directory's solver; empty if there is none that can be read."""
    try:
        return str(read_summary(directory).get("checksum", ""))
    except SolverError:
        return ""


def history_line(report: UpdateReport, previous: str) -> str:
    """Return one update as a line of JSON.

    Args:
        report: Of the update.
        previous: The line before it, empty for the first.
    """
    numbers: dict[str, Any] = {name: value for name, value in asdict(report).items() if name != "parameters"}
    numbers["parameters_sha256"] = report.parameters_sha256
    numbers["previous"] = _line_digest(previous)
    return json.dumps(numbers, separators=(",", ":"))


def read_history(directory: Path, summary: Mapping[str, Any] | None = None) -> list[str]:
    """Return the lines of a model's history; none where there is no file.

    Args:
        directory: Of the model.
        summary: Of the same directory (see `read_summary`): the newest line is compared with it, too.

    Raises:
        SolverError: It was changed or is damaged.
    """
    path = directory / HISTORY
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise SolverError(f"{path} is not text ({error}): {_REMEDY}") from error
    try:
        check_history(lines)
        noted = None if summary is None else summary.get("history")  # summaries of earlier versions have none
        if noted is not None and noted != (found := _summary_of(lines)):
            raise SolverError(f"the history has {_described(found)}, but was written with {_described(noted)}")
    except SolverError as error:
        raise SolverError(f"{path}: {error}; {_REMEDY}") from error
    return lines


def check_history(lines: Sequence[str]) -> int:
    """Check that each line follows the one before it; return how many there are.

    Raises:
        SolverError: One does not, or the last one is not an update.
    """
    for number, (before, line) in enumerate(itertools.pairwise(lines), 2):
        if not line.endswith(f'"previous":"{_line_digest(before)}"}}'):
            raise SolverError(
                f"line {number} of the history does not follow line {number - 1}: one of them was changed"
            )
    for line in lines[-1:]:
        try:
            json.loads(line)["previous"]
        except (ValueError, KeyError, TypeError) as error:
            raise SolverError(f"line {len(lines)} of the history is not an update: {line[:80]!r}") from error
    return len(lines)


def _summary_of(history: Sequence[str]) -> dict[str, Any]:
    return {"lines": len(history), "last": _line_digest(history[-1] if history else "")}


def _described(summary: Mapping[str, Any]) -> str:
    return f"{summary['lines']} lines, of which the last has the SHA-256 {summary['last'] or 'of none'}"


def _line_digest(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest() if line else ""


def _waiting(path: Path | None) -> Samples:
    if path is None:
        return Samples.of([], [])
    arrays = read_arrays(path)
    missing = [name for name in COLUMNS if name not in arrays]
    if missing:
        raise SolverError(f"{path} lacks {', '.join(missing)}")
    keys, models, fingerprints = (arrays[name] for name in COLUMNS)
    return Samples.plain(keys, models, fingerprints, times=arrays.get(TIMES))


def _checksum(summary: Mapping[str, Any]) -> str:
    """Return SHA-256 over everything else in the summary."""
    rest = {name: value for name, value in summary.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
