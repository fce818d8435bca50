"""Groups of environments, each held and stepped by one actor; a vector environment consists of groups.

A group is an ordinary class that does not depend on actors, so it gives the same numbers in this process and in another
one. Gymnasium's `AutoresetMode` determines the reset after the end of an episode:

    SAME_STEP   it is reset within the step: that returns the next episode's first observation, `Ending` the last one
    NEXT_STEP   the step returns the last observation; the next one ignores the action, resets, and gives reward 0
    DISABLED    the step returns the last observation; the caller has to reset it
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from parl_core._nested import map_nested
from parl_core.env._contract import (
    CHECKED_SPACES,
    CHOICES,
    as_beginning,
    as_flag,
    as_observation,
    as_reward,
    casting_to,
    choices_of,
    explaining_options,
    require_equal_spaces,
    require_info,
    require_parts,
    wrong_answer,
    wrong_observation,
)
from parl_core.env._recorded import RecordedEnv, set_state_beyond_episode, state_beyond_episode
from parl_core.env._steps import (
    Answer,
    ArraySpaces,
    Ending,
    GroupSpaces,
    GroupStep,
    Infos,
    StepArrays,
    StepMemory,
    StepTicket,
)
from parl_core.env.compat import as_gymnasium
from parl_core.env.joint import is_joint, make_joint_env
from parl_core.errors import EnvironmentContractError, HyperparameterError, ParlError

__all__ = [
    "EnvGroup",
    "EnvMaker",
    "close_all",
    "make_as_it_is",
    "make_env",
    "make_envs",
]

EnvMaker = str | Callable[..., Any]
"""The id of a registered environment, or a function that returns an environment."""

# Seconds that a group waits for the next step before it ends its serving call: long compared to the time between two
# steps, so that such calls are rare, and short for other calls of its actor, which executes one at a time.
PATIENCE_S = 0.1


class EnvGroup:
    """`count` environments of one kind, stepped one after another.

    They are made by `open` instead of the constructor, so that all groups can make theirs in parallel.

    Args:
        env: The environment, of which each is an instance: an id or a function.
        count: The number of environments.
        env_kwargs: The arguments of `make_env`.
        with_infos: True if `step` returns the infos of ordinary steps.
        autoreset: Name of the `AutoresetMode`, which can be sent to other processes.
    """

    def __init__(
        self, env: EnvMaker, count: int, env_kwargs: Mapping[str, Any], with_infos: bool, autoreset: str = "SAME_STEP"
    ) -> None:
        self._make: Callable[[], Any] = lambda: make_env(env, env_kwargs)
        self._envs: list[Any] = []
        self._space: Any = None  # of one observation; wrappers take a microsecond to look it up
        self._with_infos = with_infos
        self._mode = AutoresetMode[autoreset]
        self._over = [False] * count  # with NEXT_STEP: the next step only resets it
        self._current: list[Any] = []  # each environment's newest observation
        self._count = count
        self._returns = np.zeros(count)
        self._now = 0  # calls of `step`
        self._begun = [0] * count  # the counter's value when each episode began
        self._at = 0  # index of the environment that is being stepped or reset, for error messages
        self._memory: StepMemory | None = None

    def open(self) -> GroupSpaces:
        """Make the environments, and return the spaces of one of them."""
        self._envs = make_envs(self._make, self._count)
        try:
            require_equal_spaces("observation_space", [env.observation_space for env in self._envs])
            require_equal_spaces("action_space", [env.action_space for env in self._envs])
        except BaseException:
            self.close()
            raise
        first = self._envs[0]
        self._space = first.observation_space
        return GroupSpaces(first.observation_space, first.action_space, _metadata(first))

    def reset(
        self, seeds: Sequence[int | None], options: dict[str, Any] | None, chosen: Sequence[bool] | None = None
    ) -> tuple[Any, Infos]:
        """Begin a new episode in every environment, or in the chosen ones.

        Args:
            seeds: One per environment; None continues with the environment's own generator.
            options: The options for every environment's `reset`.
            chosen: The numbers of the environments; the others continue with the episode they are in.

        Returns:
            the observations `[count, *obs]`, newest ones of those that continue, and the infos that are not empty.
        """
        observations, infos = list(self._current) or [None] * len(self._envs), []
        try:
            for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
                if chosen is not None and not chosen[index]:
                    continue
                self._at = index
                passed = {} if options is None else {"options": options}  # some environments take no options
                observations[index], info = as_beginning(env, env.reset(seed=seed, **passed))
                self._begin([index])
                if info:
                    infos.append((index, info))
            stacked = self._stack(observations)
        except Exception as error:
            self._add_environment_note(error, "reset")
            raise
        self._current = observations
        return stacked, infos

    def attach(self, ticket: StepTicket, spaces: GroupSpaces) -> bool:
        """Open the caller's shared memory for `serve`, and return whether that worked."""
        self._memory = StepMemory.open(ticket, spaces, self._count)
        return self._memory is not None

    def serve(self) -> tuple[list[Ending], Infos] | None:
        """Step whenever a byte signals that the arrays are in the memory.

        Returns:
            The other results of the last step, if they do not fit into the memory; None after some time without a step.
        """
        memory = self._memory
        if memory is None:
            raise ParlError("serve() was called before attach() has opened the memory for it")
        while (actions := memory.wait_for_call(PATIENCE_S)) is not None:
            try:
                step = self.step(actions, memory.arrays)
            except BaseException:
                memory.answer(Answer.RETURNED)
                raise
            if step.infos or any(ending.info for ending in step.endings):
                memory.answer(Answer.RETURNED)
                return step.endings, step.infos
            memory.put_endings(step.endings)
            memory.answer(Answer.ENDED if step.endings else Answer.STEPPED)
        memory.answer(Answer.PARKED)
        return None

    def stop_serving(self) -> None:
        """Discard unserved steps, because the caller continues with calls."""
        if self._memory is not None:
            self._memory.forget()

    def step(self, actions: Iterable[Any], arrays: StepArrays | None = None) -> GroupStep:
        """Step every environment once, and reset those that ended as the mode says.

        Args:
            actions: One per environment, `[count, *act]` or any iterable of that length.
            arrays: The arrays to write into; default: new ones.
        """
        count = self._count
        self._now += 1
        if arrays is None:
            rewards = np.empty(count)
            terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        else:
            _, rewards, terminated, truncated, *_ = arrays
            terminated[:] = truncated[:] = False
        observations: list[Any] = []
        endings: list[Ending] = []
        infos: Infos = []
        over, with_infos = self._over, self._with_infos
        begun: list[int] = []
        try:
            for index, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
                self._at = index
                if over[index]:
                    observation, info = as_beginning(env, env.reset())
                    rewards[index] = 0.0
                    begun.append(index)
                else:
                    answer = env.step(action)
                    if not isinstance(answer, (tuple, list)) or len(answer) != 5:
                        raise wrong_answer(env, "step", answer, "(observation, reward, terminated, truncated, info)")
                    observation, reward, ended, cut, info = answer
                    if type(info) is not dict:
                        require_info(env, "step", info)
                    if type(reward) is not float:  # no function call for the usual case
                        reward = as_reward(env, reward)
                    rewards[index] = reward
                    if type(ended) is not bool or type(cut) is not bool:
                        ended, cut = as_flag(env, "terminated", ended), as_flag(env, "truncated", cut)
                    if ended or cut:
                        terminated[index], truncated[index] = ended, cut
                        endings.append(self._ending(index, observation, reward, info))
                        if self._mode is AutoresetMode.SAME_STEP:
                            observation, info = as_beginning(env, env.reset())
                            begun.append(index)
                        else:
                            over[index] = self._mode is AutoresetMode.NEXT_STEP
                observations.append(observation)
                if info and (with_infos or begun[-1:] == [index]):
                    infos.append((index, info))
            stacked = self._stack(observations, None if arrays is None else arrays.observations)
        except Exception as error:
            self._add_environment_note(error, "step")
            raise
        self._returns += rewards
        if begun:
            self._begin(begun)
        self._current = observations
        return GroupStep(stacked, rewards, terminated, truncated, endings, infos)

    def record(self) -> None:
        """Record the episode of each environment from now on, for `get_state`."""
        self._envs = [env if isinstance(env, RecordedEnv) else RecordedEnv(env) for env in self._envs]

    def get_state(self) -> list[dict[str, Any]]:
        """Return the state of each environment, for `set_state` of another group, which may have another size.

        Raises:
            CheckpointError: An environment cannot be saved.
        """
        return [
            {
                "episode": env.get_state(),
                "return": float(self._returns[index]),
                "steps": self._now - self._begun[index],
                "over": self._over[index],
            }
            for index, env in enumerate(self._envs)
        ]

    def set_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the saved state of every environment.

        Raises:
            CheckpointError: An environment reached another observation.
        """
        try:
            for index, (env, state) in enumerate(zip(self._envs, states, strict=True)):
                self._at = index
                self._current[index] = env.set_state(state["episode"])
                self._returns[index] = state["return"]
                self._begun[index] = self._now - int(state["steps"])
                self._over[index] = bool(state["over"])
        except Exception as error:
            self._add_environment_note(error, "set_state")
            raise

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the result of a method of each environment, or its attribute of that name."""
        found = []
        for env in self._envs:
            value = env.get_wrapper_attr(name)
            found.append(value(*args, **kwargs) if callable(value) else value)
        return found

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each environment, in the wrapper that has it."""
        for env, value in zip(self._envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def get_statistics(self) -> list[list[Any]]:
        """Return the state of each environment that outlasts an episode."""
        return [state_beyond_episode(env) for env in self._envs]

    def set_statistics(self, states: Sequence[list[Any]]) -> None:
        """Restore the result of `get_statistics`; a reset must follow."""
        for env, state in zip(self._envs, states, strict=True):
            set_state_beyond_episode(env, state)

    def observations(self) -> Any:
        """Return the newest observation of every environment, `[count, *obs]`."""
        return self._stack(self._current)

    def close(self) -> None:
        """Close every environment; an error of one is raised when all are closed."""
        close_all(self._envs)

    def _begin(self, indices: list[int]) -> None:
        self._returns[indices] = 0.0
        for index in indices:
            self._begun[index], self._over[index] = self._now, False

    def _ending(self, index: int, observation: Any, reward: float, info: dict[str, Any]) -> Ending:
        last = None
        if self._mode is AutoresetMode.SAME_STEP:
            # Copies, because some environments reuse the arrays and the info that they return.
            info = map_nested(_copied, info)
            space = self._space
            is_array = isinstance(space, ArraySpaces) and space.shape
            if isinstance(space, CHECKED_SPACES):
                require_parts(self._envs[index], space, observation)
            if is_array:
                last = np.array(as_observation(self._envs[index], space, observation))
            else:
                last = deepcopy(observation)
        length = self._now - self._begun[index]
        episode = info.get("episode")
        if isinstance(episode, Mapping) and episode.get("l") == length and "r" in episode:
            # An inner wrapper saw the same steps with unscaled rewards.
            return Ending(index, last, info, float(episode["r"]), length)
        return Ending(index, last, info, float(self._returns[index]) + reward, length)

    def _stack(self, observations: list[Any], out: Any = None) -> Any:
        space = self._space
        count = len(observations)
        if not isinstance(space, ArraySpaces):
            if isinstance(space, CHECKED_SPACES):
                for index, observation in enumerate(observations):
                    self._at = index
                    require_parts(self._envs[index], space, observation)
            empty: Any = create_empty_array(space, n=count) if out is None else out
            try:
                return concatenate(space, observations, empty)
            except (IndexError, KeyError, TypeError, ValueError) as error:
                raise self._unlike(space, observations) from error
        stacked = self._stack_arrays(observations, out)
        if isinstance(space, CHOICES):
            start, stop = choices_of(space)
            outside = np.flatnonzero(((stacked < start) | (stacked >= stop)).reshape(count, -1).any(axis=1))
            if outside.size:
                self._at = int(outside[0])
                require_parts(self._envs[self._at], space, stacked[self._at])
        return stacked

    def _stack_arrays(self, observations: list[Any], out: Any) -> Any:
        space, count = self._space, len(observations)
        shape = space.shape or ()
        if shape:
            casting: Any = casting_to(space)
            try:  # checks shapes and kinds of numbers itself, and is faster than a loop over rows
                if {*map(len, observations)} == {shape[0]}:  # otherwise it might split them into rows of that length
                    if out is not None:
                        np.concatenate(observations, out=out.reshape(count * shape[0], *shape[1:]), casting=casting)
                        return out
                    rows = np.concatenate(observations, dtype=space.dtype, casting=casting)
                    if rows.shape[1:] == shape[1:]:
                        return rows.reshape(count, *shape)
            except (TypeError, ValueError):
                pass  # one does not fit: the slower way converts it or raises an error
        stacked = np.empty((count, *shape), space.dtype) if out is None else out
        is_choice = isinstance(space, gymnasium.spaces.Discrete)
        for index, observation in enumerate(observations):
            self._at = index
            is_plain = is_choice and type(observation) is int  # no function call for the usual case
            stacked[index] = observation if is_plain else as_observation(self._envs[index], space, observation)
        return stacked

    def _unlike(self, space: Any, observations: list[Any]) -> Exception:
        """Return the error for the first observation that is not in its space."""
        unlike = [index for index, observation in enumerate(observations) if not space.contains(observation)]
        self._at = unlike[0] if unlike else 0
        return wrong_observation(self._envs[self._at], space, observations[self._at])

    def _add_environment_note(self, error: Exception, method: str) -> None:
        error.add_note(f"raised in {method} by environment {self._at} of the {len(self._envs)} of its actor")


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _metadata(env: Any) -> dict[str, Any]:
    """Return an environment's metadata, and the properties that loops need.

    `running_statistics` names the wrapper that changes numbers during training, and `action_masks` is True if there is
    a method of that name, sb3-contrib's way to report possible actions.
    """
    found = dict(env.metadata)
    if isinstance(env, gymnasium.Env) and env.has_wrapper_attr("action_masks"):
        found["action_masks"] = True
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, (NormalizeObservation, NormalizeReward)) and env.update_running_mean:
            found["running_statistics"] = type(env).__name__
        env = env.env
    return found


def make_envs(make: Callable[[], Any], count: int) -> list[Any]:
    """Make some environments; if one cannot be made, close those before it.

    Raises:
        EnvironmentContractError: The function returned the same environment twice.
    """
    envs: list[Any] = []
    try:
        while len(envs) < count:
            env = make()
            if any(env is other for other in envs):
                raise EnvironmentContractError(
                    f"the function gave the same {type(env).__name__} again as environment {len(envs)}: let it "
                    "return a new one each time"
                )
            envs.append(env)
    except BaseException:
        with contextlib.suppress(Exception):  # any exception: the first error matters more
            close_all(envs)
        raise
    return envs


def close_all(envs: Iterable[Any]) -> None:
    """Close every environment; an error of one is raised when all are closed."""
    with contextlib.ExitStack() as stack:
        for env in reversed(list(envs)):
            stack.callback(env.close)


def make_env(env: EnvMaker, env_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Make one environment.

    Args:
        env: A registered id, a name of `make_joint_env`, or a function that returns an environment.
        env_kwargs: Arguments of `gymnasium.make`, `make_joint_env` or the function.

    Returns:
        an environment with Gymnasium's API.

    Raises:
        HyperparameterError: `env` is none of these, or an option is unknown.
        EnvironmentContractError: The environment has no space of observations or actions.
        TypeError: It lacks `reset` or `step`.
    """
    return as_gymnasium(make_as_it_is(env, env_kwargs))


def make_as_it_is(env: EnvMaker, env_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Return the object that `make_env` converts to an environment.

    Raises:
        HyperparameterError: As in `make_env`.
    """
    kwargs = dict(env_kwargs or {})
    if isinstance(env, str):
        if env not in gymnasium.registry and is_joint(env):
            return make_joint_env(env, **kwargs)
        # The passive checker only checks the first step, but costs a call in every step.
        with explaining_options(env, kwargs, lambda: gymnasium.spec(env).entry_point):
            return gymnasium.make(env, disable_env_checker=True, **kwargs)
    if not callable(env):
        raise HyperparameterError(
            f"environments are made here, from a registered id or a function that returns a new one; got {env!r}: pass "
            "for instance lambda: gymnasium.make('CartPole-v1')"
        )
    return env(**kwargs)
