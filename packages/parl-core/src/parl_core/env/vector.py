"""Vector environments for training: several environments an actor, one call per step.

                         ┌─ submit step ─> actor 0: EnvGroup of environments 0..3 ─┐
    VectorEnv.step(a) ───┤                                                         ├─ gather ─> arrays [n, ...]
                         └─ submit step ─> actor 1: EnvGroup of environments 4..7 ─┘

All calls are sent before the first answer is awaited. Without an actor system there is one group in this process.
Environment i is seeded with `seed + i` and continues with its own generator, so results do not depend on how many
actors there are, nor on where they live.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_space, iterate

from parl_core.actors import ActorHandle, ActorSystem, InProcessActors
from parl_core.checks import check_int
from parl_core.env._group_link import CallLink, link_to
from parl_core.env._steps import ArraySpaces, Ending, GroupSpaces, GroupStep, Infos
from parl_core.env._vector_group import EnvGroup, EnvMaker, make_env, require_equal_spaces
from parl_core.env.autoreset import Seeds, chosen_by, mode_of, seeds_of
from parl_core.errors import CheckpointError, HyperparameterError, ParlError

__all__ = ["VectorEnv", "make_vector_env"]

# Seconds to wait for the environments' own `close` before their actors are ended anyway.
CLOSE_TIMEOUT_S = 1.0


def make_vector_env(
    env: EnvMaker,
    num_envs: int,
    *,
    actors: ActorSystem | None = None,
    envs_per_actor: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    with_infos: bool = False,
    autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
) -> "VectorEnv":
    """Make `num_envs` environments that are stepped together.

    Args:
        env: a registered id such as `"CartPole-v1"`, or a function that returns an environment.
        num_envs: how many environments, at least 1.
        actors: where they live; None keeps them in this process. The caller closes it.
        envs_per_actor: how many share an actor and one call per step; default: `num_envs` split evenly over the
            slots of `actors`.
        env_kwargs: passed to `gymnasium.make` or to the function.
        with_infos: whether `step` returns the infos of ordinary steps. Off by default, because a dictionary an
            environment and step costs more than a small environment's step. Infos of `reset` and of an
            episode's last step always come.
        autoreset_mode: when an environment that ended is reset, as Gymnasium calls it; the training loops want the
            default, and make it of others by `parl_core.env.autoreset`.

    Raises:
        HyperparameterError: a number is out of its range, the mode is unknown, or the system does not know its slots.
        Exception: what an environment's constructor raised.
    """
    num_envs = check_int("num_envs", num_envs)
    if envs_per_actor is not None:
        envs_per_actor = check_int("envs_per_actor", envs_per_actor)
    mode = mode_of(autoreset_mode)
    if actors is None:
        actors, envs_per_actor = InProcessActors(), envs_per_actor or num_envs
    if envs_per_actor is None:
        if actors.slots is None:
            raise HyperparameterError("this actor system does not know its slots: give envs_per_actor")
        envs_per_actor = math.ceil(num_envs / actors.slots)
    starts = range(0, num_envs, envs_per_actor)
    counts = [min(envs_per_actor, num_envs - start) for start in starts]
    groups: list[ActorHandle] = []
    try:
        for count in counts:  # one by one, so that those made before a failure are closed
            group = actors.create(EnvGroup, env, count, dict(env_kwargs or {}), with_infos, mode.name)
            groups.append(group)
        opened = [future.result() for future in [group.submit("open") for group in groups]]
        require_equal_spaces("observation_space", [each.observation for each in opened])
        require_equal_spaces("action_space", [each.action for each in opened])
        spaces = opened[0]
        links = [link_to(group, count, spaces) for group, count in zip(groups, counts, strict=True)]
        return VectorEnv(links, counts, spaces, mode, lambda: make_env(env, env_kwargs))
    except BaseException:
        _end([CallLink(group) for group in groups])
        raise


class VectorEnv(GymnasiumVectorEnv[Any, Any, Any]):
    """A Gymnasium vector environment over groups of environments in actors; made by `make_vector_env`.

    By default an environment that ends is reset within the same step (`AutoresetMode.SAME_STEP`). `infos` of that step
    has, besides what Gymnasium puts there (`final_obs`, `final_info`, each with its mask `_final_obs`, …), the finished
    episodes' statistics: `infos["episode"]["r"]` and `["l"]`, `[num_envs]`, with the mask `infos["_episode"]`. In the
    other modes the step's own observation is the last one, and only the statistics are added.
    """

    def __init__(
        self,
        groups: Sequence[CallLink],
        counts: Sequence[int],
        spaces: GroupSpaces,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        make: Callable[[], Any] | None = None,
    ) -> None:
        self.make_one = make  # one more environment, in this process
        self._groups = list(groups)
        self._bounds = [0, *np.cumsum(counts).tolist()]
        self._spans = list(itertools.pairwise(self._bounds))
        self._awaits_reset = True
        self.num_envs = self._bounds[-1]
        self.single_observation_space, self.single_action_space = spaces.observation, spaces.action
        self._plain = isinstance(spaces.action, ArraySpaces)
        self.observation_space = batch_space(spaces.observation, self.num_envs)
        self.action_space = batch_space(spaces.action, self.num_envs)
        self.metadata = {**spaces.metadata, "autoreset_mode": autoreset_mode}
        self._mode = autoreset_mode
        self._over = np.zeros(self.num_envs, np.bool_)  # with DISABLED: those that have to be reset

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every environment, or in some.

        Args:
            seed: environment i gets `seed + i`; or one seed per environment; None continues with their generators.
            options: handed to every environment's `reset`, without `"reset_mask"`: bool `[num_envs]`, which of them
                to reset; the others continue.

        Returns:
            observations `[num_envs, *obs]`, the newest ones of those that continue, and infos.

        Raises:
            HyperparameterError: another number of seeds, one that is no whole number, or a mask of another form.
            ParlError: some are to be reset before all were.
        """
        seeds = seeds_of(seed, self.num_envs)
        passed = dict(options or {})
        chosen = chosen_by(passed.pop("reset_mask", None), self.num_envs)
        if chosen is not None and self._awaits_reset:
            raise ParlError("call reset() without a reset_mask first: no episode is running, or the last step raised")
        given = passed or (None if options is None or chosen is not None else {})

        def begin(group: CallLink, start: int, stop: int) -> None:
            group.begin("reset", seeds[start:stop], given, None if chosen is None else chosen[start:stop].tolist())

        answers = self._in_all(begin, lambda group: group.finish())
        self._awaits_reset = False
        self._over[slice(None) if chosen is None else chosen] = False
        observations = [observations for observations, _ in answers]
        return _joined(self.single_observation_space, observations), self._merge([i for _, i in answers])

    def step(
        self, actions: Any
    ) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """Step every environment once.

        Args:
            actions: `[num_envs, *act]`, or a dict or tuple of such.

        Returns:
            observations `[num_envs, *obs]`, rewards, terminated, truncated (each `[num_envs]`), infos.

        Raises:
            HyperparameterError: there are more or fewer actions than environments.
            ParlError: `reset` has to be called first, also after a step that raised.
            Exception: what an environment raised, or that its actor was lost; a note names the environments.
        """
        if self._awaits_reset:
            raise ParlError("call reset() before step(): no episode is running, or the last step raised")
        if self._mode is AutoresetMode.DISABLED and self._over.any():
            raise ParlError(
                f"the episodes of environments {np.flatnonzero(self._over).tolist()} are over and autoreset_mode is "
                "DISABLED: call reset(options={'reset_mask': terminated | truncated}) before step()"
            )
        actions = np.asarray(actions) if self._plain else list(iterate(self.action_space, actions))
        if self._plain and not actions.ndim:
            raise HyperparameterError(
                f"step takes one action for each of {self.num_envs} environments, got {actions!r}"
            )
        if len(actions) != self.num_envs:
            raise HyperparameterError(f"{len(actions)} actions were given for {self.num_envs} environments")
        if len(self._groups) == 1 and not self._groups[0].reuses_arrays:
            return self._step_alone(actions)
        answers: list[GroupStep] = self._in_all(
            lambda group, start, stop: group.begin_step(actions[start:stop]), lambda group: group.finish_step()
        )
        infos = self._merge([answer.infos for answer in answers])
        endings = [(start + e.env_index, e) for start, a in zip(self._bounds, answers, strict=False) for e in a.endings]
        if endings:
            infos = self._with_endings(infos, endings)
        observations, rewards, terminated, truncated, *_ = zip(*answers, strict=True)
        return (
            _joined(self.single_observation_space, observations),
            np.concatenate(rewards),
            np.concatenate(terminated),
            np.concatenate(truncated),
            infos,
        )

    def record_episodes(self) -> None:
        """Record the episode of each environment from the next reset on, for `get_state`."""
        self._in_all(lambda group, _start, _stop: group.begin("record"), lambda group: group.finish())
        self._awaits_reset = True

    def get_state(self) -> dict[str, Any]:
        """Return where every environment is, as `parl_core.env._recorded` knows it; `record_episodes` comes before.

        Raises:
            CheckpointError: an environment cannot be saved.
        """
        found = self._in_all(lambda group, _start, _stop: group.begin("get_state"), lambda group: group.finish())
        return {"environments": list(itertools.chain.from_iterable(found)), "over": self._over.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the saved position of every environment; they must be reset before, and may be in other actors.

        Raises:
            CheckpointError: the number of environments differs, or one did not come to the same observation.
        """
        saved = state["environments"]
        if len(saved) != self.num_envs:
            raise CheckpointError(
                f"the saved run had {len(saved)} environments, this one has {self.num_envs}: make the same number"
            )
        self._in_all(
            lambda group, start, stop: group.begin("set_state", saved[start:stop]), lambda group: group.finish()
        )
        self._over = np.array(state["over"], np.bool_)

    def _step_alone(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return the same for one group, whose arrays are the answer; small environments are worth the short way."""
        self._awaits_reset = True
        answer = self._groups[0].step(actions)
        self._awaits_reset = False
        infos = self._merge([answer.infos]) if answer.infos else {}
        if answer.endings:
            infos = self._with_endings(infos, [(ending.env_index, ending) for ending in answer.endings])
        return answer.observations, answer.rewards, answer.terminated, answer.truncated, infos

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close_extras(self, **_: Any) -> None:
        """Close the environments and end their actors; called by `close`."""
        _end(self._groups)

    def _in_all(self, begin: Callable[[CallLink, int, int], None], finish: Callable[[CallLink], Any]) -> list[Any]:
        """Begin the same in every group, wait for all answers, then raise the first error if there was one."""
        awaited_reset, self._awaits_reset = self._awaits_reset, True
        for group, (start, stop) in zip(self._groups, self._spans, strict=True):
            begin(group, start, stop)
        answers: list[Any] = []
        failure: Exception | None = None
        for group, (start, stop) in zip(self._groups, self._spans, strict=True):
            try:
                answers.append(finish(group))
            except Exception as error:
                if len(self._spans) > 1:
                    error.add_note(f"its actor holds environments {start} to {stop - 1} of {self.num_envs}")
                failure = failure or error
        if failure is not None:
            raise failure
        self._awaits_reset = awaited_reset
        return answers

    def _with_endings(self, infos: dict[str, Any], endings: list[tuple[int, Ending]]) -> dict[str, Any]:
        ended = np.zeros(self.num_envs, np.bool_)
        last = np.full(self.num_envs, None, object)
        returns, lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        same_step = self._mode is AutoresetMode.SAME_STEP
        info: dict[str, Any] = {} if same_step else infos
        for index, ending in endings:
            ended[index], last[index] = True, ending.observation
            returns[index], lengths[index] = ending.episode_return, ending.length
            if ending.info:
                info = self._add_info(info, ending.info, index)
        named: dict[str, Any] = {"episode": {"r": returns, "l": lengths}}
        if same_step:
            named |= {"final_obs": last, "final_info": info}
        if self._mode is AutoresetMode.DISABLED:
            self._over |= ended
        return (infos if same_step else info) | named | {f"_{name}": ended for name in named}

    def _merge(self, parts: list[Infos]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for start, part in zip(self._bounds, parts, strict=False):
            for index, info in part:
                merged = self._add_info(merged, info, start + index)
        return merged


def _joined(space: Any, parts: Sequence[Any]) -> Any:
    """Return the groups' observations as one, copied."""
    if isinstance(space, ArraySpaces):
        return np.concatenate(parts)
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _joined(one, [part[key] for part in parts]) for key, one in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_joined(one, [part[i] for part in parts]) for i, one in enumerate(space.spaces))
    return tuple(itertools.chain.from_iterable(parts))  # of other spaces Gymnasium makes no arrays


def _end(groups: Sequence[CallLink]) -> None:
    """Close the environments of groups and end their actors, side by side."""
    closing = []
    for group in groups:
        with contextlib.suppress(Exception):  # any: an actor that is gone is not asked
            group.begin_close()
            closing.append(group)
    deadline = time.monotonic() + CLOSE_TIMEOUT_S  # of all: one in a step without end does not keep the others
    for group in closing:
        with contextlib.suppress(Exception):  # any: it ends with its actor
            group.finish(max(0.0, deadline - time.monotonic()))
    for group in groups:
        group.begin_end()
    for group in groups:
        group.close()
