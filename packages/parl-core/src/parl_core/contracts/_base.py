"""The bases of algorithms, and their hyper-parameters with sources and schedules.

A setting comes from an argument, from PARL 1.x's dictionary `hyperparas`, or from the defaults. It is a number or a
schedule of the updates taken so far; a call may give another number for one update.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, TypedDict, Unpack, get_args, get_origin

import numpy as np

from parl_core._deprecation import STEPS_OF_PARL2
from parl_core.algorithm import Algorithm
from parl_core.checks import check_all_known, check_non_negative, check_positive, check_real
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.batches import Rollout
from parl_core.errors import HyperparameterError
from parl_core.schedules import Schedule, Scheduled, values_of_stages

__all__ = [
    "CountingUpdates",
    "OnPolicy",
    "RolloutSettings",
    "Scheduled",
    "check_by_name",
    "check_rates",
    "check_schedule",
    "check_stages",
    "merge",
    "refuse_unused",
    "unused_settings",
]


def merge(
    algorithm: str, hyperparas: Mapping[str, Any] | None, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Determine every setting in `defaults`.

    Args:
        algorithm: Name, for messages.
        hyperparas: PARL 1.x's dictionary, or None.
        given: Arguments; None means not given. A dictionary in the place of the first one counts as `hyperparas`, as in
            PARL 1.x's manual.
        defaults: Default value of each setting.

    Raises:
        HyperparameterError: The dictionary has an unknown name, or one that was also given as an argument.
    """
    arguments = {name: value for name, value in given.items() if value is not None}
    in_place = [name for name, value in arguments.items() if isinstance(value, Mapping)]
    if len(in_place) == 1 and hyperparas is None:
        hyperparas = arguments.pop(in_place[0])
    old = dict(hyperparas or {})
    check_all_known(algorithm, old, tuple(defaults))
    twice = sorted(set(old) & set(arguments))
    if twice:
        raise HyperparameterError(
            f"{algorithm} got {', '.join(twice)} both in `hyperparas` and as an argument; drop PARL 1.x's `hyperparas`"
        )
    return {**defaults, **old, **arguments}


def check_schedule(name: str, value: Any, check: Callable[[str, object], float]) -> Scheduled:
    """Return a number that `check` accepts, or a schedule whose value at the start it accepts; see `check_stages`.

    Raises:
        HyperparameterError: The value is not accepted; for a schedule, the message has its value at step 0.
    """
    if callable(value):
        check(f"{name} at the start of its schedule", value(0))
    return check_stages(name, value, check)


def check_stages(name: str, value: Any, check: Callable[[str, object], float]) -> Scheduled:
    """Return a number that `check` accepts, or a schedule of `parl_core.schedules` whose values it accepts or are 0.

    A function of the user is returned unchecked.

    Raises:
        HyperparameterError: The number or a value of the schedule is not accepted; the message has the value.
    """
    if not callable(value):
        return check(name, value)
    schedule: Schedule = value
    for one in values_of_stages(schedule):
        (check_non_negative if check is check_positive else check)(f"{name} of {schedule!r}", one)
    return schedule


def check_by_name(name: str, given: object, example: str) -> None:
    """Reject a setting of a loop that is not a dictionary of numbers or schedules by name.

    Raises:
        HyperparameterError: It is not; the message has the value and an example.
    """
    if not isinstance(given, Mapping):
        raise HyperparameterError(f"{name} is a dictionary such as {example}, got {given!r}")


def check_rates(rates: Mapping[str, Scheduled]) -> None:
    """Reject rates of a loop that are or become negative, except for `entropy_coeff`, which is negative in PARL 2.x.

    Raises:
        HyperparameterError: They are not a dictionary, or one is negative; the message names the rate and the value.
    """
    check_by_name("rates", rates, '{"learning_rate": 1e-3}')
    for name, value in rates.items():
        check_stages(f"the rate {name}", value, check_real if name == "entropy_coeff" else check_non_negative)


def _signature(cls: type[Algorithm]) -> inspect.Signature:
    """Return a constructor's signature; `**settings: Unpack[...]` stands for the settings of that name of its base."""
    _, *parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
    if parameters and get_origin(parameters[-1].annotation) is Unpack:
        (settings,) = get_args(parameters.pop().annotation)
        inherited = inspect.signature(cls.__mro__[1]).parameters.values()
        parameters += [one for one in inherited if one.name in settings.__annotations__]
    return inspect.Signature(parameters)


