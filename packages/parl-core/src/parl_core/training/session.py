"""A session of training, which is all that surrounds a loop's updates: counts, callbacks, evaluations, checkpoints.

with Session(total_steps, callbacks, evaluator, evaluate_every) as session:
    while session.is_running:
        ...                                    # the loop's own: act, learn
        session.advance(steps)                 # ── step, time ──> callbacks
        session.report(losses, episodes)       # ── Update ──────> callbacks
        session.evaluate_when_due()            # ── Evaluation ──> callbacks
        session.checkpoint_when_due()
return session.ended                           # ── Ended ───────> callbacks, however the block was left

In this way your own loop gets everything that surrounds the ready-made loops.

A loop whose runs can be resumed calls `session.watch(envs, seed)` before it resets its environments, and
`session.keep(LoopParts(...))` once all its parts exist; in a resumed run this restores their state.
"""

import difflib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from parl_core import logger
from parl_core.agent import Agent
from parl_core.algorithm import Algorithm
from parl_core.checks import check_finite, check_int
from parl_core.errors import HyperparameterError
from parl_core.training.checkpoints import Checkpoints, LoopParts
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, Episode, Evaluation, Stop, Update, tell_end

__all__ = ["Session"]


class Session:
    """A run of a loop.

    Args:
        total_steps: The budget.
        callbacks: The callbacks, called for every update and evaluation, and once at the end.
        evaluator: The function that plays episodes with the present agent; None: no evaluations.
        evaluate_every: Steps between evaluations.
        clock: The function that returns seconds from an arbitrary zero.
        unit: The unit of the steps, for messages.
        checkpoints: The object that writes checkpoints, and restores a resumed run; None for neither.

    Raises:
        HyperparameterError: The callbacks are not a sequence of callbacks, or the evaluator is not a function.
    """

    ended: Ended
    """The end of the loop; set after the block."""

    def __init__(
        self,
        total_steps: int,
        callbacks: Sequence[Callback] = (),
        evaluator: Evaluator | None = None,
        evaluate_every: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        *,
        unit: str = "steps",
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.step = 0
        self._checkpoints = checkpoints
        self._next_checkpoint = 0 if checkpoints is None else checkpoints.every
        self._total, self._unit = total_steps, unit
        self._callbacks, self._evaluator, self._clock = _checked(callbacks), evaluator, clock
        self._counting = [one for one in callbacks if type(one).on_advance is not Callback.on_advance]
        if evaluator is not None and not callable(evaluator):
            raise HyperparameterError(
                f"evaluator is a function that evaluates, got {evaluator!r}: for instance "
                "lambda: training.evaluate(agent, env, episodes=10)"
            )
        _warn_of_unused(callbacks, evaluator)
        self._evaluate_every = self._next_evaluation = check_int("evaluate_every", evaluate_every)
        self._evaluations: list[Evaluation] = []
        self._reasons: list[str] = []
        self._began = clock()
        self._agent: Any = None

    def watch(self, envs: Any, seed: int | None) -> None:
        """Register the environments that the loop steps, before their first reset.

        Raises:
            HyperparameterError: They cannot be saved in the way that the checkpoints require.
        """
        if self._checkpoints is not None:
            self._checkpoints.watch(envs, seed)

    def keep(self, parts: LoopParts) -> None:
        """Register the parts of the loop; if the run is a resumed one, restore their state.

        A `parl.Agent` enters training mode, here and after each evaluation.

        Raises:
            CheckpointError: A part cannot be saved, or the checkpoint cannot be used.
        """
        self._agent = parts.agent
        if self._checkpoints is None:
            self._learn_in_training_mode()
            return
        saved = self._checkpoints.keep(parts)
        self._checkpoints.await_rounds(True)
        self._learn_in_training_mode()
        if saved is None:
            return
        self.step = int(saved["step"])
        self._next_evaluation, self._next_checkpoint = int(saved["next_evaluation"]), int(saved["next_checkpoint"])
        self._began = self._clock() - float(saved["seconds"])
        self._evaluations = [Evaluation.from_state(state) for state in saved["evaluations"]]
        for name, callback in self._named_callbacks().items():
            if name in saved["callbacks"]:
                callback.set_state(saved["callbacks"][name])
                self._listen(callback, "on_resume", callback.on_resume())
        self._advanced()  # a budget may be used up already

    @property
    def is_running(self) -> bool:
        """Return whether budget remains and no callback has returned a reason to stop."""
        return self.step < self._total and not self._reasons

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._began

    def advance(self, steps: int) -> None:
        """Count the steps taken, and call `on_advance` of the callbacks that define it."""
        self.step += steps
        self._advanced()

    def report(
        self,
        losses: Mapping[str, float],
        episodes: Sequence[Episode] = (),
        schedules: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Report an update to the callbacks, with the named figures of the algorithm's losses.

        Args:
            losses: The losses of the update, by name.
            episodes: The episodes that ended since the last report.
            schedules: The scheduled values that were used, by name.
            metrics: Further numbers, by their full names.

        Raises:
            DivergedError: A loss is not finite.
        """
        algorithm = getattr(self._agent, "alg", None)
        if isinstance(algorithm, Algorithm):
            losses = {**algorithm.take_figures(), **losses}
        check_finite(f"update after {self.step} {self._unit}", losses)
        update = Update(self.step, self._total, self.seconds, episodes, losses, schedules or {}, metrics or {})
        for callback in self._callbacks:
            self._listen(callback, "on_update", callback.on_update(update))

    @property
    def evaluation_is_due(self) -> bool:
        """Return whether `evaluate_when_due` evaluates; loops read losses first, so that no diverged agent is kept."""
        return self._evaluator is not None and self.step >= self._next_evaluation

    def evaluate_when_due(self) -> None:
        """Evaluate and call the callbacks, if `evaluate_every` steps were taken since the last time."""
        if self._evaluator is None or not self.evaluation_is_due:
            return
        self._next_evaluation += self._evaluate_every
        found = self._evaluator()
        self._learn_in_training_mode()
        if not isinstance(found, Evaluation):
            raise TypeError(
                f"the evaluator returned {found!r}: return an Evaluation, as training.evaluate(agent, env) does"
            )
        evaluation = replace(found, step=self.step, seconds=self.seconds)
        self._evaluations.append(evaluation)
        for callback in self._callbacks:
            self._listen(callback, "on_evaluation", callback.on_evaluation(evaluation))

    def checkpoint_when_due(self) -> None:
        """Write a checkpoint, if `every` steps were taken since the last time; call it where a round of the loop ends.

        Raises:
            CheckpointError: It cannot be written.
            KeyboardInterrupt: Ctrl-C was pressed in this round; a checkpoint was written.
        """
        if self._checkpoints is None:
            return
        if self._checkpoints.interrupted:
            raise self._saved_interruption()
        if self.step < self._next_checkpoint:
            return
        while self._next_checkpoint <= self.step:
            self._next_checkpoint += self._checkpoints.every
        self._checkpoints.save(self.step, self._state)

    def checkpoint_at_the_end(self) -> None:
        """Write a last checkpoint; only a loop whose parts end before the session has to call it.

        If checkpoints begin new episodes, none is written between multiples of `every`, because a resumed run would
        then differ from an uninterrupted one.

        Raises:
            CheckpointError: It cannot be written.
        """
        if self._checkpoints is not None and self._checkpoints.exact:
            self._checkpoints.save(self.step, self._state)

    def _advanced(self) -> None:
        for callback in self._counting:
            self._listen(callback, "on_advance", callback.on_advance(self.step, self.seconds))

    def _learn_in_training_mode(self) -> None:
        if not isinstance(self._agent, Agent):
            return
        model = getattr(self._agent.alg, "model", None)  # evaluators may have put it alone into evaluation mode
        if not (self._agent.training and getattr(model, "training", True)):
            self._agent.train()

    def _listen(self, callback: Callback, method: str, said: Any) -> None:
        if said is None:
            return
        if not isinstance(said, str) or not said:
            raise TypeError(
                f"{type(callback).__name__}.{method}() returned {said!r}: return the reason to stop in words, or None "
                "to go on"
            )
        self._reasons.append(said)

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "next_evaluation": self._next_evaluation,
            "next_checkpoint": self._next_checkpoint,
            "evaluations": [evaluation.get_state() for evaluation in self._evaluations],
            "callbacks": {name: callback.get_state() for name, callback in self._named_callbacks().items()},
        }

    def _named_callbacks(self) -> dict[str, Callback]:
        """Return the callbacks and those that they call, and so on, by name, each once."""
        each: list[Callback] = []
        found = [*self._callbacks]
        for callback in found:  # which grows
            if all(callback is not one for one in each):
                each.append(callback)
                found += callback.called_callbacks
        seen: Counter[str] = Counter()
        named = {}
        for callback in each:
            kind = type(callback).__name__
            named[f"{kind}-{seen[kind]}"] = callback
            seen[kind] += 1
        return named

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unsaved = self._unsaved_at_the_end() if error is None else None
        if self._checkpoints is not None:
            self._checkpoints.await_rounds(False)
        stop, reason = self._why(error or unsaved)
        self.ended = Ended(stop, reason, self.step, self.seconds, self._evaluations)
        failures = tell_end(self._callbacks, self.ended)
        if unsaved is not None:
            raise unsaved
        if failures and error is None:
            raise failures[0]

    def _unsaved_at_the_end(self) -> BaseException | None:
        # Before `on_end` of the callbacks, because one of them may put other weights into the agent.
        try:
            if self._checkpoints is not None and self._checkpoints.interrupted:
                return self._saved_interruption()
            self.checkpoint_at_the_end()
        except Exception as error:
            return error
        return None

    def _saved_interruption(self) -> KeyboardInterrupt:
        assert self._checkpoints is not None, "only with checkpoints an interruption waits for the end of a round"
        self._checkpoints.notice_interruption()
        self.checkpoint_at_the_end()
        return KeyboardInterrupt()

    def _why(self, error: BaseException | None) -> tuple[Stop, str]:
        if isinstance(error, KeyboardInterrupt):
            return Stop.INTERRUPTED, f"interrupted after {self.step} {self._unit}"
        if error is not None:
            return Stop.FAILED, f"{type(error).__name__} after {self.step} {self._unit}: {error}"
        if self._reasons:
            return Stop.CALLBACK, "; ".join(self._reasons)
        return Stop.BUDGET, f"{self.step} {self._unit} were taken"


def _checked(callbacks: Any) -> Sequence[Callback]:
    """Return callbacks, each of which has every method that a session calls.

    Raises:
        HyperparameterError: They are no sequence, or one is something else.
    """
    if not isinstance(callbacks, Sequence):
        raise HyperparameterError(f"callbacks are a list, got {callbacks!r}: pass callbacks=[...]")
    for one in callbacks:
        if not isinstance(one, Callback):
            made = "a class" if isinstance(one, type) else f"a {type(one).__name__}"
            raise HyperparameterError(
                f"callbacks are objects of subclasses of training.Callback, got {made}, {one!r}: derive the "
                "class from it, and pass an object, such as callbacks=[Mine()]"
            )
    return callbacks


def _warn_of_unused(callbacks: Sequence[Callback], evaluator: Evaluator | None) -> None:
    """Warn of callbacks that need evaluations without an evaluator, and of methods that look like hooks."""
    kinds: list[type[Callback]] = list(dict.fromkeys(type(one) for one in callbacks))
    waiting = [kind.__name__ for kind in kinds if kind.needs_evaluations]
    if waiting and evaluator is None:
        logger.warning(
            "%s: no effect without evaluations, and the loop has no evaluator; pass for instance "
            "evaluator=lambda: training.evaluate(agent, env, episodes=10)",
            ", ".join(waiting),
        )
    hooks = [name for name in dir(Callback) if name.startswith("on_")]
    for kind in kinds:
        for name in dir(kind):
            if name.startswith("on_") and name not in hooks:
                near = difflib.get_close_matches(name, hooks, 1)
                hint = f"did you mean {near[0]}?" if near else f"loops call {', '.join(hooks)}"
                logger.warning("no loop calls %s.%s; %s", kind.__name__, name, hint)
