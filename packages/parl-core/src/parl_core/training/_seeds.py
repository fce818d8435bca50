"""Parallel runs of one request with several seeds, in processes or on a cluster.

    <folder>/seed-0/ …        one run each, as `parl train` makes it
    <folder>/curves.png       the interquartile mean over the runs, with its interval
    <folder>/stop             made by Ctrl-C: when it exists, all runs end with checkpoints

Progress is read from the runs' logs, so that the runs may be anywhere. On a cluster of several hosts, all hosts must
have access to the folder.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from parl_core import backends
from parl_core.actors import ActorFuture, ActorHandle, open_actors, usable_cores, wait_any
from parl_core.atomic_write import write_json
from parl_core.checkpoint import CheckpointStore
from parl_core.errors import CheckpointError, ParlError
from parl_core.training._recipe_run import RecipeRun, has_ended
from parl_core.training.callbacks import Progress
from parl_core.training.curves import Comparison, RunGroup, draw_comparison, read_run
from parl_core.training.events import Callback, Ended, Episode, Evaluation, Stop, Update
from parl_core.training.logs import JsonLines, tracker
from parl_core.training.run import SECONDS_OF_A_ROUND, Run

__all__ = ["FollowedRuns", "RunInActor", "seeds_of", "summary_of", "train_seeds"]

SECONDS_BETWEEN_LOOKS = 0.5
SEEDS_FILE = "seeds.json"
STOP_FILE = "stop"


class _StopFileWatch(Callback):
    """Stops a run as soon as a file exists.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._next_look = path, 0.0

    def on_advance(self, step: int, seconds: float) -> str | None:  # noqa: ARG002  # what every callback is given
        if seconds < self._next_look:  # on a network's file system each look takes a while
            return None
        self._next_look = seconds + SECONDS_BETWEEN_LOOKS
        return "all runs were interrupted" if self._path.exists() else None


class RunInActor:
    """Trains runs in a separate process, one after another."""

    def train(self, asked: Mapping[str, Any], folder: str, how: Mapping[str, Any]) -> str:
        """Train a run, or continue it if its folder has a checkpoint, and return the reason for its end.

        Args:
            asked: The fields of its `RecipeRun`.
            folder: The folder of the run.
            how: Arguments of `RecipeRun.train`, and under `track` the names of trackers.
        """
        request, options = RecipeRun(**asked), dict(how)
        backends.set_backend(request.backend)
        path = Path(folder)
        tracked = options.pop("track", ())
        taken = max(CheckpointStore(path / "checkpoints").steps(), default=0)
        if taken >= request.total_steps and has_ended(path):
            return read_run(path).ended
        if not taken and not list((path / "checkpoints").glob("damaged-*")):
            shutil.rmtree(path, ignore_errors=True)  # it ended before its first checkpoint, and starts again
        with Run.resume(path) if path.exists() else Run.at(path) as run:
            watching = [_StopFileWatch(path.parent / STOP_FILE), *(tracker(name, run, request) for name in tracked)]
            return request.train(run, callbacks=watching, progress=False, **options).reason


class FollowedRuns:
    """Follows the logs of runs, and reports their sums to callbacks: steps, ended episodes, evaluations.

    Args:
        folders: The folders of the runs; they need not exist yet.
        total_steps: The steps of all runs together.
        callbacks: The callbacks to call, such as `Progress`.
    """

    def __init__(self, folders: Sequence[Path], total_steps: int, callbacks: Sequence[Callback]) -> None:
        self._read = dict.fromkeys(folders, 0)
        self._steps = dict.fromkeys(folders, 0)
        self._latest: dict[tuple[Path, str], int] = {}
        self._total, self._callbacks = total_steps, callbacks
        self._began = time.monotonic()

    def look(self) -> None:
        """Read the new lines, and call the callbacks."""
        episodes: list[Episode] = []
        evaluations: list[float] = []
        for folder in self._read:
            for values in self._new_lines(folder):
                self._steps[folder] = max(self._steps[folder], int(values["step"]))
                if values.get("train/return") is not None:
                    episodes.append(Episode(values["train/return"], round(values.get("train/length") or 0)))
                if values.get("evaluation/return") is not None:
                    evaluations.append(values["evaluation/return"])
        step, seconds = sum(self._steps.values()), time.monotonic() - self._began
        for callback in self._callbacks:
            if episodes or evaluations:
                callback.on_update(Update(step, self._total, seconds, episodes))
            for mean in evaluations:
                callback.on_evaluation(Evaluation([Episode(mean, 0)], step, seconds))

    def end(self, reason: str, stop: Stop = Stop.BUDGET) -> None:
        """Report to the callbacks that all runs have ended."""
        ended = Ended(stop, reason, sum(self._steps.values()), time.monotonic() - self._began)
        for callback in self._callbacks:
            callback.on_end(ended)

    def _new_lines(self, folder: Path) -> list[dict[str, Any]]:
        """Return the events since the last call; after a resumed run has truncated the log, those not returned yet."""
        path = folder / JsonLines.NAME
        if not path.exists():
            return []
        events, length = _events(path, self._read[folder])
        if length is None:
            events, length = _events(path, 0)
        self._read[folder] = length or 0
        new = []
        for values in events:
            kind = folder, str(values.get("event"))
            if int(values["step"]) > self._latest.get(kind, -1):
                self._latest[kind] = int(values["step"])
                new.append(values)
        return new


