"""Search for settings: parallel trials of Optuna, pruned and resumable, with the best settings as a TOML file.

    <folder>/study.log        the trials so far, in Optuna's journal; a second call continues with them
    <folder>/trial-0/ …       one run each, as `parl train` makes it
    <folder>/best.toml        the best settings, for `parl train --config`

A trial's evaluations are read from its log while it runs. A trial that is worse than the median of the others at the
same step is pruned: a file in its folder makes it stop at its next evaluation.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parl_core import backends
from parl_core.actors import ActorFuture, ActorHandle, open_actors, usable_cores, wait_any
from parl_core.atomic_write import atomic_write
from parl_core.errors import HyperparameterError, ParlError
from parl_core.training._recipe_run import RecipeRun
from parl_core.training.curves import RunCurve, read_run
from parl_core.training.events import Callback, Evaluation
from parl_core.training.logs import JsonLines, cut_back
from parl_core.training.run import Run, RunLock
from parl_core.training.settings import as_text, read_setting, setting_named, settings_of, toml_lines

__all__ = ["Range", "TrialInActor", "Tuned", "default_ranges", "read_range", "toml_of", "tune"]

SECONDS_BETWEEN_LOOKS = 0.5
STOP_FILE = "stop"
STUDY_FILE = "study.log"
BEST_FILE = "best.toml"


@dataclass(frozen=True)
class Range:
    """The values of a setting in a search: a range of numbers, or a list.

    Attributes:
        low: Smallest number.
        high: Largest number.
        log: Whether numbers are drawn evenly on a logarithmic scale.
        whole: Whether numbers are whole.
        choices: A list of values that replaces the bounds.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()


def read_range(text: str) -> Range:
    """Return the range that a text describes: `1e-5..1e-2`, or `64|128|256`.

    Numbers are drawn on a logarithmic scale where both bounds are above 0 and a factor of ten or more apart.

    Raises:
        HyperparameterError: It does not describe a range.
    """
    if "|" in text:
        return Range(choices=tuple(read_setting(one) for one in text.split("|")))
    low, dots, high = text.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = math.nan, math.nan
    if not dots or not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise HyperparameterError(f"{text!r} is not a range: write LOW..HIGH, or ONE|ANOTHER")
    whole = all(isinstance(read_setting(one), int) for one in (low, high))
    return Range(*bounds, log=bounds[0] > 0 and bounds[1] / bounds[0] >= 10, whole=whole)


def default_ranges(algorithm: str, asked: RecipeRun) -> dict[str, Range]:
    """Return the default search: learning rates, discount, sizes of batches and rollouts.

    Args:
        algorithm: Name of its class.
        asked: The request, whose settings are the middle of the ranges.
    """
    found: dict[str, Range] = {}
    known = settings_of(algorithm, asked.recipe)
    rates = [name for name in known if name.endswith("lr") and name != "alpha_lr"]
    for name in ["lr"] if "lr" in rates else rates:
        value = known[name].value
        now = value(0) if callable(value) else value or 3e-4
        found[name] = Range(now / 10, now * 10, log=True)
    for name in ("gamma", "discount"):
        if name in known:
            found[name] = Range(choices=(0.9, 0.95, 0.98, 0.99, 0.995, 0.999))
    for name in ("n_steps", "minibatch_size", "batch_size"):
        if name in known and isinstance(known[name].value, int):
            middle = known[name].value
            found[name] = Range(choices=tuple(max(int(middle * factor), 1) for factor in (0.25, 0.5, 1, 2, 4)))
    return found


class TrialInActor:
    """Trains trials in a separate process, one after another."""

    def train(self, asked: Mapping[str, Any], folder: str) -> str:
        """Train a trial from its beginning, and return the reason for its end.

        Args:
            asked: The fields of its `RecipeRun`.
            folder: The folder of the run.
        """
        request, path = RecipeRun(**asked), Path(folder)
        backends.set_backend(request.backend)
        with Run.at(path) as run:
            return request.train(run, callbacks=[_StopFileWatch(path / STOP_FILE)], progress=False).reason


