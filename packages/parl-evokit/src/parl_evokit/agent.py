"""`ESAgent`: the agent of the PARL 1.x manual, with the manual's order of calls.

    load_config ─► load_inference_model ─► init_solver (once) or load_solver ─► clone, update, save_…

The agent holds the strategy, which owns parameters and solver state. Each clone has its own buffer and takes the newest
model from the strategy.
"""

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from parl_evokit import _solver_dir
from parl_evokit._directories import path_of, replacing
from parl_evokit._params import FlatVector
from parl_evokit._records import SamplingInfo
from parl_evokit._report import SetAsideCounts, UpdateReport
from parl_evokit._samples import Samples
from parl_evokit._sampling_agent import SamplerSource, SamplingAgent
from parl_evokit._solver_dir import history_line, read_history, read_summary
from parl_evokit.config import CensorKind, Config, SolverKind
from parl_evokit.errors import EvolutionError, LogError, SolverError
from parl_evokit.log import LogContents, SegmentReport, read_log
from parl_evokit.log._reader import present_in
from parl_evokit.models._find import adapt, model_in
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.strategy import Strategy
from parl_evokit.tokens import refusals

__all__ = ["ESAgent", "solver_class"]


REMEMBERED = 16  # updates after which a segment that none of them has seen is forgotten

_CLASSES = {
    SolverKind.BASIC_ES: ("openai_es", "ES"),
    SolverKind.CMA_ES: ("cma_es", "CMAES"),
    SolverKind.SEP_CMA_ES: ("sep_cma_es", "SepCMAES"),
    SolverKind.GA: ("genetic", "GA"),
    SolverKind.PGPE: ("adaptive_std", "PGPE"),
    SolverKind.SNES: ("adaptive_std", "SNES"),
    SolverKind.ARS: ("openai_es", "ARS"),
    SolverKind.CEM: ("cem", "CEM"),
    SolverKind.LM_MA_ES: ("lm_ma_es", "LMMAES"),
    SolverKind.CR_FM_NES: ("cr_fm_nes", "CRFMNES"),
}


def solver_class(kind: SolverKind) -> type[Strategy]:
    """Return the class of an algorithm."""
    module, name = _CLASSES[kind]
    found: type[Strategy] = getattr(importlib.import_module(f"parl_evokit.{module}"), name)
    return found


Source = Config | Mapping[str, Any] | str | PathLike[str]


