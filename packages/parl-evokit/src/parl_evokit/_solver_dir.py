"""The files of a model directory beside the weights: the state of the solver, and the history of its updates.

    solver.json    format, package version, configuration, model_iter_id, ledger, the name of a built-in model,
                   SHA-256 of the parameters and of the other files, number and digest of the history's lines
    solver.npz     float32 and int64 arrays: the optimizer's moments, counters
    waiting.npz    samples that were served and have no reward yet, if there are any
    used-N.npy     keys of the samples that update N has used, as long as a reward for them could be repeated
    history.jsonl  one line for each update, each with the digest of the line before it:
                   {"model_iter_id": 7, "used": 20, ..., "parameters_sha256": "...", "previous": SHA-256 of the last}
                   some lines have the totals of all updates, because only the newest lines are kept

All files are data only; nothing in them is executed or names code. If a line of the history is changed or removed
later, the digests do not match and the file raises an error; without the file, a new history begins. The history
contains no time of day, because the same update of the same log must give the same bytes; the time of the directory is
that of the update.

A repeated reward belongs to a sample among the used ones, and changes nothing:

    update N ─► used-N.npy: keys, sorted within each model ─► a link in later directories, until its models are too old

A sample is dropped when its model is older than `max_age`: from then on its rewards are set aside as too old. An update
looks up only its stale samples, in memory-mapped files, since no earlier update can have used keys of the present
model.
"""

import hashlib
import itertools
import json
from collections import Counter
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
    "totals_of",
    "version",
    "write",
]