class _StopFileWatch(Callback):
    """Stops when a file exists."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_evaluation(self, evaluation: Evaluation) -> str | None:  # noqa: ARG002 - the name belongs to the interface
        return "the trial was pruned" if self._path.exists() else None


@dataclass
class _Running:
    """A trial in progress, and the number of its evaluations that the study has."""

    trial: Any
    actor: ActorHandle
    path: Path
    reported: int = 0


@dataclass(frozen=True)
class Tuned:
    """The end of a search.

    Attributes:
        trials: Number of ended trials, including those of earlier calls and excluding interrupted ones.
        pruned: Number of trials that were stopped early.
        failed: Number of trials that raised.
        best: Settings of the best trial.
        value: The score of the best trial: the mean of its last three evaluations.
        file: The TOML file with these settings.
    """

    trials: int
    pruned: int
    failed: int
    best: Mapping[str, Any]
    value: float
    file: Path


def _score(curve: RunCurve) -> float:
    """Return the score of a trial: the mean of its last three evaluations; minus infinity without any."""
    return float(curve.returns[-3:].mean()) if curve.returns_of == "evaluations" else -math.inf


def tune(
    asked: RecipeRun,
    folder: Path,
    ranges: Mapping[str, Range],
    trials: int,
    *,
    workers: int | None = None,
    cluster: str = "",
    prune: bool = True,
    report: Any = print,
) -> Tuned:
    """Search for settings, or continue a search.

    Args:
        asked: Algorithm, environment, budget of a trial, and fixed settings.
        folder: Folder of the search; an existing search is continued.
        ranges: Ranges to search, by the names of settings.
        trials: Number of further trials.
        workers: Trials at the same time; default: the cores of this machine, on a cluster the number of trials.
        cluster: Address of a running cluster for the trials; all its hosts must have access to `folder`.
        prune: Whether trials that are worse than the median of the others are stopped.
        report: The function that is called with a line for each trial.

    Raises:
        ImportError: optuna is not installed.
        HyperparameterError: A setting is unknown, nothing is searched, or the folder has the search of another
            request.
        RunInUseError: Another program is searching there.
        ParlError: Every trial failed.
        KeyboardInterrupt: Ctrl-C was pressed; a note has the best settings so far, and the way to continue.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ImportError('searches are made with optuna: pip install "parl-core[tune]"', name=error.name) from None
    if not ranges:
        raise HyperparameterError("nothing is searched: give --search NAME=LOW..HIGH")
    if "evaluate_every" not in asked.given:  # ten points of each trial's curve
        asked = replace(asked, given={"evaluate_every": max(asked.recipe.steps // 10, 1), **asked.given})
    first = {name: _drawn_first(one) for name, one in ranges.items()}
    recipe = replace(asked, given={**asked.given, **first}).recipe  # unknown names raise errors before anything runs
    known = settings_of(asked.algorithm, recipe)
    suited = {name: _suited(one, setting_named(name, known).kinds) for name, one in ranges.items()}
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock()  # another program would treat the running trials as those of a killed one
    lock.take(folder)
    try:
        _clean_up(folder / STUDY_FILE)
        return _search(
            optuna, asked, folder, suited, trials, workers=workers, cluster=cluster, prune=prune, report=report
        )
    finally:
        lock.release()


def _clean_up(journal: Path) -> None:
    """Remove what a search that was killed has left: its lock on the journal, and a line that it did not finish."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        cut_back(journal, journal.read_bytes().rfind(b"\n") + 1)


def _search(
    optuna: Any,
    asked: RecipeRun,
    folder: Path,
    ranges: Mapping[str, Range],
    trials: int,
    *,
    workers: int | None,
    cluster: str,
    prune: bool,
    report: Any,
) -> Tuned:
    """Search in a folder that no other program uses: see `tune`."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / STUDY_FILE))),
        study_name="parl",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=asked.seed + len(list(folder.glob("trial-*")))),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4) if prune else optuna.pruners.NopPruner(),
    )
    states = optuna.trial.TrialState
    _require_same(study, asked, ranges, folder)
    for left in study.get_trials(deepcopy=False, states=[states.RUNNING]):  # trials of a killed search
        study.tell(left.number, state=states.FAIL)  # the nearest state; `_best_so_far` does not count them
    count = min(workers or (trials if cluster else usable_cores()), trials)
    last_error: BaseException | None = None
    begun = 0
    working: dict[ActorFuture, _Running] = {}
    try:
        with (
            open_actors("remote", address=cluster) if cluster else open_actors("subprocess", processes=count) as system
        ):
            idle: list[ActorHandle] = []
            while begun < trials or working:
                while begun < trials and len(working) < count:
                    trial, actor = study.ask(), idle.pop() if idle else system.create(TrialInActor)
                    given = {name: _suggested(trial, name, one) for name, one in ranges.items()}
                    values = {name: value for name, value in vars(asked).items() if name != "recipe"}
                    path = folder / f"trial-{trial.number}"
                    request = {**values, "given": {**asked.given, **given}}
                    working[actor.submit("train", request, str(path))] = _Running(trial, actor, path)
                    begun += 1
                for future in wait_any(list(working), SECONDS_BETWEEN_LOOKS):
                    running = working.pop(future)
                    trial, actor = running.trial, running.actor
                    try:
                        future.result()
                    except Exception as error:
                        last_error = error
                        actor.kill()
                        _fail(study, trial, optuna)
                        report(f"trial {trial.number}: {type(error).__name__}: {error}")
                        continue
                    idle.append(actor)
                    _end(study, trial, running.path, optuna, report)
                for running in working.values():
                    _report(running)
    except KeyboardInterrupt as interruption:
        found = _best_so_far(study, asked, folder, states)
        best = f"the best score is {found.value:.2f}, its settings are in {found.file}" if found else "none has a score"
        interruption.add_note(
            f"The search is in {folder}: {begun - len(working)} of {trials} trials have ended, {best}. The same search "
            f"goes on there (parl tune ... --study {folder})"
        )
        raise
    found = _best_so_far(study, asked, folder, states)
    if found is None:
        why = "no trial was evaluated within its steps" if last_error is None else f"the last error: {last_error}"
        raise ParlError(f"no trial has ended with a score; {why}")
    return found