class ESAgent:
    """An agent that evolves a model from logged samples.

    Args:
        config: As for `load_config`; with a model, the solver is made as well.
        model: As for `load_inference_model`.

    Raises:
        ConfigError: See `Config.load`.
        EvolutionError: `model` cannot be adapted.
    """

    def __init__(self, config: Source | None = None, model: Any = None) -> None:
        self._config: Config | None = None
        self._model: ModelAdapter | None = None
        self._strategy: Strategy | None = None
        self._progress = _solver_dir.Progress()
        self._history: list[str] = []
        self._to_quarantine: list[SegmentReport] = []
        self._gone: Sequence[int] = ()  # models of samples that the last update found to be removed
        self._versions: dict[str, str] = {}  # state of directories when they were loaded or saved
        self._updating = threading.Lock()
        if config is not None:
            self.load_config(config)
        if model is not None:
            self._model = adapt(model)
        if config is not None and model is not None:
            self.init_solver()

    def load_config(self, source: Source) -> None:
        """Read the settings.

        Args:
            source: A path (`.prototxt`, `.toml`, `.json`), a `Config`, or a dictionary.

        Raises:
            ConfigError: See `Config.load`.
            SolverError: The agent has a solver already, made with other settings.
        """
        if self._strategy is not None:
            raise SolverError("the agent has a solver already: make a new agent for other settings")
        self._config = Config.load(source)

    def load_inference_model(self, model_dir: str | PathLike[str], model: Any = None) -> None:
        """Read the model's weights.

        Args:
            model_dir: A directory of weights, as `save_inference_model` writes it.
            model: The model of the weights, because files contain no code: any argument of `adapt`, for numpy a
                pair (arrays, predict). Default: the model that the agent has, or one that needs no code: an inference
                program of paddle, or the built-in model that a solver in the directory names.

        Raises:
            SolverError: The weights are missing or damaged, there is no model, or the solver exists already.
            LayoutMismatch: The weights are those of another model.
        """
        if self._strategy is not None:
            raise SolverError("the agent has a solver already: make a new agent for another model")
        directory = path_of(model_dir, SolverError)
        adapter = (self._model or model_in(directory)) if model is None else adapt(model)
        if adapter is None:
            raise SolverError("load_inference_model() needs model=: files contain weights, but no code")
        adapter.load(directory)
        self._model = adapter

    def init_solver(self) -> None:
        """Make a new solver. Call it once, after the configuration and the model are loaded.

        Raises:
            SolverError: A call is missing, or there is a solver already.
        """
        self._strategy = self._new_strategy("init_solver")
        self._bind()

    def clone(self) -> SamplingAgent:
        """Return an agent that samples, with its own parameter buffer; each thread or process needs one.

        Raises:
            SolverError: There is no solver yet.
        """
        _, model = self._ready("clone")
        return SamplingAgent(self._source(), model.clone())

    def predict(self, x: Any) -> Any:
        """Return the output of the model without noise for `x`.

        Raises:
            SolverError: There is no model yet.
        """
        return self._having_model("predict").predict(x)

    def predict_many(self, infos: Sequence[SamplingInfo], x: Any, *, each: bool = False) -> Any:
        """Return the outputs of many samples of the present model, computed as one batch.

        Args:
            infos: Samples of the present model, `k` of them.
            x: One input for all samples, or with `each` an array with one input for each, `[k, ...]`.
            each: True if `x` has one input for each sample.

        Returns:
            Outputs `[k, ...]`; those of `predict` of a clone with the noise of each sample, up to rounding.

        Raises:
            SolverError: There is no solver yet.
            EvolutionError: A sample is of another model, or inputs and samples differ in number.
        """
        strategy, model = self._ready("predict_many")
        if each and len(x) != len(infos):
            raise EvolutionError(f"{len(infos)} samples came with {len(x)} inputs: pass one input for each")
        return model.predict_many(strategy.candidates(infos), x, each=each)

    def get_predictor(self) -> Callable[[Any], Any]:
        """Return a function that predicts with the present parameters, also after later updates."""
        return self._having_model("get_predictor").clone().predict

    def update(self, infos: Iterable[SamplingInfo], rewards: Sequence[float] | NDArray[np.floating]) -> UpdateReport:
        """Update the model; clones take the new parameters at their next `add_noise`.

        Args:
            infos: Samples of any clone, in any order, of this model or older ones.
            rewards: One per sample, larger is better; see `Strategy.tell`.

        Returns:
            The report of the update.

        Raises:
            NothingToUpdate: Too few samples could be used; nothing has changed.
            InvalidReward: Infos and rewards differ in number.
            SolverError: There is no solver yet.
        """
        self._ready("update")
        with self._updating:
            return self._tell(Samples.of(list(infos), rewards), SetAsideCounts())

    def update_from_log(
        self, paths: str | PathLike[str] | Iterable[str | PathLike[str]], *, max_damage: float = 0.01
    ) -> tuple[UpdateReport, LogContents]:
        """Update from the new records of logs; the list of used records is saved with the solver.

        Args:
            paths: Logs: directories of segments, or files; also files in the raw form.
            max_damage: Share of the bytes of files with new records that may be damaged, 0 to 1. If more is
                damaged, the most damaged files are left out.

        Returns:
            The report of the update, and the contents that were read. Files that were left out, or of which more than
            `max_damage` is damaged, are `quarantined`: they are moved aside after model and solver are saved.

        Raises:
            NothingToUpdate: Too few new samples could be used; nothing has changed, and the next update reads them
                again.
            LogError: See `read_log`.
            SolverError: There is no solver yet.
        """
        self._ready("update_from_log")
        with self._updating:
            return self._tell_log(paths, max_damage)

    def replay_log(
        self,
        paths: str | PathLike[str] | Iterable[str | PathLike[str]],
        until: str | PathLike[str],
        *,
        max_damage: float = 0.01,
    ) -> tuple[UpdateReport, LogContents]:
        """Repeat `update_from_log` with the records that an earlier update used, even if the log has grown since.

        Args:
            paths: As for `update_from_log`.
            until: The model directory that the earlier update wrote.
            max_damage: As for `update_from_log`.

        Returns:
            As for `update_from_log`; with the same log, `parameters_sha256` of the report is that of `until`.

        Raises:
            NothingToUpdate: The logs do not contain the used records.
            LogError: The logs do not contain a segment that the update has read, or as for `read_log`.
            SolverError: There is no solver yet, or `until` contains none.
        """
        self._ready("replay_log")
        with self._updating:
            return self._tell_log(paths, max_damage, read_summary(path_of(until, SolverError)))

    def param_size(self) -> int:
        """Return the number of parameters that evolve."""
        return self._having_model("param_size").layout.size

    def parameters(self) -> dict[str, FlatVector]:
        """Return copies of the model's parameters by name."""
        model = self._having_model("parameters")
        return model.layout.views(model.parameters())

    @property
    def model_iter_id(self) -> int:
        """Number of updates of the model."""
        return self._ready("model_iter_id")[0].sampler.model_iter_id

    def save_inference_model(self, model_dir: str | PathLike[str]) -> None:
        """Write the weights of the model into a directory, in one step; other files in it are kept."""
        model = self._having_model("save_inference_model")
        with replacing(path_of(model_dir, SolverError)) as directory:
            model.save(directory)

    def save_solver(self, model_dir: str | PathLike[str]) -> None:
        """Write the state of the solver beside the weights, in one step.

        Raises:
            SolverError: There is no solver yet, or the directory has updates that would be lost; see `save`.
            StorageError: The directory cannot be written; it is unchanged.
        """
        strategy, _ = self._ready("save_solver")
        target = path_of(model_dir, SolverError)
        self._require_version(target)
        with replacing(target) as directory:
            self._write_solver(directory, strategy)
        self._note_version(target)
        self._settle()

    def save(self, model_dir: str | PathLike[str]) -> None:
        """Save model and solver in one step, so that a reader finds both old or both new.

        Raises:
            SolverError: There is no solver yet, or saving would lose updates: another process has updated the directory
                since this agent last loaded or saved it, or this agent has done neither and has made fewer updates. See
                `update_lock` for taking turns.
            StorageError: The directory cannot be written; it is unchanged.
        """
        strategy, model = self._ready("save")
        target = path_of(model_dir, SolverError)
        self._require_version(target)
        with replacing(target) as directory:
            model.save(directory)
            self._write_solver(directory, strategy)
        self._note_version(target)
        self._settle()

    def load_solver(self, model_dir: str | PathLike[str]) -> None:
        """Load the state of a solver; call it instead of `init_solver`, after loading the configuration and the model.

        Raises:
            SolverError: A call is missing, or the files are damaged or not of this model.
        """
        strategy, directory = self._new_strategy("load_solver"), path_of(model_dir, SolverError)
        self._progress = _solver_dir.read(directory, strategy)
        self._history = read_history(directory, read_summary(directory))
        self._note_version(directory)
        self._strategy = strategy
        self._bind()

    def add_noise(self, *_: object, **__: object) -> NoReturn:
        """Raise an error, because only clones have noise.

        Raises:
            EvolutionError: Always.
        """
        raise EvolutionError("the original agent has no noise: call add_noise() of a clone, which clone() returns")

    def _new_strategy(self, verb: str) -> Strategy:
        if self._strategy is not None:
            raise SolverError(
                f"the agent has a solver already, from init_solver(), load_solver() or ESAgent(config, model): "
                f"make a new agent before {verb}()"
            )
        model = self._having_model(verb)
        if self._config is None:
            raise SolverError(f"{verb}() needs the settings: call load_config() before it")
        return self._strategy_for(model)

    def _strategy_for(self, model: ModelAdapter) -> Strategy:
        assert self._config is not None
        return solver_class(self._config.solver.type)(model.parameters(), self._config, model.layout)

    def _having_model(self, verb: str) -> ModelAdapter:
        if self._model is None:
            raise SolverError(f"{verb}() needs a model: call load_inference_model() before it, or give model=")
        return self._model

    def _ready(self, verb: str) -> tuple[Strategy, ModelAdapter]:
        model = self._having_model(verb)
        if self._strategy is None:
            raise SolverError(f"{verb}() needs a solver: call init_solver() or load_solver() before it")
        return self._strategy, model

    def _write_solver(self, directory: Path, strategy: Strategy) -> None:
        built_in = getattr(self._model, "built_in", None)
        _solver_dir.write(directory, strategy, self._progress, built_in, self._history)

    def _require_version(self, model_dir: Path) -> None:
        """Raise an error instead of overwriting an update that this agent has not seen, or more than it has made."""
        known, found = self._versions.get(os.path.realpath(model_dir), ""), _solver_dir.version(model_dir)
        if not known and found and (number := read_summary(model_dir)["model_iter_id"]) > self.model_iter_id:
            raise SolverError(
                f"{model_dir} has the solver of model {number}, and this agent has model {self.model_iter_id}, so the "
                "updates of that solver and its record of used samples would be lost: call load_solver() instead of "
                "init_solver(), save elsewhere, or remove solver.json first"
            )
        if known and found and found != known:
            raise SolverError(
                f"{model_dir} has been updated by another process since this agent loaded or saved it, and that update "
                "would be lost: load it again, or save elsewhere (update_lock lets processes take turns)"
            )

    def _note_version(self, model_dir: Path) -> None:
        self._versions[os.path.realpath(model_dir)] = _solver_dir.version(model_dir)

    def _source(self) -> SamplerSource:
        """Return the source of the newest model for clones."""
        return self._ready("clone")[0]

    def _tell_log(
        self,
        paths: str | PathLike[str] | Iterable[str | PathLike[str]],
        max_damage: float,
        until: Mapping[str, Any] | None = None,
    ) -> tuple[UpdateReport, LogContents]:
        before = self._progress
        strategy, _ = self._ready("update")
        contents = read_log(
            paths,
            before.ledger,
            max_damage=max_damage,
            waiting=before.waiting,
            until=None if until is None else until["ledger"],
            only_tokens=strategy.config.solver.update.only_tokens,
        )
        if until is not None:
            _require_segments(contents, before.ledger, until["ledger"])
        # A clock that is ahead on one host must not let all samples time out.
        now_us = min(time.time_ns() // 1000, max(before.now_us, contents.latest_us))
        now_us = now_us if until is None else int(until.get("now_us", 0))
        since_us = min(before.now_us, now_us) if until is None else int(until.get("since_us", 0))
        model_iter_id, max_age = self.model_iter_id, strategy.max_age
        samples, aside = self._fresh(contents)
        samples, timed_out, last = self._timed_out(contents, samples, now_us, since_us)
        there, last_there = samples, last
        if until is not None:
            removed = np.array(until.get("gone", ()), np.int64)
            there, last_there = (
                some.where(~(self._own(some) & np.isin(some.models, removed))) for some in (samples, last)
            )
            aside.orphan += len(samples) - len(there)
        report = self._tell(
            there,
            aside,
            last=last_there,
            lost=len(last) - len(last_there),
            refused=refusals(contents.refused),
            quarantined=tuple(segment.path.name for segment in contents.quarantined),
            timed_out=timed_out,
        )
        if report.timed_out > timed_out:
            contents.waiting = contents.waiting.where(~present_in(last, contents.waiting))
        contents.expire(report.model_iter_id, max_age)
        counted = np.isfinite(samples.rewards) & (samples.models <= model_iter_id)
        keys, models = samples.keys[counted], samples.models[counted]
        seen = {segment.segment for segment in contents.segments}
        missing = {name: before.missing.get(name, model_iter_id) for name in contents.ledger if name not in seen}
        gone = {name for name, model in missing.items() if model_iter_id - model > max(max_age, REMEMBERED)}
        self._progress = _solver_dir.Progress(
            {name: place for name, place in contents.ledger.items() if name not in gone},
            contents.waiting,
            before.used.adding(keys, models, report.model_iter_id, report.model_iter_id - max_age),
            {name: model for name, model in missing.items() if name not in gone},
            now_us,
            since_us,
            self._gone if until is None else until.get("gone", ()),
        )
        self._to_quarantine = [] if until is not None else contents.quarantined
        return report, contents

    def _fresh(self, contents: LogContents) -> tuple[Samples, SetAsideCounts]:
        """Return the samples of a log that may count, and the number of the others.

        Those that an earlier update has used, or may have used and dropped, do not count and are not awaited. Neither
        are those of another model, or of one that is too old.
        """
        strategy, _ = self._ready("update")
        samples, aside, used = contents.samples, SetAsideCounts(), self._progress.used
        contents.waiting = contents.waiting.where(self._own(contents.waiting))
        contents.expire(self.model_iter_id, strategy.max_age)
        if strategy.config.solver.update.only_tokens:
            aside.untrusted = int(np.count_nonzero(~samples.tokens))
            samples = samples.where(samples.tokens) if aside.untrusted else samples
        if used.oldest > self.model_iter_id - strategy.max_age:  # `max_age` has been raised since
            known = [some.models >= used.oldest for some in (samples, contents.waiting)]
            aside.too_old = int(np.count_nonzero(~known[0]))
            samples, contents.waiting = samples.where(known[0]), contents.waiting.where(known[1])
        older = np.flatnonzero(samples.models < self.model_iter_id)
        again = older[used.has(samples.where(older))]
        if len(again):
            aside.used = len(again)
            samples = samples.where(np.delete(np.arange(len(samples)), again))
        waiting = used.has(contents.waiting)
        if waiting.any():
            contents.waiting = contents.waiting.where(~waiting)
        return samples, aside

    def _own(self, samples: Samples) -> NDArray[np.bool_]:
        """Return a mask of the samples that are not of another model or noise, `[n]`; unknown ones count."""
        fingerprint = self._ready("update")[0].sampler.fingerprint
        own: NDArray[np.bool_] = (samples.fingerprints == fingerprint) | (samples.fingerprints == 0)
        return own

    def _timed_out(
        self, contents: LogContents, samples: Samples, now_us: int, since_us: int
    ) -> tuple[Samples, int, Samples]:
        """Return the samples including those whose reward is overdue, and the number of the latter.

        Overdue samples are not awaited. Samples that are read for the first time wait from `since_us` on, or from
        their serving time if that is later. Where samples of earlier models count, none waits beyond the last update
        that can use it, since it would not count; otherwise every update is the last one for its samples. An update
        that rolls the model back raises its number by two, so it is the last one for the samples of two models: those
        of the younger one are returned as well, with the rewards that they have in that case.
        """
        strategy, _ = self._ready("update")
        update, waiting = strategy.config.solver.update, contents.waiting
        none = Samples.of([], [])
        if not update.reward_timeout_s or not len(waiting):
            return samples, 0, none
        # An earlier time comes from a slow clock or a late segment: a reward may still arrive.
        timed = waiting.times > 0
        new = timed & ~present_in(self._progress.waiting, waiting)
        times = np.where(new, np.maximum(waiting.times, since_us), waiting.times)
        waiting = contents.waiting = replace(waiting, times=times)
        late = times <= now_us - int(update.reward_timeout_s * 1e6)
        if strategy.max_age:
            late |= waiting.models == self.model_iter_id - strategy.max_age
        late &= timed
        last = timed & ~late & (waiting.models == self.model_iter_id - strategy.max_age + 1)
        if not strategy.max_age or strategy.sampler.trusted is None:
            last[:] = False
        if not late.any() and not last.any():
            return samples, 0, none
        contents.waiting = waiting.where(~late)
        if update.censoring is CensorKind.DROP:
            contents.expired += int(np.count_nonzero(late))
            return samples, 0, none
        default = update.default_reward
        if update.censoring is CensorKind.WORST:
            intake = strategy.sorted(samples)
            default = min(
                [*intake.control, *intake.holdout, *(float(group.rewards.min()) for group in intake.groups)],
                default=default,
            )
        censored = replace(waiting, rewards=np.full(len(waiting), default, np.float32))
        return (
            Samples.concatenated([samples, censored.where(late)]),
            int(np.count_nonzero(late)),
            censored.where(last),
        )

    def _tell(
        self, samples: Samples, aside: SetAsideCounts, last: Samples | None = None, lost: int = 0, **of_log: Any
    ) -> UpdateReport:
        """Update from samples.

        Args:
            samples: In columns.
            aside: Counts of unusable samples.
            last: Samples that timed out, should the model be rolled back; see `_timed_out`.
            lost: Number of further samples whose model was removed.
            of_log: Attributes of the report that the log decides.
        """
        strategy, _ = self._ready("update")
        number = self.model_iter_id
        report = replace(strategy.tell_samples(samples, aside, last), **of_log)
        if last is not None and report.model_iter_id > number + 1:
            report = replace(report, timed_out=report.timed_out + len(last) + lost)
            report.set_aside.orphan += lost
        self._note(report)
        self._bind()
        return report

    def _settle(self) -> None:
        """Move aside the files that the update just saved found to be damaged."""
        for segment in self._to_quarantine:
            with contextlib.suppress(OSError, LogError):
                segment.save_damaged()
            segment.quarantine()
        self._to_quarantine = []

    def _note(self, report: UpdateReport) -> None:
        self._history.append(history_line(report, self._history))

    def _bind(self) -> None:
        assert self._model is not None
        assert self._strategy is not None
        self._model.bind(self._strategy.mean)


def _require_segments(contents: LogContents, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Raise an error if a segment of which an update has used more is not in a log."""
    there = {segment.segment for segment in contents.segments}
    absent = [name for name, end in after.items() if end > before.get(name, 0) and name not in there]
    if absent:
        raise LogError(
            f"the logs lack {len(absent)} of the segments that the update has read, such as {absent[0]}: give "
            "all logs of the update, quarantine/ too, as they were before `evokit log prune` or `compact`"
        )
