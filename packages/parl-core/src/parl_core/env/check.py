"""A check of environments for problems that would break training, or make it slow or poor.

    for advice in check_env(MyEnv()):
        print(advice)

A finding is a sentence with the problem, the values, and the remedy.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from parl_core.checks import check_int, first_not_finite
from parl_core.contracts.actions import mask_of
from parl_core.env._contract import name_of
from parl_core.env._vector_group import EnvMaker, make_as_it_is
from parl_core.env.compat import as_gymnasium
from parl_core.errors import EnvironmentContractError
from parl_core.spaces import has_agents

__all__ = ["check_env"]

_LARGE = 100.0
"""Observations beyond this saturate or slow down networks that were initialised for numbers of about unit size."""


def check_env(env: Any, *, steps: int = 200, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> list[str]:
    """Play an environment with random actions, and check everything on which training loops rely.

    If observations have an `action_mask`, only actions that it allows are taken.

    Args:
        env: A Gymnasium environment, a registered id, or a function that returns an environment. An environment that is
            made here is closed; a given one is left open.
        steps: Number of steps to take.
        seed: Seed of the environment and of the actions.
        env_kwargs: Arguments for an id or function.

    Returns:
        Advice: sentences on what works, but could be better.

    Raises:
        EnvironmentContractError: The environment breaks Gymnasium's rules; the message lists all findings.
        Exception: An exception of the environment, with a note.
    """
    check_int("steps", steps)
    maker: EnvMaker | None = env if isinstance(env, (str, type)) or not hasattr(env, "step") else None
    found = make_as_it_is(maker, env_kwargs) if maker is not None else env
    if getattr(found, "api", None) == "gym":  # as it declares itself
        found = as_gymnasium(found)
    name = name_of(found)
    try:
        checker = _Checker(found)
        checker.check(steps, seed)
    except Exception as error:
        error.add_note(f"while {name} was checked")
        raise
    finally:
        if maker is not None and hasattr(found, "close"):
            found.close()
    if checker.problems:
        lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(checker.problems, 1))
        raise EnvironmentContractError(f"{name} would break training:\n{lines}")
    return list(checker.advice)


class _Checker:
    def __init__(self, env: Any) -> None:
        self.env = env
        self.problems: dict[str, None] = {}  # in order, each once
        self.advice: dict[str, None] = {}

    def check(self, steps: int, seed: int) -> None:
        if self._spaces():
            self._actions = copy.deepcopy(self.env.action_space)  # the environment may use its own generator
            first = self._reset(seed)
            if not self.problems:
                self._same_seed(first, seed)
            if not self.problems:
                self._play(steps, seed)

    def _problem(self, text: str) -> None:
        self.problems[text] = None

    def _advise(self, text: str) -> None:
        self.advice[text] = None

    def _spaces(self) -> bool:
        for name in ("observation_space", "action_space"):
            space = getattr(self.env, name, None)
            if not isinstance(space, gymnasium.spaces.Space):
                self._problem(
                    f"{name} is {space!r}: set self.{name} in __init__ to one of gymnasium.spaces, such as "
                    "Box(-1.0, 1.0, (4,), numpy.float32) or Discrete(2)"
                )
        for name in ("reset", "step"):
            if not callable(getattr(self.env, name, None)):
                self._problem(f"there is no method {name}(): derive the class from gymnasium.Env and define it")
        if self.problems:
            return False
        if not isinstance(self.env, gymnasium.Env):
            self._advise(
                f"{name_of(self.env)} is not a gymnasium.Env: the loops take it as it is, Gymnasium's wrappers do not; "
                "derive the class from it"
            )
        self._of_team = has_agents(self.env.observation_space)
        self._action_space(self.env.action_space)
        for path, space in _leaves(self.env.observation_space, "observation_space"):
            self._observation_space(path, space)
        return True

    def _action_space(self, space: Any) -> None:
        if not isinstance(space, gymnasium.spaces.Box):
            return
        if not space.is_bounded():
            self._problem(
                f"action_space {space} is not bounded: off-policy algorithms scale actions by the bounds, give finite "
                "ones in Box(low, high)"
            )
        elif not ((np.allclose(space.low, -1.0) and np.allclose(space.high, 1.0)) or self._of_team):
            self._advise(
                f"actions lie in [{space.low.min():g}, {space.high.max():g}]: policies act in [-1, 1], which PARL's "
                "loops map to these bounds; for a loop of your own, wrap the environment in "
                "parl.env.ActionMappingWrapper"
            )
        if not np.issubdtype(space.dtype, np.floating):
            self._advise(
                f"action_space has dtype {space.dtype}: for choices use Discrete or MultiDiscrete, for numbers a Box "
                "of numpy.float32"
            )

    def _observation_space(self, path: str, space: Any) -> None:
        if not isinstance(space, gymnasium.spaces.Box):
            return
        if space.dtype == np.float64:
            self._advise(f"{path} has dtype float64: numpy.float32 halves replay memory and transfers, nothing is lost")
        if len(space.shape) == 3 and space.dtype != np.uint8:
            self._advise(
                f"{path} looks like images {list(space.shape)} of dtype {space.dtype}: as uint8 in 0..255 they take a "
                "quarter of the memory, and parl's networks divide by 255 themselves"
            )

    def _reset(self, seed: int | None) -> Any:
        try:
            answer = self.env.reset(seed=seed, options=None)
        except TypeError as error:
            missing = next((name for name in ("seed", "options") if name in str(error)), None)
            if missing is None:
                raise
            self._problem(
                f"reset() takes no {missing}: define reset(self, *, seed=None, options=None) and call "
                "super().reset(seed=seed) in it"
            )
            return None
        if isinstance(answer, tuple) and len(answer) == 2 and not isinstance(answer[1], dict):
            self._problem(f"the info of reset() is {_kind(answer[1])}: return a dict; {{}} will do")
            return None
        if not (isinstance(answer, tuple) and len(answer) == 2):
            self._problem(
                f"reset() returned {_kind(answer)}: return the pair (observation, info), where info is a dict; {{}} "
                "will do"
            )
            return None
        self._observation(answer[0], "reset()")
        return answer[0]

    def _same_seed(self, first: Any, seed: int) -> None:
        first = _copy(first)
        runs = []
        for _ in range(2):
            self._actions.seed(seed)
            observation = self._reset(seed)
            run: list[Any] = [_copy(observation)]
            for _ in range(5):
                step = self.env.step(self._drawn(observation))
                if not self._step(step):
                    return
                observation, reward, terminated, truncated, _ = step
                run.append((_copy(observation), float(reward), bool(terminated), bool(truncated)))
                if terminated or truncated:
                    break
            runs.append(run)
        same = len(runs[0]) == len(runs[1]) and all(map(data_equivalence, *runs))
        if self.problems:
            return
        if not same or not data_equivalence(first, runs[0][0]):
            self._problem(
                f"two episodes with seed {seed} and the same actions differ in observations, rewards or ends: draw "
                "from self.np_random only (not from numpy.random or random), leave the clock out, and call "
                "super().reset(seed=seed) in reset()"
            )

    def _play(self, steps: int, seed: int) -> None:
        self._actions.seed(seed)
        observation = self._reset(seed)
        ended, largest, rewards = 0, 0.0, []
        for _ in range(steps):
            kept, before = observation, _copy(observation)
            answer = self.env.step(self._drawn(observation))
            if not self._step(answer):
                return
            observation, reward, terminated, truncated, _ = answer
            if not data_equivalence(kept, before):
                self._advise(
                    "step() changes the array that it returned the step before: PARL's loops copy it, other programs "
                    "may not; return a new array each time"
                )
            rewards.append(float(reward))
            largest = max(largest, _magnitude(observation))
            if terminated or truncated:
                ended += 1
                observation = self._reset(None)
            if self.problems:
                return
        if largest > _LARGE and not _only_bytes(self.env.observation_space):
            self._advise(
                f"observations reach {largest:g}: numbers of about unit size are learned from best, use "
                "parl.env.wrap_rms, NormalizeVector, or scale them"
            )
        if not ended and not _time_limit(self.env):
            self._advise(
                f"no episode ended within {steps} steps and there is no time limit: pass max_episode_steps to "
                "gymnasium.register or make, or wrap it in gymnasium.wrappers.TimeLimit, which truncates (and does not "
                "terminate)"
            )
        if len(set(rewards)) == 1 and len(rewards) > 1:
            self._advise(
                f"every one of {steps} random steps gave the reward {rewards[0]:g}: where that is not so by design "
                "(CartPole's is), check it, and expect exploration to be hard"
            )
        elif rewards and (scale := max(map(abs, rewards))) > _LARGE:
            self._advise(f"rewards reach {scale:g}: scale them, or use parl.env.wrap_rms or NormalizeVector")

    def _drawn(self, observation: Any) -> Any:
        """Return a random action that the mask allows; the mask has concatenated parts, or a row per agent."""
        space, mask = self._actions, mask_of(observation)
        match space:
            case gymnasium.spaces.Discrete():
                sizes = [int(space.n)]
            case gymnasium.spaces.MultiDiscrete() if space.nvec.ndim == 1:
                sizes = space.nvec.tolist()
            case _:
                return space.sample()
        if mask is None:
            return space.sample()
        possible = np.asarray(mask, np.bool_).astype(np.int8)
        if possible.ndim == 2:
            parts = [row[:size] for row, size in zip(possible, sizes, strict=False)]
        else:
            parts = np.split(possible, np.cumsum(sizes)[:-1])
        if [len(part) for part in parts] != sizes:
            self._problem(
                f"the action_mask has shape {list(possible.shape)}, the actions are {space}: one entry a choice"
            )
        elif not all(part.any() for part in parts):
            self._problem("the action_mask leaves no action and the episode goes on: let at least one be possible")
        else:
            return space.sample(tuple(parts) if len(space.shape) else parts[0])
        return space.sample()

    def _step(self, answer: Any) -> bool:
        if not (isinstance(answer, tuple) and len(answer) == 5):
            hint = " (gym's old `done` is two: terminated and truncated)" if _length(answer) == 4 else ""
            self._problem(
                f"step() returned {_kind(answer)}: return (observation, reward, terminated, truncated, info){hint}"
            )
            return False
        observation, reward, terminated, truncated, info = answer
        self._observation(observation, "step()")
        if isinstance(reward, (bool, np.bool_)) or not _is_number(reward):
            self._problem(f"the reward is {_kind(reward)}: return one number, such as float(reward)")
        elif not math.isfinite(float(reward)):
            self._problem(f"the reward is {float(reward)}: it would make all weights NaN, look for divisions by 0")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                self._problem(f"{name} is {_kind(flag)}: return a bool, such as bool({name})")
        if not isinstance(info, dict):
            self._problem(f"info is {_kind(info)}: return a dict; {{}} will do")
        return not self.problems

    def _observation(self, observation: Any, source: str) -> None:
        for problem in _mismatches(self.env.observation_space, observation, "the observation"):
            self._problem(f"{source}: {problem}")


def _mismatches(space: Any, value: Any, name: str) -> Iterator[str]:
    """Return the parts of an observation that do not fit its space."""
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space):
            has = sorted(value) if isinstance(value, Mapping) else _kind(value)
            yield f"{name} has {has}, the space {sorted(space)}: return a dict with exactly those keys"
            return
        for key, part in space.items():
            yield from _mismatches(part, value[key], f"{name}[{key!r}]")
    elif isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space):
            yield f"{name} is {_kind(value)}, the space a tuple of {len(space)}: return a tuple of that length"
            return
        for index, part in enumerate(space):
            yield from _mismatches(part, value[index], f"{name}[{index}]")
    elif isinstance(space, gymnasium.spaces.Box):
        yield from _box_mismatches(space, value, name)
    elif not space.contains(value):
        yield f"{name} is {value!r} of type {type(value).__name__}, which is not in {space}: correct one of them"


def _box_mismatches(space: Any, value: Any, name: str) -> Iterator[str]:
    if isinstance(value, np.generic):  # numpy returns scalars for arrays without dimensions
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        yield f"{name} is {_kind(value)}: return a numpy array, such as numpy.array(value, {space.dtype})"
    elif value.shape != space.shape:
        yield f"{name} has shape {list(value.shape)}, the space {list(space.shape)}: correct one of them"
    elif value.dtype.kind not in "biuf":
        yield _other_dtype(space, value, name)
    elif value.dtype.kind == "f" and (where := first_not_finite(value)) is not None:
        yield f"{name}{list(where)} is {value[where]}: it would make all weights NaN, look for divisions by 0"
    elif (outside := (value < space.low) | (value > space.high)).any():
        at = tuple(np.argwhere(outside)[0])
        yield (
            f"{name}{[int(i) for i in at]} is {value[at]}, outside of its bounds [{space.low[at]:g}, "
            f"{space.high[at]:g}]: widen the bounds of observation_space, or clip"
        )
    # after the check of bounds, because conversion would wrap numbers outside
    elif not np.can_cast(value.dtype, space.dtype):
        yield _other_dtype(space, value, name)


def _other_dtype(space: Any, value: NDArray[Any], name: str) -> str:
    return f"{name} has dtype {value.dtype}, the space {space.dtype}: return value.astype({space.dtype})"


def _leaves(space: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(space, gymnasium.spaces.Tuple):
        for index, part in enumerate(space):
            yield from _leaves(part, f"{path}[{index}]")
    else:
        yield path, space


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copy(part) for key, part in value.items()}
    return tuple(map(_copy, value)) if isinstance(value, tuple) else value


def _magnitude(value: Any) -> float:
    if isinstance(value, Mapping):
        return max(map(_magnitude, value.values()), default=0.0)
    if isinstance(value, tuple):
        return max(map(_magnitude, value), default=0.0)
    array = np.asarray(value)
    return float(np.abs(array).max()) if array.dtype.kind == "f" and array.size else 0.0


def _only_bytes(space: Any) -> bool:
    return all(part.dtype == np.uint8 for _, part in _leaves(space, ""))


def _time_limit(env: Any) -> bool:
    spec = getattr(env, "spec", None)
    return spec is not None and spec.max_episode_steps is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf"
    )


def _length(value: Any) -> int:
    return len(value) if isinstance(value, tuple) else -1


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    return f"{value!r} of type {type(value).__name__}"
