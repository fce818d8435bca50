"""Novelty as a second reward of the on-policy loop: random network distillation (Burda et al. 2018, arXiv:1810.12894).

    rollout ──> novelty of the next observations ──> returns over episodes' ends ──> advantage ─┐
                     agent of RND <── observations, returns ──┘                                 ├──> agent.learn_rollout
    rollout ──> rewards of the environment ──────────────────────────────────────> advantage ───┘

A policy learns from the sum of both advantages; each reward has its own discount and values (section 2.3).
"""

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core import backends
from parl_core._encoders import parts_of
from parl_core._nested import Observations, holds_tensors, leaves
from parl_core.algorithm import AlgorithmState
from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.contracts.batches import Rollout
from parl_core.contracts.rnd import RND
from parl_core.errors import HyperparameterError
from parl_core.networks import Body
from parl_core.returns import gae
from parl_core.stats import RunningMeanStd

__all__ = ["NoveltyReward", "make_novelty"]


class NoveltyReward:
    """A second reward: the novelty of the observation after a step.

        rnd = parl.Agent(parl.algorithms.RND(parl.networks.NoveltyNetwork()))
        train_on_policy(agent, envs, settings, novelty=NoveltyReward(rnd))

    Observations are arrays of numbers, or dictionaries of arrays, which count as one vector. They
    are normalised by running statistics and clipped to [-clip, clip]. Novelty is divided by the running
    deviation of its discounted sums, and its returns continue over ends of episodes (paper, sections 2.3 and 2.4). At
    the end of an episode, the observation after the step is the first one of the next episode.

    Args:
        agent: `parl.Agent` around RND.
        coef: weight of its advantage, at least 0; default 1 (paper).
        reward_coef: weight of the advantage of the environment's rewards, at least 0; default 2 (paper).
        gamma: discount of the next step's novelty, in [0, 1]; default 0.99 (paper).
        gae_lambda: lambda of the novelty's advantages, in [0, 1]; default 0.95 (paper).
        epochs: passes over each rollout; default 4 (paper).
        minibatch_size: rows of an update.
        share: share of the rows that an epoch learns from, in (0, 1]; use less with more environments.
        clip: of normalised observations, above 0; default 5 (paper).

    Raises:
        HyperparameterError: the agent's algorithm is not RND, or a setting is out of range.
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
            last_obs: `[N, ...]`, or a dictionary of such: the observations after its last step.

        Raises:
            HyperparameterError: observations are tensors, or those of several agents.
        """
        if own.ndim != 2 or holds_tensors(rollout.obs):
            raise HyperparameterError(
                "NoveltyReward is for environments of one agent with numpy arrays, got "
                f"{'tensors' if own.ndim == 2 else f'advantages of shape {list(own.shape)}'}: leave out novelty"
            )
        length, count = own.shape
        seen, last = _as_one_array(rollout.obs, 2), _as_one_array(last_obs, 1)
        obs = self._normalised(np.concatenate([seen, last[None]]))
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
            "others": json.dumps(found.others),
            "seen": None if self._seen is None else _state_of(self._seen),
            "returns": _state_of(self._returns),
            "running": self._running,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        others = json.loads(state.get("others", "{}"))  # checkpoints of older versions lack it
        self._agent.alg.set_state(AlgorithmState(dict(state["arrays"]), dict(state["counters"]), others))
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


def make_novelty(observation_space: Any, options: Mapping[str, Any], **common: Any) -> NoveltyReward:
    """Return a second reward for an environment's observations, with a network that suits them.

        make_novelty(env.observation_space, {"coef": 0.5, "lr": 1e-3, "hidden": (128,)}, device="cpu")

    Args:
        observation_space: of one environment; images get the encoder of `parl.networks.for_spaces`.
        options: arguments of `NoveltyReward`, `RND` and `parl.networks.NoveltyNetwork`, by name.
        common: arguments of `RND` alone: `device`, `compile`.

    Raises:
        HyperparameterError: an option is out of range.
        TypeError: an option is unknown.
    """
    backend = backends.current()
    left = dict(options)
    network = {name: left.pop(name) for name in ("features",) if name in left}
    rnd = {name: left.pop(name) for name in ("lr", "value_loss_coef") if name in left}
    shape = observation_space.shape or (1,)  # single numbers are a vector of one, and dictionaries are one vector
    # Inputs of the network are normalised, so an image without bounds is neither shifted nor divided.
    parts = None if len(shape) == 1 else parts_of(gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32))
    body = Body(left.pop("hidden", (64, 64)), observed=parts)
    model = backend.networks.NoveltyNetwork(**network, body=body)
    model.obs_ndim = len(shape)
    return NoveltyReward(backend.Agent(backend.algorithms.RND(model, **rnd, **common)), **left)


def _as_one_array(observations: Observations, leading: int) -> NDArray[Any]:
    """Return one array: single numbers become vectors, and the arrays of a dictionary are concatenated.

    Args:
        observations: Observations of the environments.
        leading: the number of axes before those of one observation.
    """
    if not isinstance(observations, Mapping):
        array = np.asarray(observations)
        return array[..., None] if array.ndim == leading else array
    flat = [array.reshape(*array.shape[:leading], -1) for array in leaves("", observations).values()]
    return np.concatenate(flat, axis=-1)


def _state_of(found: RunningMeanStd) -> dict[str, Any]:
    return {"mean": np.asarray(found.mean), "var": np.asarray(found.var), "count": float(found.count)}


def _from_state(state: Mapping[str, Any]) -> RunningMeanStd:
    found = RunningMeanStd(np.shape(state["mean"]))
    found.mean, found.var, found.count = np.array(state["mean"]), np.array(state["var"]), float(state["count"])
    return found
