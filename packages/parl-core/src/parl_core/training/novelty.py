"""Novelty as a second reward of the on-policy loop: random network distillation (Burda et al. 2018, arXiv:1810.12894).

    rollout ──> novelty of what each step led to ──> returns over episodes' ends ──> advantage ─┐
                     agent of RND <── observations, returns ──┘                                 ├──> agent.learn_rollout
    rollout ──> rewards of the environment ──────────────────────────────────────> advantage ───┘

A policy learns from the sum of both advantages; each reward has a discount and values of its own (section 2.3).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.algorithm import AlgorithmState
from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.contracts.batches import Rollout
from parl_core.contracts.rnd import RND
from parl_core.errors import HyperparameterError
from parl_core.returns import gae
from parl_core.stats import RunningMeanStd

__all__ = ["NoveltyReward"]


class NoveltyReward:
    """A second reward: the novelty of the observation after a step.

        rnd = parl.Agent(parl.algorithms.RND(parl.networks.NoveltyNetwork()))
        train_on_policy(agent, envs, settings, novelty=NoveltyReward(rnd))

    Observations are normalised by running statistics and cut to [-clip, clip], novelty is divided by the running
    deviation of its discounted sums, and its returns go on over ends of episodes (paper, sections 2.3 and 2.4). Where
    an episode ended, the observation that counts is the next one's first.

    Args:
        agent: `parl.Agent` around RND.
        coef: weight of its advantage, at least 0; default 1 (paper).
        reward_coef: weight of the advantage of the environment's rewards, at least 0; default 2 (paper).
        gamma: discount of the next step's novelty, in [0, 1]; default 0.99 (paper).
        gae_lambda: how far its advantages look ahead, in [0, 1]; default 0.95 (paper).
        epochs: passes over each rollout; default 4 (paper).
        minibatch_size: rows of an update.
        share: of the rows, how many an epoch learns from, in (0, 1]; the more environments, the fewer.
        clip: of normalised observations, above 0; default 5 (paper).

    Raises:
        HyperparameterError: the agent's algorithm is another one, or a setting is out of range.
    """

    def __init__(
        self,
        agent: Any,
        *,
        coef: float = 1.0,
        reward_coef: float = 2.0,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        epochs: int = 4,
        minibatch_size: int = 64,
        share: float = 1.0,
        clip: float = 5.0,
    ) -> None:
        if not isinstance(getattr(agent, "alg", None), RND):
            raise HyperparameterError(f"NoveltyReward needs a parl.Agent around RND, got {agent!r}")
        self._agent = agent
        self._coef = check_non_negative("coef", coef)
        self._reward_coef = check_non_negative("reward_coef", reward_coef)
        self._gamma, self._lam = check_fraction("gamma", gamma), check_fraction("gae_lambda", gae_lambda)
        self._epochs, self._size = check_int("epochs", epochs), check_int("minibatch_size", minibatch_size)
        self._share, self._clip = check_fraction("share", share), check_positive("clip", clip)
        if self._share == 0.0:
            raise HyperparameterError("share must be above 0, otherwise nothing is learned from the observations")
        self._seen: RunningMeanStd | None = None
        self._returns = RunningMeanStd()
        self._running: NDArray[np.float64] | None = None
        self._rows: tuple[NDArray[Any], NDArray[Any]] | None = None
        self._mean = 0.0

    def advantage(self, own: NDArray[Any], rollout: Any, last_obs: Any) -> NDArray[Any]:
        """Return the advantages `[T, N]` that the policy learns from.

        Args:
            own: `[T, N]`, of the environment's rewards.
            rollout: `RolloutSteps`.
            last_obs: `[N, ...]`, what its last step led to.

        Raises:
            HyperparameterError: observations are no arrays of floats.
        """
        if not isinstance(rollout.obs, np.ndarray) or rollout.obs.dtype.kind != "f":
            raise HyperparameterError(
                "NoveltyReward normalises observations that are arrays of floats: wrap the environment in "
                "gymnasium.wrappers.FlattenObservation, or one that casts to float32"
            )
        length, count = rollout.obs.shape[:2]
        obs = self._normalised(np.concatenate([rollout.obs, np.asarray(last_obs)[None]]))
        rows = obs.reshape((length + 1) * count, *obs.shape[2:])
        novelty = self._agent.predict(rows).reshape(length + 1, count)[1:]
        value = self._agent.value(rows).reshape(length + 1, count)
        nothing = np.zeros((length, count), np.bool_)
        reward = self._scaled(novelty)
        found = gae(reward, value[:-1], value[1:], nothing, nothing, gamma=self._gamma, lam=self._lam)
        self._rows = rows[:-count], (found + value[:-1]).reshape(-1).astype(np.float32)
        self._mean = float(novelty.mean())
        return np.asarray(self._reward_coef * own + self._coef * found, own.dtype)

    def learn(self, rng: np.random.Generator) -> dict[str, float]:
        """Learn from the observations of the last rollout; return figures by name.

        Args:
            rng: draws the order of the minibatches.
        """
        assert self._rows is not None, "advantage comes first"
        obs, returns = self._rows
        action = np.zeros(len(obs), np.int64)
        count = max(1, round(self._share * len(obs)))
        losses: list[float] = []
        for _ in range(self._epochs):
            order = rng.permutation(len(obs))[:count]
            for first in range(0, count, self._size):
                rows = order[first : first + self._size]
                batch = Rollout.made(obs=obs[rows], action=action[rows], return_=returns[rows])
                losses.append(self._agent.learn(batch))
        return {"novelty": self._mean, "novelty_loss": float(np.mean(losses))}

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        found: AlgorithmState = self._agent.alg.get_state()
        return {
            "arrays": dict(found.arrays),
            "counters": dict(found.counters),
            "seen": None if self._seen is None else _state_of(self._seen),
            "returns": _state_of(self._returns),
            "running": self._running,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned."""
        self._agent.alg.set_state(AlgorithmState(dict(state["arrays"]), dict(state["counters"])))
        self._seen = None if state["seen"] is None else _from_state(state["seen"])
        self._returns = _from_state(state["returns"])
        self._running = None if state["running"] is None else np.array(state["running"])

    def _normalised(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return observations `[T, N, ...]` by the statistics of all that were seen, these included."""
        if self._seen is None:
            self._seen = RunningMeanStd(obs.shape[2:])
        self._seen.update(obs[1:].reshape(-1, *obs.shape[2:]))
        scaled = (obs - self._seen.mean) / np.sqrt(self._seen.var + 1e-8)
        return np.asarray(np.clip(scaled, -self._clip, self._clip), np.float32)

    def _scaled(self, novelty: NDArray[Any]) -> NDArray[np.float64]:
        """Return novelty `[T, N]` divided by the deviation of its discounted sums."""
        running = np.zeros(novelty.shape[1]) if self._running is None else self._running
        sums = np.empty(novelty.shape)
        for t, now in enumerate(novelty):
            running = self._gamma * running + now
            sums[t] = running
        self._running = running
        self._returns.update(sums.reshape(-1))
        return np.asarray(novelty / np.sqrt(self._returns.var + 1e-8), np.float64)


def _state_of(found: RunningMeanStd) -> dict[str, Any]:
    return {"mean": np.asarray(found.mean), "var": np.asarray(found.var), "count": float(found.count)}


def _from_state(state: Mapping[str, Any]) -> RunningMeanStd:
    found = RunningMeanStd(np.shape(state["mean"]))
    found.mean, found.var, found.count = np.array(state["mean"]), np.array(state["var"]), float(state["count"])
    return found
