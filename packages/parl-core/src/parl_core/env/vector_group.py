"""Some environments that one actor holds and steps together; the vector environment is a row of such groups.

Nothing here knows of actors: a group is an ordinary class, constructed in this process or in another one, so
both give the same numbers. What happens to an environment that ends is Gymnasium's `AutoresetMode`:

    SAME_STEP   it is reset within the step: that returns the next episode's first observation, `Ending` the last one
    NEXT_STEP   the step returns the last observation; the next one ignores the action, resets, and gives reward 0
    DISABLED    the step returns the last observation; whoever steps has to reset it
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

__all__ = ["ArraySpaces", "Ending", "EnvGroup", "EnvMaker", "GroupSpaces", "GroupStep", "Rows", "make_env"]

ArraySpaces = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)
"""The spaces whose batches are one numpy array."""

EnvMaker = str | Callable[..., Any]
"""The id of a registered environment, or a function that returns an environment."""

Infos = list[tuple[int, dict[str, Any]]]
"""Pairs of an environment's index and its info, without the empty ones."""


class Ending(NamedTuple):
    """How one environment's episode ended, in the step that ended it."""

    env_index: int
    """which environment of the group, from 0"""
    observation: Any
    """the last observation, from which a truncated episode bootstraps; None where the step itself returns it"""
    info: dict[str, Any]
    """the last info"""
    episode_return: float
    """undiscounted sum of the episode's rewards"""
    length: int
    """steps of the episode"""


class GroupSpaces(NamedTuple):
    """What the caller has to know of the environments; fetched once."""

    observation: Any
    action: Any
    metadata: dict[str, Any]


class GroupStep(NamedTuple):
    """The answer of one step, arrays over the group's environments."""

    observations: Any
    """`[count, *obs]`, or a dict or tuple of such; with SAME_STEP the next episode's first one where one ended"""
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    endings: list[Ending]
    infos: Infos
    """empty unless the group was made with `with_infos`"""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.endings, self.infos, *(_packed(part) for part in self[:4]))