def _events(path: Path, begin: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return the events of a log from a position on, and the next position; None if no line begins there."""
    with path.open("rb") as log:
        if begin > log.seek(0, os.SEEK_END):
            return [], None
        log.seek(begin)
        text = log.read()
    whole = text[: text.rfind(b"\n") + 1]
    try:
        events = [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        return [], None
    return (events, begin + len(whole)) if all(isinstance(one, dict) for one in events) else ([], None)


def train_seeds(
    asked: RecipeRun,
    run: Run,
    seeds: Sequence[int],
    *,
    jobs: int | None = None,
    cluster: str = "",
    track: Sequence[str] = (),
    watcher: Callback | None = None,
    **how: Any,
) -> Comparison:
    """Train a request with several seeds, and draw the runs together.

    Args:
        asked: The request; its own seed is ignored.
        run: The run whose folder contains the runs.
        seeds: One seed for each run.
        jobs: Number of runs at the same time; default: the cores of this machine, or the number of seeds on a cluster.
        cluster: Address of a running cluster for the runs; empty: processes of this machine.
        track: Trackers of every run.
        watcher: The callback that is called for all runs together; default: progress on standard error.
        how: Arguments of `RecipeRun.train`.

    Raises:
        HyperparameterError: A run has taken more than the requested steps, and has others left.
        ParlError: A run failed; the message names its seed, and the other runs have continued.
        KeyboardInterrupt: After the runs had time to end with checkpoints, which `run` has noted.
    """
    folders = {seed: run.path / f"seed-{seed}" for seed in seeds}
    for folder in folders.values():
        asked.refuse_fewer_steps(folder)  # before the group's own description has them
    asked.write(run.path)
    write_json(run.path / SEEDS_FILE, list(seeds))
    (run.path / STOP_FILE).unlink(missing_ok=True)
    run.how_to_resume = f"parl resume {quote(str(run.path))}"
    count = min(jobs or (len(seeds) if cluster else usable_cores()), len(seeds))
    following = FollowedRuns(list(folders.values()), asked.total_steps * len(seeds), [watcher or Progress()])
    options = {**how, "track": list(track)}
    failed: dict[int, BaseException] = {}
    with open_actors("remote", address=cluster) if cluster else open_actors("subprocess", processes=count) as system:
        waiting = list(seeds)
        working: dict[ActorFuture, tuple[int, ActorHandle]] = {}
        idle: list[ActorHandle] = []
        try:
            while waiting or working:
                while waiting and len(working) < count:
                    seed, actor = waiting.pop(0), idle.pop() if idle else system.create(RunInActor)
                    values = {**{name: value for name, value in vars(asked).items() if name != "recipe"}, "seed": seed}
                    working[actor.submit("train", values, str(folders[seed]), options)] = seed, actor
                for future in wait_any(list(working), SECONDS_BETWEEN_LOOKS):
                    seed, actor = working.pop(future)
                    try:
                        future.result()
                        idle.append(actor)
                    except Exception as error:
                        failed[seed] = error
                        actor.kill()
                following.look()
        except KeyboardInterrupt:
            run.interruption.noticed()  # the runs end in their own time; only a second Ctrl-C cuts that short
            _await_checkpoints(run, list(working))
            following.look()
            following.end("interrupted", Stop.INTERRUPTED)
            _note_saved(run, list(folders.values()))
            raise
    following.end(f"{len(seeds) - len(failed)} of {len(seeds)} runs have ended")
    done = [folder for seed, folder in folders.items() if seed not in failed]
    if failed:
        failures = "; ".join(f"seed {seed}: {type(error).__name__}: {error}" for seed, error in failed.items())
        raise ParlError(f"{len(failed)} of {len(seeds)} runs failed: {failures}\nThe others are in {run.path}")
    found = Comparison((RunGroup(run.path.name, tuple(read_run(folder) for folder in done)),))
    picture = run.path / "curves.png"
    draw_comparison(found, picture, f"{asked.algorithm} on {asked.env}", asked.recipe.goal)
    run.saved(picture, "learning curves of all seeds")
    return found


def _await_checkpoints(run: Run, futures: list[ActorFuture]) -> None:
    """Request the end of the runs, and wait for them at most as long as for a single run."""
    os.write(2, b"\nInterrupted: the runs end with checkpoints after this round; Ctrl-C again ends them at once.\n")
    (run.path / STOP_FILE).touch()
    deadline = time.monotonic() + SECONDS_OF_A_ROUND
    while futures and (left := deadline - time.monotonic()) > 0:
        for future in wait_any(futures, left):
            futures.remove(future)


def _note_saved(run: Run, folders: Sequence[Path]) -> None:
    """Record the files that the runs have written, for the message after an interruption."""
    for folder in folders:
        store = CheckpointStore(folder / "checkpoints")
        if steps := store.steps():
            run.saved(store.folder, f"checkpoint of step {steps[-1]}; continue all with: {run.how_to_resume}")
        for name in ("best.ckpt", "last.ckpt"):
            if (folder / name).exists():
                run.saved(folder / name, f"{name.removesuffix('.ckpt')} agent of an evaluation")


def seeds_of(folder: Path) -> list[int]:
    """Return the seeds of a folder of `train_seeds`; an empty result for other folders."""
    try:
        return [int(seed) for seed in json.loads((folder / SEEDS_FILE).read_text())]
    except FileNotFoundError:
        return []


def summary_of(found: Comparison) -> dict[str, Any]:
    """Return a comparison of one group in a form for JSON.

    Raises:
        CheckpointError: The comparison has no group.
    """
    if not found.groups:
        raise CheckpointError("there are no runs to sum up")
    (group, *_) = found.groups
    interval = group.interval
    return {"runs": found.rows(), "interval": None if interval is None else list(interval)}