def _best_so_far(study: Any, asked: RecipeRun, folder: Path, states: Any) -> Tuned | None:
    """Return the result of a study, and write its best settings; None if no trial has a score."""
    done = study.get_trials(deepcopy=False)
    if not any(one.value is not None for one in done):
        return None
    ends = [one.state for one in done]
    best = study.best_trial
    file = folder / BEST_FILE
    with atomic_write(file, "w", encoding="utf-8") as text:
        text.write(toml_of(asked, best.params, f"trial {best.number} of {len(done)}, score {best.value:.2f}"))
    pruned, failed = ends.count(states.PRUNED), sum("failed" in one.user_attrs for one in done)
    return Tuned(
        ends.count(states.COMPLETE) + pruned + failed, pruned, failed, dict(best.params), float(best.value), file
    )


def _require_same(study: Any, asked: RecipeRun, ranges: Mapping[str, Range], folder: Path) -> None:
    """Raise an error if the scores of a search do not apply to this request, or its values are of another kind.

    Raises:
        HyperparameterError: They differ; the message names the differences.
    """
    settings = {name: one for name, one in asked.settings().items() if name not in ("source", "deviations")}
    request = {**settings, "arguments": settings["algorithm"], "algorithm": asked.algorithm, "env": asked.env}
    request |= {"data": asked.data, "env_options": asked.env_options}
    request |= {f"--search {name}": _kind(one) for name, one in ranges.items()}
    now = json.loads(json.dumps(request))
    before = {**now, **study.user_attrs.get("request", {})}
    changed = [f"{name} was {before[name]} and is {one}" for name, one in now.items() if one != before[name]]
    if changed:
        raise HyperparameterError(f"{folder} has another search: {', '.join(changed)}. Use another --study")
    study.set_user_attr("request", before)


