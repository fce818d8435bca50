"""Vector environments for training: several environments per actor, one call per step.

                         ┌─ submit step ─> actor 0: EnvGroup of environments 0..3 ─┐
    VectorEnv.step(a) ───┤                                                         ├─ gather ─> arrays [n, ...]
                         └─ submit step ─> actor 1: EnvGroup of environments 4..7 ─┘

All calls are sent before the first result is awaited. Without an actor system there is one group in this process.
Environment i is seeded with `seed + i` and continues with its own generator, so results depend neither on the number of
actors nor on their hosts.

A link to a group has one of two forms with the same contract: `finish` completes the operation of `begin`, and raises
every error of the group. Ctrl-C may interrupt this anywhere; the next `begin` completes the interrupted operation.

    _CallLink    every step is a call: actions in the message, arrays in the answer; between hosts, and in this process
    _SharedLink  the group's actor stays in one call, `EnvGroup.serve`, and each step is a byte there and a byte back
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_space, iterate

from parl_core._closing import ClosingContext
from parl_core.actors import ActorFuture, ActorHandle, ActorSystem, InProcessActors
from parl_core.checks import check_int
from parl_core.env._contract import require_equal_spaces
from parl_core.env._steps import (
    ActionRows,
    Answer,
    ArraySpaces,
    Ending,
    GroupSpaces,
    GroupStep,
    Infos,
    StepMemory,
    can_share,
)
from parl_core.env._vector_group import EnvGroup, EnvMaker, make_env
from parl_core.env.autoreset import Seeds, chosen_by, mode_of, seeds_of
from parl_core.errors import CheckpointError, HyperparameterError, ParlError

__all__ = ["VectorEnv", "make_vector_env"]


# Seconds between two checks of a silent actor: one that is stopped, not ended, does not close its pipe.
_LOOK_S = 1.0


class _CallLink:
    """A link that steps by calls.

    Args:
        group: An actor that holds an `EnvGroup`.
    """

    def __init__(self, group: ActorHandle) -> None:
        self._group = group
        self._answer: ActorFuture | None = None

    @property
    def reuses_arrays(self) -> bool:
        """True if a step's arrays are overwritten by the next one."""
        return False

    def begin(self, method: str, *arguments: Any) -> None:
        """Send a call of a method."""
        self._answer = self._group.submit(method, *arguments)

    def begin_step(self, actions: Any) -> None:
        """Start a step of all environments with actions: an array `[count, *act]`, or a list."""
        self.begin("step", _sent(actions))

    def finish(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer of the call.

        Raises:
            TimeoutError: The result did not arrive in time.
            Exception: One that the method raised, or the loss of the actor.
        """
        answer, self._answer = self._answer, None
        assert answer is not None, "finish follows begin"
        return answer.result(timeout_s)

    def finish_step(self) -> GroupStep:
        """Wait for the step that was begun; errors as in `finish`."""
        step: GroupStep = self.finish()
        return step

    def step(self, actions: Any) -> GroupStep:
        """Make a whole step, for a single group; errors as in `finish`."""
        step: GroupStep = self._group.call("step", _sent(actions))
        return step

    def begin_close(self) -> None:
        """Send the call that closes the environments; it comes after a step that is still running."""
        self.begin("close")

    def begin_end(self) -> None:
        """Signal the actor to end after its `close`, without waiting, if its system supports that."""
        if (begin := getattr(self._group, "begin_close", None)) is not None:
            begin(was_waited_for=True)

    def close(self) -> None:
        """End the actor."""
        self._group.close()


class _SharedLink(_CallLink):
    """A link that steps by bytes, with arrays in shared memory. Steps that do not fit are calls.

    Args:
        group: An actor that holds an `EnvGroup` to which the memory is attached.
        memory: This end of the shared memory.
    """

    def __init__(self, group: ActorHandle, memory: StepMemory) -> None:
        super().__init__(group)
        self._memory = memory
        self._serving: ActorFuture | None = None
        self._called = False  # True from before a call until its answer is read
        _, rewards, terminated, truncated, *_ = memory.arrays
        self._step = GroupStep(memory.arrays.observations, rewards, terminated, truncated, [], [])

    @property
    def reuses_arrays(self) -> bool:
        """True if a step's arrays are overwritten by the next one."""
        return True

    def step(self, actions: Any) -> GroupStep:
        """Begin a step through the shared memory and finish it."""
        self.begin_step(actions)
        return self.finish_step()

    def begin(self, method: str, *arguments: Any) -> None:
        """Send a call of a method, after the actor has left its serving call."""
        self._leave()
        super().begin(method, *arguments)

    def begin_step(self, actions: Any) -> None:
        """Start a step of all environments through the shared memory, or by a call if the actor is gone."""
        self._called = True
        try:
            self._called = self._memory.call(actions)
        except OSError:
            self._called = True  # the actor is gone or closed; its call reports that better
        if not self._called:
            super().begin_step(actions)
        elif self._serving is None:
            self._serving = self._group.submit("serve")

    def finish_step(self) -> GroupStep:
        """Wait for the step that was begun and return its results."""
        if not self._called:
            return super().finish_step()
        while (answer := self._next_byte()) == Answer.PARKED:  # serving ended before the call, and starts again
            self._end_of_serving()
            self._serving = self._group.submit("serve")
        self._called = False
        if answer == Answer.STEPPED:
            return self._step
        if answer == Answer.ENDED:
            return self._step._replace(endings=self._memory.endings())
        endings, infos = self._end_of_serving()
        return self._step._replace(endings=endings, infos=infos)

    def begin_close(self) -> None:
        """Make the actor leave its serving call, then send the call that closes the environments."""
        with contextlib.suppress(OSError):  # the actor is gone
            self._memory.request_return()
        super().begin("close")

    def close(self) -> None:
        """End the actor, and release the memory."""
        super().close()
        self._memory.close()
        self._called, self._serving = False, None

    def _leave(self) -> None:
        """End the actor's serving call, and discard calls and answers without a waiting caller.

        Those of an interrupted step may or may not have been written and read. Calls run in order, so the actor serves
        no more when it answers this one, and both pipes are empty then.
        """
        if self._called or self._serving is not None:
            with contextlib.suppress(Exception):  # any exception: a lost actor raises its error in the next call
                self._memory.request_return()
                self._group.call("stop_serving")
            self._memory.forget()
            self._called, self._serving = False, None

    def _end_of_serving(self) -> Any:
        serving, self._serving = self._serving, None
        assert serving is not None, "there is no serving call to stop"
        return serving.result()

    def _next_byte(self) -> bytes:
        """Return the actor's next byte; empty if there will be none, for a reason that its call raises."""
        answer = self._memory.wait_for_answer(_LOOK_S)
        while answer is None:
            # Checked before the last read, so that bytes written before the end of the call are read.
            has_ended = self._serving is None or self._serving.done()
            answer = self._memory.wait_for_answer(0.0 if has_ended else _LOOK_S)
            if has_ended:
                return answer or b""
        return answer


def _sent(actions: Any) -> Any:
    return ActionRows(actions) if isinstance(actions, np.ndarray) else actions


def _link_to(group: ActorHandle, count: int, spaces: GroupSpaces) -> _CallLink:
    """Return the fastest possible link to a group whose environments are open."""
    if not can_share(spaces):
        return _CallLink(group)
    try:
        memory = StepMemory.create(spaces, count)
    except OSError:  # no descriptors or no memory left; messages need neither
        return _CallLink(group)
    try:
        if group.call("attach", memory.ticket, spaces):
            memory.keep_own_ends()
            return _SharedLink(group, memory)
    except BaseException:
        memory.close()
        raise
    memory.close()
    return _CallLink(group)


# Seconds to wait for the environments' own `close` before their actors are ended.
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
        env: A registered id such as `"CartPole-v1"`, a name of `make_joint_env` such as `"mpe2:simple_spread_v3"`, or
            a function that returns an environment.
        num_envs: The number of environments, at least 1.
        actors: The system that runs them; None keeps them in this process. The caller closes it.
        envs_per_actor: The number of environments that share an actor and one call per step; default: `num_envs` split
            evenly over the slots of `actors`.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        with_infos: True if `step` returns the infos of ordinary steps. Off by default, because one dictionary per
            environment and step costs more than a small environment's step. Infos of `reset` and of an episode's last
            step are always returned.
        autoreset_mode: Gymnasium's name for when an environment that ended is reset. The training loops need the
            default, and adapt other modes with `parl_core.env.autoreset`.

    Raises:
        HyperparameterError: A number is out of its range, the mode is unknown, or the system's slots are unknown.
        Exception: An exception of an environment's constructor.
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
        for count in counts:  # one by one, so that earlier ones are closed after a failure
            group = actors.create(EnvGroup, env, count, dict(env_kwargs or {}), with_infos, mode.name)
            groups.append(group)
        opened = [future.result() for future in [group.submit("open") for group in groups]]
        require_equal_spaces("observation_space", [each.observation for each in opened])
        require_equal_spaces("action_space", [each.action for each in opened])
        spaces = opened[0]
        links = [_link_to(group, count, spaces) for group, count in zip(groups, counts, strict=True)]
        return VectorEnv(links, counts, spaces, mode, lambda: make_env(env, env_kwargs))
    except BaseException:
        _end([_CallLink(group) for group in groups])
        raise


class VectorEnv(ClosingContext, GymnasiumVectorEnv[Any, Any, Any]):
    """A Gymnasium vector environment over groups of environments in actors; made by `make_vector_env`.

    By default an environment that ends is reset within the same step (`AutoresetMode.SAME_STEP`). Besides Gymnasium's
    entries (`final_obs`, `final_info`, each with its mask `_final_obs`, …), `infos` of that step has the finished
    episodes' statistics: `infos["episode"]["r"]` and `["l"]`, `[num_envs]`, with the mask `infos["_episode"]`. In the
    other modes the step's own observation is the last one, and only the statistics are added.
    """

    def __init__(
        self,
        groups: Sequence[_CallLink],
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
        self._over = np.zeros(self.num_envs, np.bool_)  # with DISABLED: the environments that must be reset

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every environment, or in some.

        Args:
            seed: The seed: environment i gets `seed + i`; or one seed per environment; None continues with their
                generators.
            options: The options for every environment's `reset`, except `"reset_mask"`, bool `[num_envs]`: the
                environments to reset; the others continue.

        Returns:
            observations `[num_envs, *obs]`, the newest ones of those that continue, and infos.

        Raises:
            HyperparameterError: The number of seeds is wrong, one is not a whole number, or the mask has another form.
            ParlError: Some environments are to be reset before all have been.
        """
        seeds = seeds_of(seed, self.num_envs)
        passed = dict(options or {})
        chosen = chosen_by(passed.pop("reset_mask", None), self.num_envs)
        if chosen is not None and self._awaits_reset:
            raise ParlError("call reset() without a reset_mask first: no episode is running, or the last step raised")
        given = passed or (None if options is None or chosen is not None else {})

        def begin(group: _CallLink, start: int, stop: int) -> None:
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
            actions: `[num_envs, *act]`, or a dict or tuple of arrays.

        Returns:
            observations `[num_envs, *obs]`, rewards, terminated, truncated (each `[num_envs]`), infos.

        Raises:
            HyperparameterError: There are more or fewer actions than environments.
            ParlError: `reset` must be called first, also after a step that raised.
            Exception: An exception of an environment, or the loss of its actor; a note names the environments.
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

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, as in Gymnasium's vectors; episodes continue.

        Args:
            name: The name of a method of the environment or of one of its wrappers, or of an attribute, whose values
                are returned.
            args: The method's positional arguments.
            kwargs: The method's keyword arguments.

        Returns:
            One result per environment.

        Raises:
            Exception: An exception of an environment, or AttributeError for an unknown name; `reset` must follow.
        """
        found = self._in_all(
            lambda group, _start, _stop: group.begin("call", name, args, kwargs), lambda group: group.finish()
        )
        return tuple(itertools.chain.from_iterable(found))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment; errors as in `call`."""
        return self.call("get_wrapper_attr", name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment, in the wrapper that has it; episodes continue.

        Checkpoints of a loop do not contain it; a resumed run must set it again and begin new episodes.

        Args:
            name: The name of the attribute.
            values: A list or tuple with one value per environment, or one value for all.

        Raises:
            HyperparameterError: There are more or fewer values than environments.
            Exception: An exception of an environment; `reset` must follow.
        """
        each = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise HyperparameterError(f"{len(each)} values of {name} were given for {self.num_envs} environments")
        self._in_all(
            lambda group, start, stop: group.begin("set_attr", name, each[start:stop]), lambda group: group.finish()
        )

    def record_episodes(self) -> None:
        """Record the episode of each environment from the next reset on, for `get_state`."""
        self._in_all(lambda group, _start, _stop: group.begin("record"), lambda group: group.finish())
        self._awaits_reset = True

    def get_state(self) -> dict[str, Any]:
        """Return the position of every environment in its episode; call `record_episodes` first.

        Raises:
            CheckpointError: An environment cannot be saved.
        """
        found = self._in_all(lambda group, _start, _stop: group.begin("get_state"), lambda group: group.finish())
        return {"environments": list(itertools.chain.from_iterable(found)), "over": self._over.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the saved position of every environment; they must have been reset, and may be in other actors.

        Raises:
            CheckpointError: The number of environments differs, or one reached another observation.
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

    def get_statistics(self) -> list[list[Any]]:
        """Return the state of each environment that outlasts an episode, such as running statistics."""
        found = self._in_all(lambda group, _start, _stop: group.begin("get_statistics"), lambda group: group.finish())
        return list(itertools.chain.from_iterable(found))

    def set_statistics(self, saved: Sequence[list[Any]]) -> None:
        """Restore the result of `get_statistics`; it takes effect at the next reset, which must follow.

        Raises:
            CheckpointError: An environment has other wrappers.
        """
        self._in_all(
            lambda group, start, stop: group.begin("set_statistics", saved[start:stop]), lambda group: group.finish()
        )
        self._awaits_reset = True

    def _step_alone(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step a single group, whose arrays are the result; this shortcut pays for small environments."""
        self._awaits_reset = True
        answer = self._groups[0].step(actions)
        self._awaits_reset = False
        infos = self._merge([answer.infos]) if answer.infos else {}
        if answer.endings:
            infos = self._with_endings(infos, [(ending.env_index, ending) for ending in answer.endings])
        return answer.observations, answer.rewards, answer.terminated, answer.truncated, infos

    def close_extras(self, **_: Any) -> None:
        """Close the environments and end their actors; called by `close`."""
        _end(self._groups)

    def _in_all(self, begin: Callable[[_CallLink, int, int], None], finish: Callable[[_CallLink], Any]) -> list[Any]:
        """Begin an operation in every group, wait for all results, then raise the first error if there was one."""
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

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        """Add an info as Gymnasium does, with an array of objects for entries of different forms."""
        usual = {}
        for name, entry in env_info.items():
            column = vector_infos.get(name)
            if column is None or _fits(column, entry):
                usual[name] = entry
                continue
            if isinstance(column, dict) or not column.dtype.hasobject:
                objects = np.full(self.num_envs, None, object)
                for index in np.flatnonzero(vector_infos[f"_{name}"]).tolist():
                    objects[index] = _entry_of(column, index)
                vector_infos[name] = column = objects
            column[env_num] = entry
            vector_infos[f"_{name}"][env_num] = True
        return super()._add_info(vector_infos, usual, env_num)

    def _merge(self, parts: list[Infos]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for start, part in zip(self._bounds, parts, strict=False):
            for index, info in part:
                merged = self._add_info(merged, info, start + index)
        return merged


_USUAL_KINDS = frozenset({float, int, bool})


def _fits(column: npt.NDArray[Any] | dict[str, Any], entry: Any) -> bool:
    """Return whether an entry of an info fits Gymnasium's array, or dictionary, of this entry over all environments."""
    kind: Any = type(entry)
    if isinstance(column, dict):
        return isinstance(entry, dict)
    if kind in _USUAL_KINDS and column.ndim == 1 and column.dtype == kind:
        return True  # a shortcut for the usual cases, ten times as fast as the rest
    if kind is np.ndarray and column.dtype == entry.dtype and not column.dtype.hasobject:
        return bool(entry.shape == column.shape[1:])
    if column.dtype.hasobject:
        return not isinstance(entry, dict)
    is_number = isinstance(entry, (bool, int, float, np.generic, np.ndarray))
    return (
        is_number
        and np.shape(entry) == column.shape[1:]
        and np.can_cast(np.asarray(entry).dtype, column.dtype, "same_kind")
    )


def _entry_of(column: npt.NDArray[Any] | dict[str, Any], index: int) -> Any:
    """Return one environment's part of an entry over all environments."""
    if not isinstance(column, dict):
        return column[index]
    has = {name: mask for name in column if (mask := column.get(f"_{name}")) is not None}
    return {name: _entry_of(column[name], index) for name, mask in has.items() if mask[index]}


def _joined(space: Any, parts: Sequence[Any]) -> Any:
    """Return the concatenated observations of the groups, copied."""
    if isinstance(space, ArraySpaces):
        return np.concatenate(parts)
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _joined(one, [part[key] for part in parts]) for key, one in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_joined(one, [part[i] for part in parts]) for i, one in enumerate(space.spaces))
    return tuple(itertools.chain.from_iterable(parts))  # Gymnasium makes no arrays for other spaces


def _end(groups: Sequence[_CallLink]) -> None:
    """Close the environments of groups and end their actors, in parallel."""
    closing = []
    for group in groups:
        with contextlib.suppress(Exception):  # any exception: the actor may be gone
            group.begin_close()
            closing.append(group)
    deadline = time.monotonic() + CLOSE_TIMEOUT_S  # a common limit, so that an endless step does not delay the others
    for group in closing:
        with contextlib.suppress(Exception):  # any exception: the environments end with their actor
            group.finish(max(0.0, deadline - time.monotonic()))
    for group in groups:
        group.begin_end()
    for group in groups:
        group.close()
