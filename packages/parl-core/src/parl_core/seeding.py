"""Explicit random generators: made from a seed, split for several users, saved and restored as JSON.

Code of this project draws from a `numpy.random.Generator` that was handed to it. Only a replay memory without a seed
takes one from numpy's global state, which programs of PARL 2.x seed. `seed_everything` is for user programs that also
use the generators of other libraries.
"""

import json
import random
import sys
from collections.abc import Callable

import numpy as np

from parl_core.checks import check_int
from parl_core.errors import HyperparameterError

__all__ = [
    "generator_from_json",
    "generator_to_json",
    "make_generator",
    "seed_everything",
    "seed_on_load",
    "spawn_seeds",
]

_SAVED = ("PCG64", "PCG64DXSM")  # their state is a few integers
_SEEDERS = {"torch": "manual_seed", "paddle": "seed"}
_waiting: dict[str, int] = {}  # seeds of frameworks that were not imported yet when `seed_everything` was called
_loaders: dict[str, Callable[[], object]] = {}  # import the frameworks whose backends the program uses


def make_generator(seed: int | np.random.Generator | np.random.SeedSequence | None = None) -> np.random.Generator:
    """Return a generator: the given one itself, or a new PCG64 from the seed (None: from the system).

    Raises:
        HyperparameterError: The seed is not a whole number of at least 0.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    if seed is None or isinstance(seed, np.random.SeedSequence):
        return np.random.default_rng(seed)
    return np.random.default_rng(check_int("seed", seed, at_least=0))


def spawn_seeds(seed: int | None, n: int) -> list[int]:
    """Return `n` seeds in [0, 2**31), one for each environment or actor.

    They are independent of each other, and the first ones do not depend on `n`. (`seed + i`, the usual way,
    gives two runs with neighbouring seeds almost the same environments.)

    Args:
        seed: The seed of the whole run; None takes it from the system.
        n: The number of seeds.

    Raises:
        HyperparameterError: The seed is not a whole number of at least 0.
    """
    checked = None if seed is None else check_int("seed", seed, at_least=0)
    children = np.random.SeedSequence(checked).spawn(n)
    return [int(child.generate_state(1, np.uint32)[0] >> 1) for child in children]


def generator_to_json(generator: np.random.Generator) -> str:
    """Return the generator's state as text, for a checkpoint.

    Raises:
        ValueError: It is not a PCG64 generator, numpy's default.
    """
    state = generator.bit_generator.state
    if state["bit_generator"] not in _SAVED:
        raise ValueError(f"cannot save a {state['bit_generator']} generator: use one of {_SAVED}")
    return json.dumps(state)


def generator_from_json(text: str) -> np.random.Generator:
    """Return a generator that continues from the saved state.

    Raises:
        ValueError: The text is not such a state.
    """
    state = json.loads(text)
    name = state.get("bit_generator") if isinstance(state, dict) else None
    if name not in _SAVED:
        raise ValueError(f"cannot restore the random generator {name!r}: expected one of {_SAVED}")
    bit_generator = getattr(np.random, name)()
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def seed_everything(seed: int) -> np.random.Generator:
    """Seed Python's `random`, numpy's global state, and torch or paddle.

    A framework that the program has not imported yet is seeded when `parl` loads it as its backend, so it does not
    matter whether this is called before or after the first use of `parl.Model`.

    The same seed gives the same numbers on the same machine with the same versions; on a GPU some operations of the
    frameworks are still not deterministic.

    Args:
        seed: The seed, in [0, 2**32).

    Returns:
        A generator from that seed, for everything that takes one.

    Raises:
        HyperparameterError: The seed is out of its range.
    """
    seed = check_int("seed", seed, at_least=0)  # Python's own, which `random` insists on
    if seed >= 2**32:
        raise HyperparameterError(f"seed must be below 2**32, got {seed!r}")
    random.seed(seed)
    np.random.seed(seed)
    for name in _SEEDERS:
        _waiting[name] = seed
        if name in sys.modules or name in _loaders:
            _seed(name)
    return np.random.default_rng(seed)


def seed_on_load(framework: str, load: Callable[[], object]) -> None:
    """Seed a framework that is loaded after `seed_everything` was called.

    Args:
        framework: The import name of the framework.
        load: The function that imports the framework, called as soon as its seed is set.
    """
    _loaders[framework] = load
    if framework in _waiting:
        _seed(framework)


def _seed(framework: str) -> None:
    if framework in _loaders:
        _loaders[framework]()
    module = sys.modules.get(framework)
    if module is not None:
        getattr(module, _SEEDERS[framework])(_waiting.pop(framework))