def _kind(one: Range) -> Any:
    """Return the part of a range that a study cannot change: its choices, or the kind of its numbers."""
    if one.choices:
        return _choices(one)
    return f"{'whole ' * one.whole}numbers{' on a logarithmic scale' * one.log}"


def _suited(one: Range, kinds: Sequence[Any]) -> Range:
    """Return a range with whole numbers exactly where its setting takes no others, however its bounds are written."""
    fractions = float in kinds or "schedule" in kinds
    return one if one.choices or fractions == (int in kinds) else replace(one, whole=not fractions)


def _drawn_first(one: Range) -> Any:
    return one.choices[0] if one.choices else int(one.low) if one.whole else one.low


def _suggested(trial: Any, name: str, one: Range) -> Any:
    if one.choices:
        return trial.suggest_categorical(name, _choices(one))
    if one.whole:
        return trial.suggest_int(name, int(one.low), int(one.high), log=one.log)
    return trial.suggest_float(name, one.low, one.high, log=one.log)


def _choices(one: Range) -> list[Any]:
    """Return the choices of a range in the form of a study: sizes and schedules as texts."""
    return [as_text(value) if isinstance(value, list | tuple) or callable(value) else value for value in one.choices]


def _report(running: _Running) -> None:
    """Report the scores of a running trial to the study, and stop the trial if it is not worth continuing."""
    path = running.path
    if not (path / JsonLines.NAME).exists() or (path / STOP_FILE).exists():
        return
    curve = read_run(path)
    if curve.returns_of != "evaluations":  # those of training episodes, before the first one
        return
    for step, value in list(zip(curve.steps, curve.returns, strict=True))[running.reported :]:
        running.trial.report(float(value), int(step))
    running.reported = len(curve.steps)
    if running.reported and running.trial.should_prune():
        (path / STOP_FILE).touch()


def _fail(study: Any, trial: Any, optuna: Any) -> None:
    """End a trial without a score; an interrupted trial has the same state, but did not fail."""
    trial.set_user_attr("failed", True)
    study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _end(study: Any, trial: Any, path: Path, optuna: Any, report: Any) -> None:
    curve = read_run(path)
    settings = ", ".join(f"{name}={as_text(value)}" for name, value in trial.params.items())
    if (path / STOP_FILE).exists() and curve.ended == "the trial was pruned":
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        report(f"trial {trial.number}: pruned after {int(curve.steps[-1])} steps at {curve.last:.2f}  ({settings})")
    elif not math.isfinite(value := _score(curve)):
        _fail(study, trial, optuna)
        report(f"trial {trial.number}: no evaluation within its steps  ({settings})")
    else:
        study.tell(trial, value)
        report(f"trial {trial.number}: {value:.2f}  ({settings})")


def toml_of(asked: RecipeRun, found: Mapping[str, Any], remark: str) -> str:
    """Return a file for `parl train --config`: the request with the settings that were found.

    Args:
        asked: The request.
        found: Settings that override its own.
        remark: A comment for the top of the file.
    """
    what = {"algorithm": asked.algorithm, "env": asked.env, "steps": asked.steps, "goal": asked.goal}
    what |= {"backend": asked.backend, "env_module": asked.module or None, "data": asked.data or None}
    lines = [f"# {remark}", *toml_lines({name: value for name, value in what.items() if value is not None})]
    if asked.env_options:
        lines += ["", "[env_options]", *toml_lines(asked.env_options)]
    lines += ["", "[settings]", *toml_lines(_sizes_once(asked, {**asked.given, **found}))]
    return "\n".join(lines) + "\n"


def _sizes_once(asked: RecipeRun, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings without duplicate sizes of hidden layers, because a file with both sizes and width is invalid."""
    named = {name: name.removeprefix("network.") for name in given}
    if "hidden" not in named.values() or {"width", "depth"}.isdisjoint(named.values()):
        return given
    hidden = settings_of(asked.algorithm, replace(asked, given=given).recipe)["network.hidden"].value
    kept = {name: value for name, value in given.items() if named[name] not in ("hidden", "width", "depth")}
    return {**kept, "network.hidden": hidden}
