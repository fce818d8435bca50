"""The on-policy loop: collect a rollout, estimate advantages, learn from it, forget it.

    envs <──── actions ──── RolloutCollector ───> Rollout ──> gae ──> agent.learn_rollout
         ─── observations ──>                                              │
    callbacks <── Update, Evaluation, Ended ── Course <────────────────────┘

Nothing here knows a framework, where the environments live, or what is written to disk.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.contracts.on_policy import RolloutBatch
from parl_core.env.autoreset import require_vector
from parl_core.errors import HyperparameterError
from parl_core.nested import map_nested
from parl_core.returns import gae
from parl_core.schedules import Schedule
from parl_core.seeding import make_generator
from parl_core.training.acting import OnPolicyAgent
from parl_core.training.checkpoints import Checkpoints, LoopParts, SavedAgent
from parl_core.training.course import Course
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended
from parl_core.training.requirements import require_on_policy
from parl_core.training.rollout import Rollout, RolloutCollector

__all__ = ["OnPolicySettings", "train_on_policy"]


@dataclass(frozen=True)
class OnPolicySettings:
    """Hyper-parameters of the loop; defaults are those of the PPO paper for MuJoCo (arXiv:1707.06347, table 3).

    What is None is left to the algorithm, with what it was made with. Learning rate, clip range and entropy coefficient
    may be schedules here: functions of the environment steps taken, such as `parl_core.schedules.linear(3e-4, 0, 1e6)`.

    Attributes:
        total_steps: environment steps, over all environments; the last rollout is always completed.
        n_steps: steps of every environment in one rollout.
        epochs: passes over each rollout, of PPO (10 by default); A2C and PolicyGradient always take one.
        minibatch_size: samples of one gradient step, of PPO (64 by default); need not divide the rollout.
        gamma: discount of the next step, in [0, 1].
        gae_lambda: how far advantages look ahead, in [0, 1]; 0 is one step, 1 the whole rollout.
        lr: learning rate, or what it is at the beginning.
        clip: clip range, or what it is at the beginning, of PPO.
        decay: whether learning rate and clip range go linearly to 0 over `total_steps`.
        entropy_coef: weight of the entropy bonus, at least 0.
        target_kl: where given, passes over a rollout end early when the policy has moved this far; of PPO.
    """

    total_steps: int = 1_000_000
    n_steps: int = 2048
    epochs: int | None = None
    minibatch_size: int | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    lr: float | Schedule | None = None
    clip: float | Schedule | None = None
    decay: bool = False
    entropy_coef: float | Schedule | None = None
    target_kl: float | None = None

    def __post_init__(self) -> None:
        for name in ("total_steps", "n_steps"):
            check_int(name, getattr(self, name))
        for name in ("epochs", "minibatch_size"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        for name in ("lr", "clip", "target_kl"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                check_positive(name, getattr(self, name))
        if self.entropy_coef is not None and not callable(self.entropy_coef):
            check_non_negative("entropy_coef", self.entropy_coef)
        if self.decay and (self.lr is None or callable(self.lr) or callable(self.clip)):
            raise HyperparameterError(
                f"decay=True lets the numbers lr and clip go to 0, got lr={self.lr!r} and clip={self.clip!r}; "
                "give numbers, or schedules and decay=False"
            )

    def with_total_steps(self, total_steps: int) -> "OnPolicySettings":
        """The same with another budget of environment steps."""
        return replace(self, total_steps=total_steps)

    def scheduled(self, step: int) -> dict[str, float]:
        """Learning rate, clip range and entropy coefficient after `step` environment steps, as far as they are given.

        Raises:
            HyperparameterError: a schedule gives what is no number of at least 0.
        """
        left = max(0.0, 1.0 - step / self.total_steps) if self.decay else 1.0
        values = {"lr": self.lr, "clip": self.clip, "entropy_coef": self.entropy_coef}
        now = {name: value(step) if callable(value) else value for name, value in values.items() if value is not None}
        return {
            name: check_non_negative(name, value) * (1.0 if name == "entropy_coef" else left)
            for name, value in now.items()
        }


def train_on_policy(
    agent: OnPolicyAgent,
    envs: Any,
    settings: OnPolicySettings,
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 2048,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on the experience of its own policy until the budget is used up or a callback stops it.

    Args:
        agent: acts and learns; `parl.Agent` around PPO, A2C or PolicyGradient is one.
        envs: a vector environment, such as `make_vector_env` gives; the caller closes it.
        settings: hyper-parameters of the loop.
        evaluator: plays episodes with the agent as it is now; None evaluates never.
        evaluate_every: environment steps between evaluations, rounded up to whole rollouts.
        callbacks: told of every update and evaluation, and once of the end, however it comes.
        checkpoints: writes checkpoints, and lets a resumed run go on from its newest one; None for neither.
        seed: of the environments and of the order of minibatches. (The agent's own sampling is the backend's.)
        clock: seconds from an arbitrary zero.

    Returns:
        how it ended.

    Raises:
        HyperparameterError: the algorithm does not learn on-policy, or a schedule leaves its range.
        CheckpointError: a checkpoint cannot be written, or the run's cannot be used.
        DivergedError: a loss or a weight is not finite; callbacks that save have not saved since.
        KeyboardInterrupt: after the callbacks were told.
        Exception: what an environment, the agent or a callback raised, after the callbacks were told.
    """
    require_vector(envs)
    require_on_policy(agent)
    rng = make_generator(seed)
    with Course(settings.total_steps, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as course:
        course.watch(envs, seed)
        collector = RolloutCollector(agent, envs, settings.n_steps, seed)
        course.keep(LoopParts(cast("SavedAgent", agent), collector, others={"rng": rng}))
        while course.goes_on:
            schedules = settings.scheduled(course.step)
            rollout = collector.collect()
            losses = agent.learn_rollout(
                _learnable(rollout, settings),
                epochs=settings.epochs,
                minibatch_size=settings.minibatch_size,
                rng=rng,
                target_kl=settings.target_kl,
                **schedules,
            )
            course.advance(rollout.reward.size)
            course.report(losses, rollout.episodes, schedules)
            course.evaluate_when_due()
            course.checkpoint_when_due()
    return course.ended


def _learnable(rollout: Rollout, settings: OnPolicySettings) -> RolloutBatch:
    advantage = gae(
        rollout.reward,
        rollout.value,
        rollout.next_value,
        rollout.terminated,
        rollout.truncated,
        gamma=settings.gamma,
        lam=settings.gae_lambda,
    )

    def rows(array: Any) -> Any:
        return array.reshape(-1, *array.shape[2:])

    return RolloutBatch(
        obs=map_nested(rows, rollout.obs),
        action=rows(rollout.action),
        value=rows(rollout.value),
        return_=rows(advantage + rollout.value),
        log_prob=rows(rollout.log_prob),
        advantage=rows(advantage),
    )
