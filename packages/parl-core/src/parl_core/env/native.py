"""C++ vector environments of other libraries, behind the interface of `parl_core.env.vector`.

    make_native_vector_env("pong", 8, "ale")              ALE's own, with DeepMind's preprocessing inside
    make_native_vector_env("CartPole-v1", 8, "envpool")   EnvPool's

Both step all environments in threads of this process. This module adds Gymnasium's SAME_STEP autoreset (or NEXT_STEP,
the mode of both libraries, which saves EnvPool a second call), the same seeds as elsewhere in PARL, float64 rewards,
and the finished episodes' statistics in `infos["episode"]`.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_space

from parl_core._nested import map_nested
from parl_core.checks import check_int
from parl_core.env.autoreset import Seeds, chosen_by, mode_of, seeds_of
from parl_core.errors import HyperparameterError

__all__ = ["AleVectorEnv", "EnvPoolVectorEnv", "NativeVectorEnv", "make_native_vector_env"]

Step = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]

_GOES_ON = -1  # ALE's code for an environment that continues with its own generator
_LAST_SEED = np.iinfo(np.int32).max


def make_native_vector_env(env: str, num_envs: int, engine: str, **options: Any) -> "NativeVectorEnv":
    """Make `num_envs` environments of another library's vector environment.

    Args:
        env: The library's name of the task: a game such as `"pong"` (or an id such as `"ALE/Pong-v5"`) for ALE, a task
            id such as `"CartPole-v1"` or `"Pong-v5"` for EnvPool.
        num_envs: The number of environments, at least 1.
        engine: `"ale"` (needs ale-py) or `"envpool"`.
        options: Further arguments of the engine's class; see `AleVectorEnv` and `EnvPoolVectorEnv`.

    Raises:
        HyperparameterError: A number or name is not allowed.
        ImportError: The library is not installed; the message has the command.
    """
    check_int("num_envs", num_envs)
    if engine == "ale":
        return AleVectorEnv(env, num_envs, **options)
    if engine == "envpool":
        return EnvPoolVectorEnv(env, num_envs, **options)
    raise HyperparameterError(f"engine must be 'ale' or 'envpool', got {engine!r}")


class NativeVectorEnv(GymnasiumVectorEnv[Any, Any, Any]):
    """Base of both libraries' environments: spaces, and statistics of episodes."""

    closed = True  # set before construction, because Gymnasium before 1.4 closes partly constructed environments

    def __init__(self, num_envs: int, observation_space: Any, action_space: Any, mode: AutoresetMode) -> None:
        self.closed = False
        self.num_envs, self._mode = num_envs, mode
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.metadata = {"autoreset_mode": mode}
        self._returns = np.zeros(num_envs)
        self._now = 0  # steps
        self._begun = np.zeros(num_envs, np.int64)  # the counter's value when each episode began

    def _begin_episodes(self, chosen: npt.NDArray[np.bool_] | None) -> None:
        which = slice(None) if chosen is None else chosen
        self._returns[which], self._begun[which] = 0.0, self._now

    def _count(self, rewards: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Add one step to the statistics, and return those of the episodes that it ended."""
        self._returns += rewards
        self._now += 1
        if not np.count_nonzero(ended):
            return {}
        episode = {"r": np.where(ended, self._returns, 0.0), "l": np.where(ended, self._now - self._begun, 0)}
        resets_later = self._mode is AutoresetMode.NEXT_STEP
        self._returns[ended], self._begun[ended] = 0.0, self._now + resets_later
        named: dict[str, Any] = {"episode": episode, "_episode": ended}
        return named if resets_later else {**named, "_final_obs": ended}

    def _checked(self, actions: Any, dtype: Any) -> npt.NDArray[Any]:
        """Return the actions in the library's form, checked because ALE waits forever for a missing one."""
        given, space = np.asarray(actions), self.single_action_space
        if given.shape != self.action_space.shape:
            raise HyperparameterError(
                f"actions must have the shape {list(self.action_space.shape or ())}, one for each environment, got "
                f"{list(given.shape)}"
            )
        if not np.can_cast(given.dtype, dtype, "same_kind"):
            raise HyperparameterError(f"actions of {space} must be {np.dtype(dtype).name}, got {given.dtype}: {given}")
        if isinstance(space, Discrete):
            allowed = (given >= space.start) & (given < space.start + space.n)
        else:
            allowed = np.isfinite(given)
        if not allowed.all():
            raise HyperparameterError(f"actions must be in {space}, got {given.tolist()}: check their source")
        return np.ascontiguousarray(given, dtype)


class AleVectorEnv(NativeVectorEnv):
    """`ale_py.vector_env.AtariVectorEnv`, by default with same-step resets.

    Its preprocessing is DeepMind's: 84 x 84 grey frames, four stacked, each action four times, the maximum of two
    screens, up to 30 no-ops, fire at the start, clipped rewards, and here also the end of an episode at a lost life.
    `infos["episode"]["r"]` therefore sums clipped rewards of one life; evaluate with `reward_clipping=False` and
    `episodic_life=False`.

    Args:
        game: ALE's name of the ROM, such as `"space_invaders"`, or a Gymnasium id such as `"ALE/SpaceInvaders-v5"`.
        num_envs: The number of environments.
        autoreset_mode: SAME_STEP or NEXT_STEP.
        options: Other arguments of `AtariVectorEnv`, such as `num_threads=2`, `episodic_life=False` or
            `reward_clipping=False`.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> None:
        mode = _offered(autoreset_mode)
        try:
            library: Any = import_module("ale_py.vector_env")
        except ImportError as error:
            _refuse("ALE's vector environment", 'pip install "parl-core[atari]"', error)
        settings = {"episodic_life": True, **options, "autoreset_mode": mode}
        self._ale: Any = library.AtariVectorEnv(_rom(game), num_envs, **settings)
        super().__init__(num_envs, self._ale.single_observation_space, self._ale.single_action_space, mode)
        self._dtype = np.float32 if options.get("continuous") else np.int64

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in some; as in `parl_core.env.vector`.

        Raises:
            HyperparameterError: The number of seeds is wrong, ALE does not accept one, or the mask has another form.
        """
        chosen = chosen_by((options or {}).get("reset_mask"), self.num_envs)
        seeds = np.array([_GOES_ON if one is None else one for one in seeds_of(seed, self.num_envs)])
        if seeds.max() > _LAST_SEED:
            raise HyperparameterError(f"ALE takes seeds up to {_LAST_SEED}, got {seeds.max()}")
        self._begin_episodes(chosen)
        observations, infos = self._ale.reset(seed=seeds if chosen is None else seeds[chosen], options=options)
        return observations, infos

    def step(self, actions: Any) -> Step:
        """Step every environment once.

        Raises:
            HyperparameterError: The actions have another shape or dtype, or one is not in the action space.
        """
        observations, rewards, terminated, truncated, infos = self._ale.step(self._checked(actions, self._dtype))
        rewards = rewards.astype(np.float64)
        infos |= self._count(rewards, terminated | truncated)
        return observations, rewards, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        """End the threads; called by `close`."""
        self._ale.close()


class EnvPoolVectorEnv(NativeVectorEnv):
    """A pool of EnvPool, by default with same-step resets: only environments that ended are reset at once.

    This takes a second call into EnvPool in every step in which an episode ends. With NEXT_STEP there is no second
    call: EnvPool resets in the next step.

    A pool takes its seed when it is made. `reset(seed=...)` therefore makes a new one, seeded with the first seed;
    EnvPool derives those of the environments from it.

    Args:
        task: EnvPool's task id.
        num_envs: The number of environments.
        autoreset_mode: SAME_STEP or NEXT_STEP.
        options: Other arguments of `envpool.make_gymnasium`, such as `num_threads=2`.
    """

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
        **options: Any,
    ) -> None:
        mode = _offered(autoreset_mode)
        try:
            library: Any = import_module("envpool")
        except ImportError as error:
            _refuse("EnvPool", "pip install envpool", error)
        if task not in library.list_all_envs():
            raise HyperparameterError(f"EnvPool has no task {task!r}: see envpool.list_all_envs()")
        self._make: Callable[..., Any] = partial(library.make_gymnasium, task, num_envs=num_envs, **options)
        self._pool = self._make()
        super().__init__(num_envs, self._pool.observation_space, self._pool.action_space, mode)
        self._dtype = self.single_action_space.dtype
        self._newest: Any = None  # observations

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in some.

        Args:
            seed: The seed of a new pool; not allowed together with a mask.
            options: Only `"reset_mask"` is accepted, bool `[num_envs]`: the environments to reset; the others continue.

        Raises:
            HyperparameterError: There are other options, which EnvPool does not accept, the mask has another form, or
                some environments are to be reset before all have been.
        """
        passed = dict(options or {})
        chosen = chosen_by(passed.pop("reset_mask", None), self.num_envs)
        first = seeds_of(seed, self.num_envs)[0]
        if passed:
            raise HyperparameterError(f"EnvPool's reset takes no options, got {sorted(passed)}")
        if chosen is not None and (first is not None or self._newest is None):
            raise HyperparameterError(
                "a reset_mask is for environments that run: reset all first, and give no seed then"
            )
        self._begin_episodes(chosen)
        if chosen is not None:
            self._newest, infos = self._reset_some(self._newest, chosen)
            return self._newest, infos
        if first is not None:
            self._pool.close()
            self._pool = self._make(seed=first)
        self._newest, infos = self._pool.reset()
        return self._newest, infos

    def step(self, actions: Any) -> Step:
        """Step every environment once; errors as in `AleVectorEnv`."""
        observations, rewards, terminated, truncated, infos = self._pool.step(self._checked(actions, self._dtype))
        ended = terminated | truncated
        rewards = rewards.astype(np.float64)
        finished = self._count(rewards, ended)
        if finished and self._mode is AutoresetMode.SAME_STEP:
            final_obs = np.full(self.num_envs, None, object)
            for index in np.flatnonzero(ended):
                final_obs[index] = map_nested(itemgetter(index), observations)
            observations, _ = self._reset_some(observations, ended)
            infos["final_obs"] = final_obs
        infos.update(finished)
        self._newest = observations
        return observations, rewards, terminated, truncated, infos

    def _reset_some(self, observations: Any, chosen: npt.NDArray[np.bool_]) -> tuple[Any, dict[str, Any]]:
        """Return all observations with those of the chosen environments replaced by their first ones, as a copy."""
        begun, infos = self._pool.reset(np.flatnonzero(chosen).astype(np.int32))
        return map_nested(partial(_with_rows, chosen), observations, begun), infos

    def close_extras(self, **_: Any) -> None:
        """End the pool; called by `close`."""
        self._pool.close()


def _with_rows(chosen: npt.NDArray[np.bool_], rows: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    rows = rows.copy()
    rows[chosen] = new
    return rows


def _offered(mode: str | AutoresetMode) -> AutoresetMode:
    found = mode_of(mode)
    if found is AutoresetMode.DISABLED:
        raise HyperparameterError("these environments always reset by themselves: autoreset_mode cannot be DISABLED")
    return found


def _rom(game: str) -> str:
    """Return ALE's name of a game, from that or a Gymnasium id: `ALE/SpaceInvaders-v5` is `space_invaders`."""
    name = game.removeprefix("ALE/").removesuffix("-v5").removesuffix("NoFrameskip-v4")
    return name if name.islower() else "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _refuse(what: str, command: str, error: ImportError) -> NoReturn:
    raise ImportError(f"{what} is not installed:\n    {command}", name=error.name) from error