class CountingUpdates(Algorithm):
    """Base of algorithms whose hyper-parameters may be schedules: counts the updates, also in saved state."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("updates",)

    updates: int = 0
    """Gradient steps taken."""

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__signature__ = _signature(cls)
        is_own = cls.learn.__module__.partition(".")[0] != __package__.partition(".")[0]  # a method of the program
        if not is_own and not {"loss", "critic_loss", "actor_loss"} & vars(cls).keys():
            for name in STEPS_OF_PARL2.keys() & vars(cls).keys():
                raise TypeError(
                    f"{cls.__name__} defines {name}, which learn called in PARL 2.x and does not call here: "
                    f"{STEPS_OF_PARL2[name]}"
                )

    def _now(
        self,
        name: str,
        own: Scheduled,
        given: Any = None,
        *,
        check: Callable[[str, object], float] = check_non_negative,
        given_as: str | None = None,
    ) -> Any:
        """Return the value for this update: that of the call (a number or a tensor), else the constructor's.

        A schedule may reach 0, unlike a number; `check` determines the other allowed values.
        """
        if isinstance(given, (int, float, str, np.generic)):
            return check(given_as or name, given)
        if given is not None:
            return given.reshape([])  # [1] in programs of PARL 1.x, whose losses would have this axis as well
        if not callable(own):
            return own
        return self._value_before_update(lambda: check(f"{name} of {own!r} at step {self.updates}", own(self.updates)))

    def _count_update(self) -> None:
        self.updates += 1

    def _at_start(self, own: Scheduled) -> float:
        return own(0) if callable(own) else own

    def _own_rate(self, optimizer: Any, given: Any, rate: Scheduled) -> Any:
        """Return the learning rate of the steps; None keeps the rate of an optimizer that was given without one."""
        return None if optimizer is not None and given is None else rate


class RolloutSettings(TypedDict, total=False):
    """Keywords of `OnPolicy.learn_rollout`; None, or a missing keyword, is the algorithm's default.

    Attributes:
        epochs: Passes over the rollout.
        minibatch_size: Rows per step.
        lr: Learning rate.
        clip: Clip range.
        entropy_coef: Weight of the entropy *bonus*, at least 0.
        target_kl: KL divergence from the old policy at which to stop early.
    """

    epochs: int | None
    minibatch_size: int | None
    lr: float | None
    clip: float | None
    entropy_coef: float | None
    target_kl: float | None


_OF_ONE_AGENT = frozenset({"normalize", "n_step", "prioritized", "hindsight"})


def unused_settings(algorithm: type[Algorithm]) -> frozenset[str]:
    """Return the settings of loops and recipes that an algorithm does not use.

    A team learns from unmodified transitions, which are drawn uniformly and one step at a time.
    """
    return algorithm.UNUSED if algorithm.TEAM is None else algorithm.UNUSED | _OF_ONE_AGENT


def refuse_unused(algorithm: Algorithm, **given: Any) -> None:
    """Reject settings of `learn_rollout` that an algorithm does not use, instead of ignoring them silently.

    Raises:
        HyperparameterError: One of them is not None.
    """
    listed = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    if listed:
        raise HyperparameterError(
            f"{type(algorithm).__name__} takes one step on each whole rollout and has no use for {listed}; leave it "
            f"out, or use {'PPO' if algorithm.TEAM is None else 'MAPPO or IPPO'}"
        )


class OnPolicy(CountingUpdates):
    """Base of algorithms that learn from the experience of their own policy."""

    NO_ROLLOUTS: ClassVar[str] = ""
    """The name of a form of an algorithm without `learn_rollout`, and its replacement, for messages."""

    REPLACED_IN_LOOPS: ClassVar[Mapping[str, str]] = {"sample": "explore"}
    """Methods that loops do not call, with those that they call in their place."""

    actions: ActionKind

    _outputs: int | None = None
    _gives_logits: bool = False
    _acts_with: str = "policy"

    def explore(self, obs: Any, action_mask: Any = None) -> Any:
        """Draw actions, with the values that learning from them needs.

        Args:
            obs: `[batch, ...]`, or a dictionary of arrays.
            action_mask: bool `[batch, act_dim]`, True where an action is possible.

        Returns:
            (value `[batch]`, action `[batch, ...]`, log-probability of the action `[batch]`).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define explore()")

    def value(self, obs: Any) -> Any:
        """Return the values `[batch]` of observations `[batch, ...]`, or of a dictionary of such."""
        raise NotImplementedError(f"{type(self).__name__} does not define value()")

    def learn_rollout(
        self, batch: Rollout, *, rng: np.random.Generator, **settings: Unpack[RolloutSettings]
    ) -> dict[str, float]:
        """Learn from one rollout.

        Args:
            batch: The rollout.
            rng: The generator that draws the order of the minibatches.
            settings: The settings of this call.

        Returns:
            Losses by name, means over the steps taken; and `steps`.

        Raises:
            HyperparameterError: The algorithm does not use a given value.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define learn_rollout()")

    def check_policy(self, obs: Any) -> None:
        """Reject a policy that does not return a tensor of logits, or valid Gaussians for continuous actions.

        Args:
            obs: `[n, ...]`, or a dictionary of arrays.

        Raises:
            ModelContractError: The output is invalid; the message names the method and the required output.
        """
        if self.actions.continuous:
            self._require_gaussians(self._acts_with, obs, after=int(self.actions.nvec is not None))
        elif not self._gives_logits:
            self._require_logits(self._acts_with, obs)
            self._gives_logits = True

    def settle_shapes(self, obs: Any, action: Any) -> None:
        """Run the values once where they have lazily shaped layers."""
        if self.model._waiting():
            # the first update raises it with an explanation
            with self._trying_out(obs, action) as (rows, _, _), suppress(Exception):
                self.value(rows)
        super().settle_shapes(obs, action)

    # Shared

    def _fitted(self, batch: Rollout) -> Rollout:
        self.check_policy(batch.obs)
        return batch

    def _with_checked_actions(self, batch: Rollout) -> Rollout:
        """Return a batch of arrays with its actions and its mask checked, and the policy at the first one."""
        batch = self._fitted(batch)
        if self._outputs is None and self.actions == ActionKind():
            self._outputs = self._output_size(self._acts_with, batch.obs)
        action = self.actions.column("action", batch.action, self._outputs)
        mask = self.actions.mask(batch.action_mask, batch.obs, action)
        return batch.made(**{**batch.__dict__, "action": action, "action_mask": mask})
