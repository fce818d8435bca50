"""The hyper-parameters of the actors-and-learner loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.errors import HyperparameterError
from parl_core.schedules import Schedule

__all__ = ["ActorLearnerSettings"]

Scheduled = float | Schedule


@dataclass(frozen=True)
class ActorLearnerSettings:
    """Hyper-parameters of the loop; a step is one step of one environment.

    Environments come in groups, each of which one actor steps together and one forward pass serves. With the same
    groups, `deterministic=True` gives the same bits however many actors there are.

    Attributes:
        total_steps: that are learned from, over all environments; the last batch is always completed.
        n_actors: actors, each with `groups / n_actors` groups.
        groups: of environments; default: one an actor.
        envs_per_group: environments of one group.
        n_steps: steps of every environment in one fragment; for IMPALA its `sample_batch_steps`.
        batch_fragments: fragments (`envs_per_group * n_steps` steps each) of one update; default: one of every group.
        max_lag: updates that the weights which acted may lie behind those that learn from it; 0 makes rounds, in which
            actors and learner take turns, as on-policy algorithms want it. So `(max_lag + 1) * batch_fragments`
            fragments are under way or wait at most.
        deterministic: learn from fragments in the order of their numbers and not of their arrival.
        inference: `"actors"`: each has a copy of the agent; `"learner"`: it chooses all actions (GA3C).
        max_wait_s: of inference on the learner: how long one pass waits for more environments once one is ready. With
            `deterministic`, passes wait for all.
        gamma: discount of the next step, in [0, 1]; of advantages (A2C, PPO), IMPALA has its own.
        gae_lambda: how far advantages look ahead, in [0, 1]; 1, A2C's, to the end of the fragment.
        epochs: passes over each batch, of PPO (10 by default); the others always take one.
        minibatch_size: samples of one gradient step, of PPO (64 by default).
        rates: arguments of the algorithm's `learn` (or `learn_rollout`) by name, such as
            `{"learning_rate": linear(1e-3, 0.0, 1e6)}`: numbers, or schedules of the steps learned from.
        report_every: steps between two reports to the callbacks, which get mean losses.
        timeout_s: longest time for one answer of an actor, a whole fragment or with inference on the learner a step,
            its start included; who takes longer is replaced. None has no limit. (In this process nothing can be ended.)
        max_failures: how often in a row the environments of a group may raise, hang, or lose their actor, before the
            run ends with the last error; ten times as often where the actor's host was lost or somebody stopped it.
    """

    total_steps: int = 1_000_000
    n_actors: int = 2
    groups: int | None = None
    envs_per_group: int = 5
    n_steps: int = 50
    batch_fragments: int | None = None
    max_lag: int = 2
    deterministic: bool = False
    inference: str = "actors"
    max_wait_s: float = 0.002
    gamma: float = 0.99
    gae_lambda: float = 1.0
    epochs: int | None = None
    minibatch_size: int | None = None
    rates: Mapping[str, Scheduled] = field(default_factory=dict)
    report_every: int = 10_000
    timeout_s: float | None = None
    max_failures: int = 3

    def __post_init__(self) -> None:
        for name in ("total_steps", "n_actors", "envs_per_group", "n_steps", "report_every"):
            check_int(name, getattr(self, name))
        for name in ("groups", "batch_fragments", "epochs", "minibatch_size"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))
        for name in ("max_lag", "max_failures"):
            check_int(name, getattr(self, name), at_least=0)
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        check_non_negative("max_wait_s", self.max_wait_s)
        if self.timeout_s is not None:
            check_positive("timeout_s", self.timeout_s)
        if self.inference not in ("actors", "learner"):
            raise HyperparameterError(f"inference must be 'actors' or 'learner', got {self.inference!r}")
        if self.n_groups % self.n_actors:
            raise HyperparameterError(
                f"{self.n_groups} groups cannot be shared evenly by {self.n_actors} actors: give a multiple"
            )
        if self.max_lag == 0 and self.fragments_per_batch % self.n_groups:
            raise HyperparameterError(
                f"max_lag=0 makes rounds, so batch_fragments must be a multiple of the {self.n_groups} groups, got "
                f"{self.batch_fragments}; or let max_lag be 1"
            )

    @property
    def resumes_exactly(self) -> bool:
        """Whether a run that goes on from a checkpoint is the run that was never stopped; else it resumes loosely."""
        return self.deterministic or (self.max_lag == 0 and self.inference == "actors")

    def with_total_steps(self, total_steps: int) -> "ActorLearnerSettings":
        """The same with another budget of environment steps."""
        return replace(self, total_steps=total_steps)

    @property
    def n_groups(self) -> int:
        """Groups in all."""
        return self.n_actors if self.groups is None else self.groups

    @property
    def fragments_per_batch(self) -> int:
        """Fragments of one update."""
        return self.n_groups if self.batch_fragments is None else self.batch_fragments
