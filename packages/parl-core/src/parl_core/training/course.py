"""What every training loop does around its updates: count, tell callbacks, evaluate when due, and end in good order.

with Course(total_steps, callbacks, evaluator, evaluate_every, clock) as course:
    while course.goes_on:
        ...                                    # the loop's own: act, learn
        course.advance(steps)
        course.report(losses, episodes)        # ── Update ──────> callbacks
        course.evaluate_when_due()             # ── Evaluation ──> callbacks
return course.ended                            # ── Ended ───────> callbacks, however the block was left
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from parl_core.checks import check_finite, check_int
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, Episode, Evaluation, Stop, Update, tell_end

__all__ = ["Course"]


class Course:
    """One run of a loop.

    Args:
        total_steps: the budget.
        callbacks: told of every update and evaluation, and once of the end.
        evaluator: plays episodes with the agent as it is now; None evaluates never.
        evaluate_every: steps between evaluations.
        clock: seconds from an arbitrary zero.
        unit: what is counted, for messages.
    """

    ended: Ended
    """How it ended; there after the block."""

    def __init__(
        self,
        total_steps: int,
        callbacks: Sequence[Callback],
        evaluator: Evaluator | None,
        evaluate_every: int,
        clock: Callable[[], float],
        *,
        unit: str = "steps",
    ) -> None:
        self.step = 0
        self._total, self._unit = total_steps, unit
        self._callbacks, self._evaluator, self._clock = callbacks, evaluator, clock
        self._evaluate_every = self._next_evaluation = check_int("evaluate_every", evaluate_every)
        self._evaluations: list[Evaluation] = []
        self._reasons: list[str] = []
        self._began = clock()

    @property
    def goes_on(self) -> bool:
        """Whether the budget has something left and no callback asked to stop."""
        return self.step < self._total and not self._reasons

    @property
    def seconds(self) -> float:
        """Since the course began."""
        return self._clock() - self._began

    def advance(self, steps: int) -> None:
        """Count steps that were taken."""
        self.step += steps

    def report(
        self,
        losses: Mapping[str, float],
        episodes: Sequence[Episode] = (),
        schedules: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Tell the callbacks of an update.

        Args:
            losses: what it returned, by name.
            episodes: those that ended since the last report.
            schedules: scheduled values that were used, by name.
            metrics: further numbers, by their whole names.

        Raises:
            DivergedError: a loss is not finite.
        """
        check_finite(f"update after {self.step} {self._unit}", losses)
        update = Update(self.step, self._total, self.seconds, episodes, losses, schedules or {}, metrics or {})
        self._reasons += [said for callback in self._callbacks if (said := callback.on_update(update))]

    def evaluate_when_due(self) -> None:
        """Evaluate, if `evaluate_every` steps were taken since the last time, and tell the callbacks."""
        if self._evaluator is None or self.step < self._next_evaluation:
            return
        self._next_evaluation += self._evaluate_every
        evaluation = replace(self._evaluator(), step=self.step, seconds=self.seconds)
        self._evaluations.append(evaluation)
        self._reasons += [said for callback in self._callbacks if (said := callback.on_evaluation(evaluation))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop, reason = self._why(error)
        self.ended = Ended(stop, reason, self.step, self.seconds, self._evaluations)
        failures = tell_end(self._callbacks, self.ended)
        if failures and error is None:
            raise failures[0]

    def _why(self, error: BaseException | None) -> tuple[Stop, str]:
        if isinstance(error, KeyboardInterrupt):
            return Stop.INTERRUPTED, f"interrupted after {self.step} {self._unit}"
        if error is not None:
            return Stop.FAILED, f"{type(error).__name__} after {self.step} {self._unit}: {error}"
        if self._reasons:
            return Stop.CALLBACK, "; ".join(self._reasons)
        return Stop.BUDGET, f"{self.step} {self._unit} were taken"
