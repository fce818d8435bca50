"""The base of all evolutionary algorithms: drawing samples, and updating from any of their rewards in any order.

    ask(n) ──► infos ──► candidate(info) ──► (evaluate) ──► tell(infos, rewards) ──► report
                              │                                   │
                      Sampler: immutable,                 intake sorts samples;
                      one for each model                  the algorithm's _advance makes the next Sampler

`Strategy` owns the public verbs and the bookkeeping; an algorithm fills `_advance` and its part of the state. Rewards
are maximised. `tell` publishes the next `Sampler` in one assignment, so other threads see the old model or the new one,
never a mixture; the sampling path has no lock.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum, inf, isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector, ParameterLayout, float32_array, under, within
from parl_evokit._records import SamplingInfo, sampling_infos
from parl_evokit._report import SetAsideCounts, UpdateReport
from parl_evokit._sampler import FARTHEST, LARGEST_REACH, LARGEST_SPREAD, Advance, BestSample, Sampler, Transform
from parl_evokit._samples import Samples, SortedSamples, fresh_intake, noise_keys, sort_samples
from parl_evokit.config import Config, KeyKind, SolverKind
from parl_evokit.errors import ConfigError, LayoutMismatch, NothingToUpdate, SolverError
from parl_evokit.guard import Comparison, Guard, Verdict, shortened
from parl_evokit.noise._gaussian import GaussianNoise, PairPerturbation, PreparedPerturbation
from parl_evokit.noise._keys import CounterKeys, KeySource, RandomKeys
from parl_evokit.optimizers import StepDiverged

__all__ = ["Strategy", "length_of"]

PIECE = 2**16
AHEAD = 2**17  # size of candidates that are made at once, which fit the second-level cache
LARGEST_AHEAD = 2**12  # number of parameters up to which making several at once is faster
NEXT_KEY = "next_key"  # name of the count of keys in the state
BEST = "best."  # the prefix of the best candidate, in the state
NO_KEYS = np.empty(0, np.uint64)


class Strategy(ABC):
    """Base of all algorithms.

    `kind` is the name of the algorithm in settings. `defaults` are the settings if none are given; missing ones have
    the defaults of the PARL 1.x manual.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; a `Config`, a dictionary, or a path (see `Config.load`). Default: `defaults`.
        layout: Names and shapes of the parts of the vector. Default: one part named `x`, or the named arrays' own.

    Raises:
        ConfigError: See `Config.load`; or the settings are another algorithm's.
        LayoutMismatch: `mean0` does not match `layout`, or does not hold finite real numbers.
    """

    kind: SolverKind
    sampler_name = "gaussian"
    defaults: Mapping[str, Any] = {}
    _mirrors = True  # whether the setting `gaussian_sampling.mirrored` applies

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        self.config = Config.load(self.defaults if config is None else config, self.kind)
        if (named := self.config.solver.type) is not self.kind:
            raise ConfigError(
                f"{type(self).__name__} runs {self.kind.name}, but the settings have solver.type {named.name}: "
                f"set it to {self.kind.name}, or use the class of {named.name}"
            )
        if layout is None or isinstance(mean0, Mapping):
            arrays = mean0 if isinstance(mean0, Mapping) else {"x": float32_array("mean0", mean0)}
            self.layout = layout or ParameterLayout.of(arrays)
            parameters = self.layout.flatten(arrays)
        else:
            self.layout = layout
            parameters = float32_array("mean0", mean0)
            layout.require_vector(parameters)
        if not parameters.size:
            raise LayoutMismatch("there are no initial parameters")
        if not np.isfinite(parameters).all():
            raise LayoutMismatch("the initial parameters must be finite float32 numbers")
        parameters.flags.writeable = False
        gaussian = self.config.solver.sampling.gaussian_sampling
        self._sampler = Sampler(
            GaussianNoise(gaussian.noise),
            gaussian.std,
            parameters,
            0,
            gaussian.noise.fingerprint(self.layout, self.sampler_name),
            control_share=self.config.solver.guard.control_share,
            holdout_share=self.config.solver.guard.holdout_share,
        )
        self.keys = self._new_keys()
        self._ahead = _PreparedCandidates(self._sampler)
        self.guard = Guard(self.config.solver.guard)
        self._best: BestSample | None = None
        self._stalled = 0
        self._rejected = ""

    @property
    def sampler(self) -> Sampler:
        """The present model; `tell` replaces it."""
        return self._sampler

    @property
    def mean(self) -> FlatVector:
        """The present parameters `[n]`, read-only."""
        return self._sampler.parameters

    @property
    def max_age(self) -> int:
        """The maximum age, in updates, of the models whose samples count."""
        return self._max_age

    @property
    def best(self) -> BestSample | None:
        """The best candidate that was injected, or told while its model was present; None before the first.

        It is part of `state()`, so a resumed search continues with it.
        """
        return self._best

    def ask(self, n: int) -> list[SamplingInfo]:
        """Draw `n` new samples of the present model, in mirrored pairs unless the settings exclude that.

        Raises:
            ValueError: `n` is below 0.
        """
        sampler = self._sampler
        self._ahead = ahead = _PreparedCandidates(sampler, self.keys.draw_many(n))
        return sampling_infos(ahead.order, sampler.origin)

    def candidate(self, info: SamplingInfo, out: FlatVector | None = None) -> FlatVector:
        """Return the parameters of a sample of the present model.

        Args:
            info: A sample that `ask` returned since the last `tell`.
            out: The array to write them to, `[n]`. Default: a new array.

        Raises:
            EvolutionError: The sample is of another model.
            LayoutMismatch: `out` has another shape.
        """
        ahead, drawn = self._ahead, info.drawn_key
        made = ahead.made.pop(drawn, None)
        if out is None and info.origin is ahead.origin and ahead.sampler is self._sampler and drawn is not None:
            return ahead.take(drawn, None) if made is None else made  # most often
        sampler = self._sampler
        if ahead.sampler is not sampler:  # it has changed since the last `ask`
            ahead, made = _PreparedCandidates(sampler), None
            self._ahead = ahead
        sampler.require_own(info)
        if out is not None:
            _output_of((self.layout.size,), out)
        if info.identity:
            made = np.empty_like(sampler.parameters) if out is None else out
            sampler.apply(info, made)
            return made
        if made is None:
            made = ahead.take(info.noise_key, out)
        if out is None or made is out:
            return made
        np.copyto(out, made)
        return out

    def candidates(self, infos: Sequence[SamplingInfo], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the parameters of several samples of the present model, to be evaluated as a batch.

        Args:
            infos: Samples that `ask` returned since the last `tell`, `k` of them.
            out: The array to write them to, `[k, n]`. Default: a new array.

        Raises:
            EvolutionError: A sample is of another model.
            LayoutMismatch: `out` has another shape.
        """
        sampler = self._sampler
        for info in infos:
            if info.origin is not sampler.origin:
                sampler.require_own(info)
        keys = self._ahead.keys_of([info.drawn_key for info in infos])
        keys = noise_keys(infos) if keys is None else keys
        found = sampler.perturb_many(keys, _output_of((len(infos), self.layout.size), out))
        for row, info in enumerate(infos if sampler.trusted is not None else ()):
            if info.identity:
                sampler.apply(info, found[row])
        return found

    def tell(self, infos: Iterable[SamplingInfo], rewards: Sequence[float] | NDArray[np.floating]) -> UpdateReport:
        """Update from any number of the drawn samples, in any order.

        Args:
            infos: Samples of this model or of older ones.
            rewards: One per sample, larger is better; values that are not finite, or beyond float32, are set aside.
                They count as float64; a log holds float32.

        Returns:
            The report of the update.

        Raises:
            NothingToUpdate: Fewer usable samples than `min_samples`; nothing has changed.
            InvalidReward: Infos and rewards differ in number.
        """
        infos = list(infos)
        intake = fresh_intake(infos, rewards, self._sampler.origin, self._ahead.keys_of)
        return self._update(intake or self.sorted(Samples.of(infos, rewards)))

    def tell_samples(
        self, samples: Samples, aside: SetAsideCounts | None = None, last: Samples | None = None
    ) -> UpdateReport:
        """Update from samples in columns, as logs contain them; see `tell`.

        Args:
            samples: Samples of this model or of older ones.
            aside: Counts of samples that were set aside before; the report includes them.
            last: Samples that count only if the model is rolled back, because its number then rises by two, so that no
                later update can use them.
        """

        def intake_of(samples: Samples) -> SortedSamples:
            intake = self.sorted(samples)
            if aside is not None:
                intake.set_aside.add(aside)
            return intake

        if last is None or not len(last):
            return self._update(intake_of(samples))
        return self._update(intake_of(samples), lambda: intake_of(Samples.concatenated([samples, last])))

    def _update(self, intake: SortedSamples, of_rollback: Callable[[], SortedSamples] | None = None) -> UpdateReport:
        """Update from sorted samples; `of_rollback` returns those of an update that rolls the model back."""
        with np.errstate(over="ignore", invalid="ignore"):  # reports samples that are not finite
            return self._updated(intake, self._sampler, of_rollback)

    def _updated(
        self, intake: SortedSamples, before: Sampler, of_rollback: Callable[[], SortedSamples] | None
    ) -> UpdateReport:
        guard = self.guard
        if (trusted := guard.trusted) is not None:
            guard = guard.noting(*_both_arms(intake, before.model_iter_id - trusted[0]))
        comparison, verdict = guard.comparison, guard.verdict()
        if verdict is Verdict.WORSE:
            return self._with_comparison(self._roll_back(intake, before, guard, of_rollback), comparison)
        if verdict is Verdict.TRUSTED:
            guard = guard.trust_present()
        if (used := intake.used) < self._min_samples:
            raise NothingToUpdate(
                f"{used} samples could be used, {self._min_samples} are needed; set aside: {intake.set_aside}",
                _report(intake, before, used),
            )
        state_before = self._own_state() if self.config.solver.guard.rollback and guard.trusted is None else {}
        try:
            step = self._finite(before, lambda: self._advance(intake, before))
        except StepDiverged as error:
            return self._with_comparison(self._not_taken(intake, before, guard, str(error)), comparison)
        parameters = self._take(step, before, guard, state_before)
        update_norm = _distance(parameters, before.parameters)
        self._stalled = 0 if update_norm > 0.0 else self._stalled + 1
        self._rejected = ""
        self._note_best(intake, before)
        report = _report(intake, before, used, step.gradient_norm, update_norm, parameters)
        return self._with_comparison(report, comparison)

    def _finite(self, before: Sampler, advance: Callable[[], Advance]) -> Advance:
        """Return a step, which is checked if the noise is so wide that samples may not be finite.

        Raises:
            StepDiverged: They would not be finite; the algorithm is unchanged.
        """
        if _widest(before.std) <= LARGEST_SPREAD:
            return advance()
        state, step = self._own_state(), advance()
        centres = step.parameters if step.parents is None else step.parents
        if float(np.abs(centres).max()) + FARTHEST * _widest(step.std) > LARGEST_REACH:
            self._load_own_state(state)
            raise StepDiverged("samples would not be finite; rewards grow as far as numbers reach")
        return step

    def sorted(self, samples: Samples) -> SortedSamples:
        """Return samples in the form in which an update of the present model takes them."""
        present = self._sampler
        return sort_samples(
            samples,
            model_iter_id=present.model_iter_id,
            fingerprint=present.fingerprint,
            max_age=self._max_age,
        )

    def _take(self, step: Advance, before: Sampler, guard: Guard, state: Mapping[str, NDArray[Any]]) -> FlatVector:
        """Put the model after a step in the place of the one before, and return its parameters.

        Args:
            step: The update that the algorithm has computed from the samples.
            before: The model that it started from.
            guard: The knowledge of the arms by then.
            state: The algorithm's, before the step: for a guard to go back to.
        """
        ratio = self.config.solver.guard.max_update_ratio
        parameters = shortened(before.parameters, step.parameters, ratio, before.std) if ratio else step.parameters
        parameters.setflags(write=False)
        self.guard = guard = guard.updated(before.model_iter_id, before.parameters, state)
        self._sampler = before.after(parameters, step, guard.trusted)
        self.keys.start_pair()
        return parameters

    def _with_comparison(self, report: UpdateReport, comparison: Comparison) -> UpdateReport:
        """Return the report with the comparison of the arms by this update."""
        if not self.config.solver.guard.rollback:
            return report
        low, high = comparison.interval(self.config.solver.guard.level)
        return replace(report, advantage=(low, high)) if isfinite(low) else report

    def _roll_back(
        self, intake: SortedSamples, before: Sampler, guard: Guard, of_rollback: Callable[[], SortedSamples] | None
    ) -> UpdateReport:
        """Return to the trusted model, and learn from the samples around the abandoned one.

        Their noise is treated as noise around the trusted model: directions that were better there are better here,
        while the shift of the centre, which all of them have in common, has been found to be for the worse.
        """
        reason = guard.reason()
        self.guard = guard
        without_last, intake = intake, intake if of_rollback is None else of_rollback()
        children = self._data_of_round(intake, before)
        self._revert()
        reverted = self._sampler
        self._make_older(intake)
        if intake.used < self._min_samples:
            if intake is not without_last:  # the number rises by one only, so a later update can use the last samples
                self._make_older(without_last)
                intake = without_last
            intake.set_aside.too_few = intake.used
            norm = _distance(reverted.parameters, before.parameters)
            return _report(intake, before, used=0, update_norm=norm, parameters=self.mean, rolled_back=reason)
        state = self._own_state()
        try:
            step = self._finite(reverted, lambda: self._advance_reverted(intake, reverted, children))
        except StepDiverged as error:
            return self._not_taken(intake, reverted, self.guard, str(error), reason)
        parameters = self._take(step, reverted, self.guard, state)
        norm = _distance(parameters, before.parameters)
        return _report(intake, reverted, intake.used, step.gradient_norm, norm, parameters, rolled_back=reason)

    def _make_older(self, intake: SortedSamples) -> None:
        """Add the update that a rollback takes back to the age of samples, where that counts."""
        if self.takes_stale_samples:
            intake.set_aside.too_old += sum(len(group.keys) for group in intake.groups if group.age == self._max_age)
            intake.groups = [replace(group, age=group.age + 1) for group in intake.groups if group.age < self._max_age]

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the present state, without reading a file."""
        sampler, guard, best = self._sampler, copy.copy(self.guard), self._best
        stalled, rejected, state = self._stalled, self._rejected, self._own_state()

        def restore() -> None:
            self._load_own_state(state)
            self._sampler, self.guard, self._best = sampler, guard, best
            self._stalled, self._rejected = stalled, rejected
            self.keys.start_pair()

        return restore

    def _not_taken(
        self, intake: SortedSamples, before: Sampler, guard: Guard, reason: str, rolled_back: str = ""
    ) -> UpdateReport:
        """Continue with the present parameters under the next number, and report the samples as set aside."""
        self._rejected = reason
        self._sampler = replace(before, model_iter_id=before.model_iter_id + 1, trusted=guard.trusted)
        self.guard = guard
        self.keys.start_pair()
        report = _report(intake, before, used=0, parameters=before.parameters, rejected=reason, rolled_back=rolled_back)
        report.set_aside.diverged = intake.used
        return report

    def number_from(self, model_iter_id: int) -> None:
        """Set the number of the present model; call it before its first sample."""
        self._sampler = replace(self._sampler, model_iter_id=model_iter_id)

    def should_stop(self) -> str:
        """Return why the search should stop; empty if it should continue.

        Reasons: the last step was not taken, because its parameters or samples would not be finite; or the last 100
        updates did not change the parameters.
        """
        if self._rejected:
            return f"the last step was not taken: {self._rejected}"
        if self._stalled >= 100:
            return (
                f"the last {self._stalled} updates changed nothing: all rewards were equal, the steps were too small "
                "for float32 parameters, or no sample was better than the elites of GA"
            )
        return ""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the search without the parameters, as arrays for a file."""
        keys = {NEXT_KEY: np.array(self.keys.next_count, np.int64)} if isinstance(self.keys, CounterKeys) else {}
        return self._own_state() | self.guard.state() | keys | self._best_state()

    def _best_state(self) -> dict[str, NDArray[Any]]:
        """Return the best candidate as arrays; empty if there is none."""
        if (best := self._best) is None:
            return {}
        numbers = best.info.noise_key, best.info.model_iter_id, best.info.fingerprint, best.info.identity
        arrays = {
            "reward": np.array(best.reward),
            "info": np.array(numbers, np.int64),
            "parameters": best.parameters,
        }
        return under(BEST, arrays)

    def _loaded_best(self, state: Mapping[str, NDArray[Any]]) -> BestSample | None:
        """Return the best candidate of `_best_state`; states of earlier versions lack it."""
        if not state:
            return None
        reward, numbers, parameters = (state.get(name) for name in ("reward", "info", "parameters"))
        if parameters is None or reward is None or numbers is None or parameters.shape != (self.layout.size,):
            shapes = {name: array.shape for name, array in state.items()}
            raise LayoutMismatch(
                f"the best candidate of the state does not fit {self.layout.size} parameters: {shapes}"
            )
        key, model_iter_id, fingerprint, identity = numbers.tolist()
        info = SamplingInfo((), model_iter_id, fingerprint, identity)
        info.drawn_key = key
        return BestSample(float(reward), info, self._sampler, np.array(parameters, np.float32))

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the algorithm's part of the state."""
        return {"model_iter_id": np.array(self._sampler.model_iter_id, np.int64)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned; the parameters of this object are unchanged.

        Raises:
            SolverError: An array is missing.
            LayoutMismatch: An array has another shape.
        """
        own = {name: array for name, array in state.items() if name != NEXT_KEY and not name.startswith(BEST)}
        self._load_own_state(self.guard.load_state(own))
        self._sampler = replace(self._sampler, trusted=self.guard.trusted)
        self._best = self._loaded_best(within(BEST, state))
        if isinstance(self.keys, CounterKeys) and NEXT_KEY in state:
            self.keys.continue_from(int(state[NEXT_KEY]))

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over the algorithm's part of the state."""
        if "model_iter_id" not in state:
            raise SolverError(f"the solver's state has no model_iter_id, only {sorted(state)}")
        self._sampler = replace(self._sampler, model_iter_id=int(state["model_iter_id"]))

    def _data_of_round(self, intake: SortedSamples, left: Sampler) -> Any:  # noqa: ARG002
        """Return the data of a round's samples that must be computed before their model is replaced."""
        return None

    def _advance_reverted(self, intake: SortedSamples, sampler: Sampler, kept: Any) -> Advance:  # noqa: ARG002
        """Return one step from the trusted model, by the samples of the model that was left; see `_data_of_round`."""
        return self._advance(intake, sampler)

    @abstractmethod
    def _advance(self, intake: SortedSamples, sampler: Sampler) -> Advance:
        """Return one step of the algorithm, from at least `_min_samples` samples that are at most `_max_age` old."""

    @property
    def _min_samples(self) -> int:
        return self.config.solver.update.min_samples

    @property
    def takes_stale_samples(self) -> bool:
        """True if samples of older models can be used; CMA cannot use them."""
        return self._max_age > 0

    @property
    def _max_age(self) -> int:
        return self.config.solver.update.max_age

    @property
    def _mirrored(self) -> bool:
        return self._mirrors and self.config.solver.sampling.gaussian_sampling.mirrored

    def _sample_with(
        self,
        std: float | FlatVector,
        transform: Transform | None = None,
        parents: NDArray[np.float32] | None = None,
    ) -> None:
        """Use this noise from now on (after loading a state)."""
        self._sampler = replace(self._sampler, std=std, transform=transform, parents=parents)

    def _new_keys(self) -> KeySource:
        if self.config.keys is KeyKind.COUNTER:
            return CounterKeys(self.config.worker, self._mirrored)
        return RandomKeys(self._mirrored)

    def _revert(self) -> None:
        """Go back to the trusted model, under a new number."""
        bad = self._sampler
        parameters, state = self.guard.revert()
        parameters.flags.writeable = False
        self._sampler = replace(bad, parameters=parameters)
        self._load_own_state(state)
        self._sampler = replace(self._sampler, model_iter_id=bad.model_iter_id + 1, trusted=None)
        self.keys.start_pair()

    def _note_best(self, intake: SortedSamples, sampler: Sampler) -> None:
        present = intake.groups[0] if intake.groups else None  # the youngest
        if present is None or present.age:
            return
        place = int(present.rewards.argmax())
        reward = present.rewards.item(place)
        if self._best is None or reward > self._best.reward:
            info = SamplingInfo()
            info.fill(int(present.keys[place]), sampler.model_iter_id, sampler.fingerprint)
            self._best = BestSample(reward, info, sampler)

    def _note_injected(self, solutions: NDArray[np.float64], rewards: NDArray[np.float64]) -> None:
        place = int(rewards.argmax())
        if self._best is None or rewards[place] > self._best.reward:
            own = solutions[place].astype(np.float32)
            self._best = BestSample(float(rewards[place]), SamplingInfo(), self._sampler, own)


class _PreparedCandidates:
    """Candidates of the last `ask`, prepared for many at once, which costs a fraction of single calls.

    Candidates of small models are made some at a time, when the first of them is wanted. Of larger ones it is known
    the positions of their noise in the table. Candidates that are requested out of order may be made singly.

    Args:
        sampler: Their model.
        keys: Keys of the samples in order, `[n]`. Default: empty.

    Attributes:
        origin: The origin of records of this model.
        made: Candidates that are made and not taken yet, by their keys.
        order: The keys as integers.
    """

    def __init__(self, sampler: Sampler, keys: NDArray[np.uint64] = NO_KEYS) -> None:
        self.sampler, self.origin = sampler, sampler.origin
        self.made: dict[int | None, FlatVector] = {}
        self._keys = keys.copy()  # the source may use its array again
        self._keys.setflags(write=False)
        self.order: list[int] = keys.tolist()
        self._ascending = False
        self._next = 0
        self._several: PreparedPerturbation | None = None
        self._halves: PairPerturbation | None = None

    def keys_of(self, drawn: Sequence[int | None]) -> NDArray[np.uint64] | None:
        """Return the array of all keys (always the same object) if these are all keys, ascending; else None."""
        if drawn != self.order:
            return None
        if not self._ascending:
            self._ascending = not np.count_nonzero(self._keys[1:] <= self._keys[:-1])
        return self._keys if self._ascending else None

    def take(self, key: int, out: FlatVector | None) -> FlatVector:
        """Return the candidate with this key, in `out` or in a new array."""
        place, order, sampler = self._next, self.order, self.sampler
        if place < len(order) and order[place] == key:
            if self._several is not None:
                self._next = place + 1
                return self._several(place, out)
            size = len(sampler.parameters)
            if size <= LARGEST_AHEAD and sampler.parents is None:
                self._next = stop = min(place + AHEAD // size // 2 * 2, len(order))
                made: dict[int | None, FlatVector] = dict(zip(order[place:stop], self._rows(place, stop), strict=True))
                first = made.pop(key)
                self.made = made
                return first
            self._several = sampler.prepared(self._keys)
            if self._several is not None:
                self._next = place + 1
                return self._several(place, out)
        if (waiting := self.made.pop(key, None)) is not None:
            return waiting
        alone = np.empty_like(sampler.parameters) if out is None else out
        sampler.perturb(key, alone, keep=True)
        return alone

    def _rows(self, start: int, stop: int) -> Iterable[FlatVector]:
        if start == 0:
            self._halves = self.sampler.halves(self._keys)
        if self._halves is None:
            whole = stop - start == len(self._keys)
            return self.sampler.perturb_many(self._keys if whole else self._keys[start:stop])
        even, odd = self._halves(slice(start // 2, stop // 2))
        rows: list[Any] = [None] * (stop - start)
        rows[::2], rows[1::2] = list(even), list(odd)  # numpy's iterator takes half of the time of a `zip` of both
        return rows


def _both_arms(intake: SortedSamples, age: int) -> tuple[list[float], list[float]]:
    """Return the rewards of both arms for models after the trusted one, which is `age` updates old."""
    arms = [rewards for own, rewards in intake.arms.items() if own < age]
    return [reward for present, _ in arms for reward in present], [reward for _, kept in arms for reward in kept]


def _report(
    intake: SortedSamples,
    before: Sampler,
    used: int,
    gradient_norm: float = 0.0,
    update_norm: float = 0.0,
    parameters: FlatVector | None = None,
    rolled_back: str = "",
    rejected: str = "",
) -> UpdateReport:
    groups, control, holdout = intake.groups, intake.control, intake.holdout
    rewards = groups[0].rewards if len(groups) == 1 else np.concatenate([[], *(group.rewards for group in groups)])
    count = len(rewards)
    known = before.noise.known_pairs(groups[0].keys) if len(groups) == 1 else None
    report = UpdateReport(
        model_iter_id=before.model_iter_id + 1,
        used=used,
        pairs=intake.pairs if known is None else count // 2,
        repeated=intake.repeated,
        mean_reward=fsum(rewards.tolist()) / count if count else 0.0,
        best_reward=rewards.item(rewards.argmax()) if count else 0.0,
        control=len(control),
        control_mean=fsum(control) / len(control) if control else None,
        holdout=len(holdout),
        holdout_mean=fsum(holdout) / len(holdout) if holdout else None,
        stale={group.age: len(group.keys) for group in groups if group.age},
        set_aside=intake.set_aside,
        gradient_norm=gradient_norm,
        update_norm=update_norm,
        parameters=parameters,
        rolled_back=rolled_back,
        rejected=rejected,
        stale_rule=intake.stale_rule,
        effective=float(count) if intake.effective is None else intake.effective,
    )
    return report if used else replace(report, pairs=0, stale={}, stale_rule="", effective=0.0)


def _widest(std: float | FlatVector) -> float:
    return float(std.max()) if isinstance(std, np.ndarray) else std


def length_of(vector: FlatVector) -> float:
    """Return the Euclidean norm; infinite only if a number is not finite."""
    square = float(np.dot(vector, vector))
    if isfinite(square):
        return sqrt(square)
    wide = vector.astype(np.float64)
    square = float(np.dot(wide, wide))
    return sqrt(square) if isfinite(square) else inf


def _distance(a: FlatVector, b: FlatVector) -> float:
    """Return the Euclidean distance, piece by piece: a whole difference would be one vector more in memory."""
    if len(a) <= PIECE:
        difference = a - b
        total = float(np.dot(difference, difference))
    else:
        pieces = (a[start : start + PIECE] - b[start : start + PIECE] for start in range(0, len(a), PIECE))
        squares = [float(np.dot(piece, piece)) for piece in pieces]
        total = fsum(squares) if isfinite(max(squares)) else inf
    return sqrt(total) if isfinite(total) else float(np.linalg.norm(a.astype(np.float64) - b))


def _output_of(shape: tuple[int, ...], out: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if out is None:
        return np.empty(shape, np.float32)
    if out.shape != shape:
        raise LayoutMismatch(f"out has shape {out.shape}; the result has {shape}")
    return out
