"""The offline loop: draw a batch of logged data, learn from it, repeat; an environment is only for evaluation.

    dataset ── draw ──> agent.learn ──> figures ──> Course ──> callbacks (Update, Evaluation, Ended)

A step is a gradient step here, also in what callbacks are told.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from parl_core.checks import check_int
from parl_core.errors import HyperparameterError
from parl_core.offline import OfflineDataset
from parl_core.seeding import make_generator
from parl_core.training.checkpoints import Checkpoints, LoopParts, SavedAgent
from parl_core.training.course import Course
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended
from parl_core.training.figures import Figures
from parl_core.training.requirements import require_offline

__all__ = ["OfflineAgent", "OfflineSettings", "train_offline"]


class OfflineAgent(Protocol):
    """What the offline loop needs; `parl.Agent` around CQL, IQL, OfflineQ, DecisionTransformer, DQN or SAC is one."""

    @property
    def alg(self) -> Any:
        """The algorithm; one with `draw_batch(dataset, n, rng)` says itself what a batch is."""

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Learn from the columns of a batch; returns a loss, or several."""


@dataclass(frozen=True)
class OfflineSettings:
    """Hyper-parameters of the loop.

    Attributes:
        updates: gradient steps.
        batch_size: rows (or windows) of a batch.
        report_every: gradient steps between two reports to the callbacks, which get mean figures.
    """

    updates: int = 100_000
    batch_size: int = 256
    report_every: int = 1_000

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "report_every"):
            check_int(name, getattr(self, name))


def train_offline(
    agent: OfflineAgent,
    dataset: OfflineDataset,
    settings: OfflineSettings,
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 10_000,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on logged data until the budget is used up or a callback stops it.

    Args:
        agent: learns.
        dataset: what it learns from.
        settings: hyper-parameters of the loop.
        evaluator: plays episodes with the agent as it is now; None evaluates never.
        evaluate_every: gradient steps between evaluations.
        callbacks: told of reports and evaluations, and once of the end, however it comes.
        checkpoints: writes checkpoints, and lets a resumed run go on from its newest one; None for neither.
        seed: of the batches. (The algorithm's own draws are the backend's.)
        clock: seconds from an arbitrary zero.

    Returns:
        how it ended.

    Raises:
        HyperparameterError: the batch is larger than the dataset, or the algorithm does not learn from logged data.
        CheckpointError: a checkpoint cannot be written, or the run's cannot be used.
        DivergedError: a figure is not finite; callbacks that save have not saved since.
        Exception: what the agent or a callback raised, after the callbacks were told.
    """
    require_offline(agent)
    if len(dataset) < settings.batch_size:
        raise HyperparameterError(
            f"{dataset.source} has {len(dataset)} transitions, batch_size is {settings.batch_size}: record more, or "
            "use a smaller batch"
        )
    draw: Callable[..., Mapping[str, Any]] = getattr(agent.alg, "draw_batch", OfflineDataset.draw)
    rng = make_generator(seed)
    figures = Figures(getattr(agent.alg, "FIGURES", ("loss",)))
    with Course(
        settings.updates, callbacks, evaluator, evaluate_every, clock, unit="updates", checkpoints=checkpoints
    ) as course:
        course.keep(LoopParts(cast("SavedAgent", agent), others={"rng": rng, "figures": figures}))
        while course.goes_on:
            figures.add(agent.learn(**draw(dataset, settings.batch_size, rng)))
            course.advance(1)
            if course.step % settings.report_every == 0 or course.step == settings.updates:
                course.report(figures.take_means())
            course.evaluate_when_due()
            course.checkpoint_when_due()
    return course.ended