FORMAT = 2
READABLE = (1, FORMAT)  # 1 has no used samples
SUMMARY = "solver.json"
_COUNTS: dict[str, type] = dict.fromkeys(("oldest", "now_us", "since_us"), int)
_OPTIONAL: dict[str, type] = {"used": dict, "missing": dict, "gone": list, "history": dict, **_COUNTS}
ARRAYS = "solver.npz"
WAITING = "waiting.npz"
COLUMNS = ("keys", "models", "fingerprints")
TIMES = "times"
HISTORY = "history.jsonl"
_REMEDY = "take it from a copy, or move it away to continue with a new history"
TOTALS = '"totals":'  # nowhere else in a line: quotes within texts are escaped
_KEPT = 10_000  # number of lines of about 400 bytes, which are rewritten at each save


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

    def has(self, model: int, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask of the keys whose samples of this model have been used, `[n]`."""
        known = self.keys[slice(*self.ranges[model])]
        places = np.searchsorted(known, keys)
        places[places == len(known)] = 0
        found: NDArray[np.bool_] = known[places] == keys
        return found


class UsedSamples:
    """The samples that updates have used, of all models whose samples still count; immutable.

    Args:
        batches: The used samples of each update.
        oldest: Number of the oldest model with complete used samples; 0 if none were dropped.

    Attributes:
        oldest: As above.
    """

    def __init__(self, batches: Iterable[_Batch] = (), oldest: int = 0) -> None:
        self._batches = tuple(batches)
        self.oldest = oldest

    def __len__(self) -> int:
        return sum(stop - start for batch in self._batches for start, stop in batch.ranges.values())

    def has(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask of the samples that have been used, `[n]`; of a key alone if a sample of any model was."""
        found = np.zeros(len(samples), np.bool_)
        if not self._batches:
            return found
        bare = (samples.models == 0) & (samples.fingerprints == 0)
        named = np.flatnonzero(~bare)
        for model in distinct(samples.models[named]):
            rows = named[samples.models[named] == model]
            for batch in self._batches:
                if model in batch.ranges:
                    found[rows] |= batch.has(model, samples.keys[rows])
        if len(rows := np.flatnonzero(bare)):
            for batch in self._batches:
                for model in batch.ranges:
                    found[rows] |= batch.has(model, samples.keys[rows])
        return found

    def adding(self, keys: NDArray[np.uint64], models: NDArray[np.int64], update: int, oldest: int) -> "UsedSamples":
        """Return these samples and those of another update.

        Args:
            keys: Keys of the samples that it has used; samples without an identity are left out.
            models: Model of each sample.
            update: Number of the model that the update made.
            oldest: Number of the oldest model whose samples are kept.
        """
        kept = [batch for batch in self._batches if max(batch.ranges) >= oldest and batch.update != update]
        rows = (keys != CONTROL_KEY) & (keys != NO_KEY) & (models >= oldest)
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
        return UsedSamples(kept, max(self.oldest, oldest))

    def write(self, directory: Path) -> dict[str, dict[str, list[int]]]:
        """Write new files into a directory, and remove files that are no longer needed.

        Returns:
            The ranges of each file, for `read`.
        """
        names = {batch.name for batch in self._batches}
        for path in directory.glob("used-*.npy"):
            if path.name not in names:
                path.unlink()
        for batch in self._batches:
            path = directory / batch.name
            if not _holds(path, batch.keys):  # otherwise it is a link to the file of the directory being replaced
                path.unlink(missing_ok=True)
                with path.open("xb") as file:
                    np.save(file, batch.keys, allow_pickle=False)
        return {batch.name: {str(model): list(rows) for model, rows in batch.ranges.items()} for batch in self._batches}

    @classmethod
    def read(cls, directory: Path, ranges: Mapping[str, Mapping[str, Any]], oldest: int) -> "UsedSamples":
        """Return the samples that `write` wrote.

        Args:
            directory: The directory.
            ranges: The ranges that `write` returned.
            oldest: As for the constructor.

        Raises:
            SolverError: A file is missing, or does not match `ranges`.
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
        return cls(batches, oldest)


def _holds(path: Path, keys: NDArray[np.uint64]) -> bool:
    """Return whether a file has these keys."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return bool(found.dtype == np.uint64 and np.array_equal(found, keys))


@dataclass(frozen=True)
class Progress:
    """The progress of reading logs.

    Attributes:
        ledger: Number of used bytes of each segment.
        waiting: Samples that were served and have no reward yet.
        used: Samples that updates have used.
        missing: Segments of the ledger that the last update has not found, with the model of the last update that
            found them; they are dropped when all of their models are too old.
        now_us: The latest time of the records read, in microseconds since 1970 (UTC); 0 without times.
        since_us: Time from which the samples that the last update read first wait at the earliest, in microseconds
            since 1970 (UTC); 0 for the time of their records.
        gone: Removed models whose samples the last update did not use.
    """

    ledger: Mapping[str, int] = field(default_factory=dict)
    waiting: Samples = field(default_factory=lambda: Samples.of([], []))
    used: UsedSamples = field(default_factory=UsedSamples)
    missing: Mapping[str, int] = field(default_factory=dict)
    now_us: int = 0
    since_us: int = 0
    gone: Sequence[int] = ()


def write(
    directory: Path,
    strategy: Strategy,
    progress: Progress | None = None,
    model: str | None = None,
    history: Sequence[str] = (),
) -> None:
    """Write the state of `strategy` into an existing directory that has no readers yet (see `_directories.replacing`).

    Args:
        directory: The directory.
        strategy: The strategy.
        progress: The progress of reading logs.
        model: Name of the model if it is a built-in one (see `built_in`).
        history: One line for each update; only the newest lines of a very long history are kept.
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
        "oldest": progress.used.oldest,
        "now_us": progress.now_us,
        "since_us": progress.since_us,
        "gone": list(progress.gone),
        "history": _summary_of(history),
        "files": {name: _digest(directory / name) for name in names},
    }
    summary["checksum"] = _checksum(summary)
    (directory / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def read(directory: Path, strategy: Strategy) -> Progress:
    """Load the state that `write` wrote into `strategy`, which must already have the parameters of the model.

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
    try:
        return Progress(
            {str(segment): int(offset) for segment, offset in summary["ledger"].items()},
            _waiting(directory / WAITING if WAITING in summary["files"] else None),
            UsedSamples.read(directory, summary.get("used", {}), int(summary.get("oldest", 0))),
            {str(segment): int(model) for segment, model in summary.get("missing", {}).items()},
            int(summary.get("now_us", 0)),
            int(summary.get("since_us", 0)),
            [int(model) for model in summary.get("gone", ())],
        )
    except (TypeError, ValueError, AttributeError) as error:  # written by another program
        raise SolverError(f"{directory / SUMMARY} has a field of another form than the format's: {error}") from error


def read_summary(directory: Path) -> dict[str, Any]:
    """Return the contents of `solver.json`.

    Raises:
        SolverError: The file is missing, damaged, or of another version.
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
    wrong = [name for name, kind in _OPTIONAL.items() if not isinstance(summary.get(name, kind()), kind)]
    if wrong:
        raise SolverError(f"{path} has fields of another form than the format's: {', '.join(wrong)}")
    if summary.get("checksum", "") != _checksum(summary):
        raise SolverError(f"{path} is damaged or was changed by hand: its checksum is wrong")
    return summary


def version(directory: Path) -> str:
    """Return the checksum of the solver in a directory; empty if no solver can be read."""
    try:
        return str(read_summary(directory).get("checksum", ""))
    except SolverError:
        return ""


def history_line(report: UpdateReport, history: Sequence[str]) -> str:
    """Return one update as a line of JSON.

    Args:
        report: Report of the update.
        history: The lines before.
    """
    numbers: dict[str, Any] = {name: value for name, value in asdict(report).items() if name != "parameters"}
    numbers["parameters_sha256"] = report.parameters_sha256
    if report.model_iter_id % (_KEPT // 10) == 0:  # by the number, because a search for the last totals takes time
        since = next((n for n, line in enumerate(reversed(history)) if TOTALS in line), len(history))
        lines = [json.loads(line) for line in history[-since - 1 :]]
        numbers["totals"] = totals_of([*lines, numbers])
    numbers["previous"] = _line_digest(history[-1] if history else "")
    return json.dumps(numbers, separators=(",", ":"))


def totals_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the sums over all updates of a history, including dropped lines: {counter: {label: sum}}."""
    place = next((n for n in range(len(lines) - 1, -1, -1) if "totals" in lines[n]), -1)
    totals = {name: Counter(sums) for name, sums in (lines[place]["totals"].items() if place >= 0 else ())}
    for line in lines[place + 1 :]:
        numbers = {
            "set_aside": line.get("set_aside", {}),
            "refused": line.get("refused", {}),
            "timed_out": {"": line.get("timed_out", 0)},
            "rollbacks": {"": int(bool(line.get("rolled_back")))},
            "quarantined": {"": len(line.get("quarantined", ()))},
        }
        for name, counts in numbers.items():
            sums = totals.setdefault(name, Counter())
            for label, count in counts.items():
                sums[label] += count
    return {name: dict(sums) for name, sums in totals.items()}


def read_history(directory: Path, summary: Mapping[str, Any] | None = None) -> list[str]:
    """Return the lines of the history of a model; empty without a file.

    Args:
        directory: Directory of the model.
        summary: Summary of the same directory (see `read_summary`), with which the newest line is compared.

    Raises:
        SolverError: The history was changed or is damaged.
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
        noted = None if summary is None else summary.get("history")  # summaries of earlier versions lack it
        if noted is not None and noted != (found := _summary_of(lines)):
            raise SolverError(f"the history has {_described(found)}, but was written with {_described(noted)}")
    except SolverError as error:
        raise SolverError(f"{path}: {error}; {_REMEDY}") from error
    return lines


def check_history(lines: Sequence[str]) -> int:
    """Check that each line follows the previous one; return the number of lines.

    Raises:
        SolverError: A line does not, or the last one is not an update.
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
    return f"{summary.get('lines')} lines, of which the last has the SHA-256 {summary.get('last') or 'of none'}"


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