class Rows:
    """Actions `[count, *act]` on their way to a group, which sees them one by one."""

    def __init__(self, actions: npt.NDArray[Any]) -> None:
        self._actions = actions

    def __iter__(self) -> Iterator[Any]:
        return iter(self._actions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _array, _packed(self._actions)


class EnvGroup:
    """`count` environments of one kind, stepped one after another.

    They are made by `open` and not by the constructor, so that all groups can make theirs at the same time.

    Args:
        env: what each of them is.
        count: how many.
        env_kwargs: for `make_env`.
        with_infos: whether `step` returns the infos of ordinary steps.
        autoreset: name of the `AutoresetMode`; a name, because it travels to other processes.
    """

    def __init__(
        self, env: EnvMaker, count: int, env_kwargs: Mapping[str, Any], with_infos: bool, autoreset: str = "SAME_STEP"
    ) -> None:
        self._make: Callable[[], Any] = lambda: make_env(env, env_kwargs)
        self._envs: list[Any] = []
        self._with_infos = with_infos
        self._mode = AutoresetMode[autoreset]
        self._over = [False] * count  # with NEXT_STEP: the next step only resets it
        self._current: list[Any] = []  # each environment's newest observation
        self._count = count
        self._returns = np.zeros(count)
        self._now = 0  # calls of `step`
        self._begun = [0] * count  # its value when each episode began
        self._at = 0  # the environment that is being stepped or reset, to name it when it raises

    def open(self) -> GroupSpaces:
        """Make the environments, and say what spaces one of them has."""
        self._envs = [self._make() for _ in range(self._count)]
        first = self._envs[0]
        return GroupSpaces(first.observation_space, first.action_space, dict(first.metadata))

    def reset(
        self, seeds: Sequence[int | None], options: dict[str, Any] | None, chosen: Sequence[bool] | None = None
    ) -> tuple[Any, Infos]:
        """Begin a new episode in every environment, or in the chosen ones.

        Args:
            seeds: one an environment; None goes on with the environment's own generator.
            options: handed to every environment's `reset`.
            chosen: which environments; the others go on with the episode they are in.

        Returns:
            the observations `[count, *obs]`, newest ones of those that go on, and the infos that are not empty.
        """
        observations, infos = list(self._current) or [None] * len(self._envs), []
        try:
            for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
                if chosen is not None and not chosen[index]:
                    continue
                self._at = index
                observations[index], info = env.reset(seed=seed, options=options)
                self._begin([index])
                if info:
                    infos.append((index, info))
        except Exception as error:
            self._name_the_culprit(error, "reset")
            raise
        self._current = observations
        return self._stack(observations), infos

    def step(self, actions: Iterable[Any]) -> GroupStep:
        """Step every environment once, and reset those that ended as the mode says.

        Args:
            actions: one an environment, `[count, *act]` or any iterable of that length.
        """
        count = self._count
        self._now += 1
        rewards = np.empty(count)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        observations: list[Any] = []
        endings: list[Ending] = []
        infos: Infos = []
        over, with_infos = self._over, self._with_infos
        begun: list[int] = []
        try:
            for index, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
                self._at = index
                if over[index]:
                    observation, info = env.reset()
                    rewards[index] = 0.0
                    begun.append(index)
                else:
                    observation, reward, ended, cut, info = env.step(action)
                    rewards[index] = reward
                    if ended or cut:
                        terminated[index], truncated[index] = ended, cut
                        endings.append(self._ending(index, observation, float(reward), info))
                        if self._mode is AutoresetMode.SAME_STEP:
                            observation, info = env.reset()
                            begun.append(index)
                        else:
                            over[index] = self._mode is AutoresetMode.NEXT_STEP
                observations.append(observation)
                if info and (with_infos or begun[-1:] == [index]):
                    infos.append((index, info))
        except Exception as error:
            self._name_the_culprit(error, "step")
            raise
        self._returns += rewards
        if begun:
            self._begin(begun)
        self._current = observations
        return GroupStep(self._stack(observations), rewards, terminated, truncated, endings, infos)

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _begin(self, indices: list[int]) -> None:
        self._returns[indices] = 0.0
        for index in indices:
            self._begun[index], self._over[index] = self._now, False

    def _ending(self, index: int, observation: Any, reward: float, info: dict[str, Any]) -> Ending:
        # A copy, because some environments reuse the array in which they return observations.
        last = deepcopy(observation) if self._mode is AutoresetMode.SAME_STEP else None
        return Ending(index, last, info, float(self._returns[index]) + reward, self._now - self._begun[index])

    def _stack(self, observations: list[Any]) -> Any:
        space = self._envs[0].observation_space
        count = len(observations)
        if not isinstance(space, ArraySpaces):
            out: Any = create_empty_array(space, n=count)
            return concatenate(space, observations, out)
        stacked = np.empty((count, *(space.shape or ())), space.dtype)
        for index, observation in enumerate(observations):  # for few rows faster than numpy.stack
            stacked[index] = observation
        return stacked

    def _name_the_culprit(self, error: Exception, method: str) -> None:
        error.add_note(f"raised in {method} by environment {self._at} of the {len(self._envs)} of its actor")


def make_env(env: EnvMaker, env_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Make one environment.

    Args:
        env: a registered id, or a function that returns an environment.
        env_kwargs: passed to `gymnasium.make` or to the function.
    """
    kwargs = dict(env_kwargs or {})
    if isinstance(env, str):
        # The passive checker looks at the first step only, and costs a call on every other.
        return gymnasium.make(env, disable_env_checker=True, **kwargs)
    return env(**kwargs)


# numpy spends ten times as long on pickling a few numbers as on copying them: small arrays travel as bytes. Larger
# ones stay arrays, which parl-remote hands over without a copy.
_BYTES_WORTH_A_COPY = 8192

_Packed = tuple[Any, ...]


def _packed(part: Any) -> _Packed:
    if not isinstance(part, np.ndarray) or part.nbytes >= _BYTES_WORTH_A_COPY or part.dtype.hasobject:
        return (part,)
    return part.tobytes(), part.dtype.str, part.shape


def _array(data: Any, dtype: str = "", shape: tuple[int, ...] = ()) -> Any:
    if not dtype:
        return data
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # of a bytearray, because arrays of bytes are read-only


def _unpack(endings: list[Ending], infos: Infos, *parts: _Packed) -> GroupStep:
    observations, rewards, terminated, truncated = (_array(*part) for part in parts)
    return GroupStep(observations, rewards, terminated, truncated, endings, infos)
