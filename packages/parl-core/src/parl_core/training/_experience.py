"""The columns that two kinds of actor-critics record while they act, and how they learn from them.

                    the policy says of a step      a fragment's end              the learner calls
VTraceExperience    logits                         the last observations         agent.learn (IMPALA)
RolloutExperience   value, log-probability         values of what was led to     agent.learn_rollout (A2C, A3C, PPO)
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations
from parl_core.contracts import batches
from parl_core.contracts.actions import ActionKind
from parl_core.env._steps import GroupStep
from parl_core.errors import HyperparameterError
from parl_core.returns import gae
from parl_core.seeding import make_generator
from parl_core.training.acting import Acting, begun, paired
from parl_core.training.fragment import FragmentBatch, FragmentSteps

__all__ = [
    "ActingExperience",
    "Choice",
    "Experience",
    "RolloutExperience",
    "VTraceExperience",
    "begun_after",
    "experience_of",
]


class Choice(NamedTuple):
    """What a policy said of observations.

    Attributes:
        action: `[n, *act]`, as the policy drew them.
        policy: what else it said, by name, `[n, ...]`.
        state: of a model with a memory, that after the step, `[n, ...]` by name; else empty.
    """

    action: NDArray[Any]
    policy: Mapping[str, NDArray[Any]]
    state: Mapping[str, NDArray[Any]]


def begun_after(state: Mapping[str, NDArray[Any]], step: GroupStep) -> Mapping[str, NDArray[Any]]:
    """Return the state after a step, before the next one: where an episode ended, that of a new one."""
    return begun(state, [ending.env_index for ending in step.endings]) if step.endings else state


class ActingExperience(Protocol):
    """An agent, seen from an actor that collects fragments."""

    def drawing_from(self, seed: int) -> AbstractContextManager[None]:
        """Provide a context in which `choose` draws what `seed` decides; no other generator is touched."""

    def begin(self, rows: int) -> Mapping[str, NDArray[Any]]:
        """Return the state before the first step of an episode, `[rows, ...]` by name; empty without a memory."""

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        """Draw actions for `[n, *obs]`, with the state before them."""

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        """Return it with the columns that only the actor can compute, and without those that learning does not need."""


class Experience(ActingExperience, Protocol):
    """An agent, seen from a loop in which acting and learning are apart."""

    def warm_up(self, obs: Observations) -> None:
        """Pass a batch through the model, so that layers without shapes get them."""

    def learn(self, batch: FragmentBatch, rates: Mapping[str, float]) -> Any:
        """Update the weights and return what `read` makes losses of; it may still be on the device."""

    def read(self, result: Any) -> Mapping[str, float]:
        """Return the losses of an update by name.

        Raises:
            DivergedError: one is not finite.
        """


class _Acted:
    """What both share: the agent, and the state of its memory, which the loop holds between two calls."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._acting = agent, Acting(agent, 1)

    def begin(self, rows: int) -> Mapping[str, NDArray[Any]]:
        return Acting(self._agent, rows).state


class VTraceExperience(_Acted):
    """Of IMPALA, whose targets correct for the lag.

    Args:
        agent: `parl.Agent` around IMPALA.
    """

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self._rng = np.random.default_rng()
        kind = getattr(getattr(agent, "alg", None), "actions", ActionKind())
        self._is_continuous = kind.continuous

    @contextmanager
    def drawing_from(self, seed: int) -> Iterator[None]:
        before, self._rng = self._rng, np.random.default_rng(seed)
        try:
            yield
        finally:
            self._rng = before

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        # Drawn on the host: for a few rows a framework takes five times as long (Gumbel-max: Maddison et al. 2014).
        self._acting.state = dict(state)
        logits = self._acting.logits(obs)
        if self._is_continuous:
            mean, log_std = np.split(logits, 2, axis=1)
            action = (mean + np.exp(log_std) * self._rng.normal(size=mean.shape)).astype(mean.dtype)
        else:
            action = (logits + self._rng.gumbel(size=logits.shape)).argmax(axis=1)
        return Choice(action, {"logits": logits}, self._acting.state)

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        return fragment

    def warm_up(self, obs: Observations) -> None:
        self._agent.logits(obs)
        self._agent.value(obs)

    def learn(self, batch: FragmentBatch, rates: Mapping[str, float]) -> Any:
        columns = {
            "obs": batch.obs,
            "action": batch.action,
            "behaviour_logits": batch.policy["logits"],
            "reward": batch.reward,
            "done": batch.terminated | batch.truncated,
        }
        optional = {"last_obs": batch.last_obs}
        if batch.final_obs is not None:
            optional |= {"final_rows": batch.final_rows, "final_obs": batch.final_obs}
        if batch.state:
            optional |= {"state": batch.state, "last_state": batch.last_state}
            optional |= {"final_state": batch.final_state} if batch.final_state else {}
        if getattr(self._agent, "takes_batches", False):
            return self._agent.learn_unread(batches.Fragment.made(**columns, **optional), **rates)
        return self._agent.learn(*columns.values(), **optional, **rates)

    def read(self, result: Any) -> Mapping[str, float]:
        losses, kl = self._agent.read(result) if getattr(self._agent, "takes_batches", False) else result
        return {**losses._asdict(), "kl": kl}


