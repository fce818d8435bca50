"""Environments of the command line: the built-in `cartpole`, or a function of the user.

An environment is a function (agent, seed) that returns the return of one episode; equal seeds start equal episodes.
"""

import contextlib
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from parl_evokit._samples import as_float
from parl_evokit.errors import EvolutionError, InvalidReward
from parl_evokit.models.adapter import Predictor

__all__ = ["Episode", "NamedEpisode", "cartpole", "load_object", "users_code"]

Episode = Callable[[Predictor, int], float]
"""A function that plays one episode with `predict` of a model and a seed, and returns the return of the episode."""


def cartpole() -> Episode:
    """Return a function that plays CartPole-v1 with the more probable action; the best return is 500.

    Raises:
        EvolutionError: gymnasium is not installed.
    """
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as error:
        raise EvolutionError("the built-in environment needs gymnasium: pip install parl-evokit[loop]") from error
    env = gymnasium.make("CartPole-v1")

    def episode(agent: Predictor, seed: int) -> float:
        obs, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(int(agent.predict(obs).argmax()))
            total += float(reward)
            done = terminated or truncated
        return total

    return episode


class NamedEpisode:
    """An `Episode` that is pickled by name, so that each process makes its own environment at its first episode.

    Args:
        name: `cartpole`, or package.module:function, where the function returns an `Episode`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._play: Episode | None = None

    def open(self) -> None:
        """Make the environment now.

        Raises:
            EvolutionError: The function is missing, raised or needs arguments, or gymnasium is missing.
        """
        make = cartpole if self._name == "cartpole" else load_object(self._name)
        with users_code(self._name):
            try:
                with contextlib.suppress(ValueError):  # built-in functions may have no signature
                    inspect.signature(make).bind()
            except TypeError as error:
                raise EvolutionError(
                    f"{self._name} must be a function without arguments that returns a function (agent, seed): {error}"
                ) from error
            self._play = make()

    def __call__(self, agent: Predictor, seed: int) -> float:
        """Return the return of one episode.

        Raises:
            EvolutionError: The episode raised, or its return is not a number.
        """
        if self._play is None:
            self.open()
        assert self._play is not None
        with users_code(self._name):
            reward = self._play(agent, seed)
        try:
            return as_float(reward)
        except InvalidReward as error:
            raise EvolutionError(f"{self._name} did not return a reward: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_play": None}


def load_object(name: str) -> Any:
    """Return the object that `package.module:name` refers to.

    Raises:
        EvolutionError: The name has another form, the object does not exist, or its module raised.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise EvolutionError(f"{name!r} is not of the form package.module:function")
    with users_code(name):
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise EvolutionError(f"{name} cannot be imported: {error}") from error


@contextlib.contextmanager
def users_code(name: str) -> Iterator[None]:
    """Turn an exception of the user's code into an error of one line that names the code and the place.

    Raises:
        EvolutionError: The code raised an exception that is not an `EvolutionError`.
    """
    try:
        yield
    except EvolutionError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{name} raised {type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        raise EvolutionError(text) from error