class RolloutExperience(_Acted):
    """Of algorithms that learn from advantages: A2C, A3C and PPO.

    Args:
        agent: `parl.Agent` around one of them.
        gamma: discount of the next step, in [0, 1].
        gae_lambda: how far advantages look ahead, in [0, 1].
        passes: `epochs` and `minibatch_size` of its `learn_rollout`; None leaves each to the algorithm.
        rng: draws the order of minibatches, of algorithms that have some.
    """

    def __init__(
        self,
        agent: Any,
        gamma: float,
        gae_lambda: float,
        passes: tuple[int | None, int | None],
        rng: np.random.Generator,
    ) -> None:
        super().__init__(agent)
        self._gamma, self._gae_lambda, self._rng = gamma, gae_lambda, rng
        self._epochs, self._minibatch_size = passes

    def drawing_from(self, seed: int) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = getattr(self._agent, "drawing_from", lambda _: nullcontext())(seed)
        return found

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        self._acting.state = dict(state)
        value, action, log_prob = self._acting.explore(obs)
        return Choice(np.asarray(action), {"value": value, "log_prob": log_prob}, self._acting.state)

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        value = fragment.policy["value"]
        next_value = np.empty_like(value)
        next_value[:, :-1] = value[:, 1:]
        next_value[:, -1] = self._acting.value(paired(fragment.last_obs, fragment.last_state))
        if fragment.final_obs is not None:
            values = self._acting.value(paired(fragment.final_obs, fragment.final_state))
            next_value.reshape(-1)[fragment.final_rows] = values
        policy = {**fragment.policy, "next_value": next_value}
        return replace(fragment, policy=policy, last_obs=None, final_obs=None, last_state={}, final_state={})

    def warm_up(self, obs: Observations) -> None:
        with self.drawing_from(0):
            self._agent.explore(obs)
        self._agent.value(obs)

    def learn(self, batch: FragmentBatch, rates: Mapping[str, float]) -> dict[str, float]:
        columns = batch.reward, batch.policy["value"], batch.policy["next_value"], batch.terminated, batch.truncated
        by_time = (column.reshape(-1, batch.n_steps).T for column in columns)
        advantage = gae(*by_time, gamma=self._gamma, lam=self._gae_lambda).T.reshape(-1)
        memory: dict[str, Any] = {}
        if batch.state:
            ended = (batch.terminated | batch.truncated).reshape(-1, batch.n_steps)
            begins = np.concatenate([np.zeros_like(ended[:, :1]), ended[:, :-1]], axis=1).reshape(-1)
            memory = {"state": dict(batch.state), "begins": begins}
        rollout = batches.Rollout.made(
            obs=batch.obs,
            action=batch.action,
            value=batch.policy["value"],
            return_=advantage + batch.policy["value"],
            log_prob=batch.policy["log_prob"],
            advantage=advantage,
            **memory,
        )
        losses: dict[str, float] = self._agent.learn_rollout(
            rollout, epochs=self._epochs, minibatch_size=self._minibatch_size, rng=self._rng, **rates
        )
        return losses

    def read(self, result: Any) -> Mapping[str, float]:
        found: Mapping[str, float] = result
        return found


def experience_of(
    agent: Any,
    *,
    n_steps: int,
    gamma: float,
    gae_lambda: float,
    passes: tuple[int | None, int | None] = (None, None),
    rng: np.random.Generator | None = None,
) -> Experience:
    """Return what fits the agent's algorithm.

    Args:
        agent: acts, learns, or both.
        n_steps: steps of a fragment.
        gamma: see `RolloutExperience`; IMPALA has its own.
        gae_lambda: see `RolloutExperience`.
        passes: see `RolloutExperience`; IMPALA takes one.
        rng: see `RolloutExperience`.

    Raises:
        TypeError: it is neither kind of actor-critic.
        HyperparameterError: IMPALA was made for fragments of another length, or is to learn from a batch in passes.
    """
    algorithm = getattr(agent, "alg", agent)
    own_steps = getattr(algorithm, "sample_batch_steps", None)
    if own_steps is not None:
        if own_steps != n_steps:
            raise HyperparameterError(
                f"the algorithm learns from fragments of sample_batch_steps={own_steps} steps, the loop makes some of "
                f"n_steps={n_steps}: give both the same number"
            )
        if passes != (None, None):
            raise HyperparameterError(
                f"IMPALA learns once from each batch: leave out epochs and minibatch_size, got {passes}"
            )
        return VTraceExperience(agent)
    if hasattr(algorithm, "learn_rollout"):
        return RolloutExperience(agent, gamma, gae_lambda, passes, make_generator(rng))
    raise TypeError(
        f"actors and a learner need an agent with IMPALA, A2C, A3C or PPO; {type(algorithm).__name__} learns in "
        "another way: see train_off_policy and train_by_episodes"
    )
