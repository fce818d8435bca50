"""Functions that worker processes and actors can import; used by the tests of parallel sampling."""

import contextlib
import os
import signal
from typing import Any

import numpy as np

from parl_evokit.errors import EvolutionError


def output(agent: Any, seed: int) -> float:
    """The first output for an input that the seed gives."""
    x = np.random.default_rng(seed).normal(size=4).astype(np.float32)
    return float(agent.predict(x)[0])


def first_weight(agent: Any) -> float:
    """A reward that depends on the noise alone."""
    return float(agent.parameters()["w0"][0, 0])


class Counting:
    """An evaluation with something of its own in each worker."""

    made = 0

    def __init__(self) -> None:
        Counting.made += 1

    def __call__(self, agent: Any, seed: int) -> float:
        return output(agent, seed)


class Unmakeable:
    """A class whose constructor fails."""

    def __init__(self) -> None:
        raise RuntimeError("no environment here")

    def __call__(self, agent: Any) -> float:
        raise AssertionError


class Raises:
    """Raises for the sample of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, agent: Any, seed: int) -> float:
        if seed == self.seed:
            raise EvolutionError(f"cannot evaluate {seed}")
        return output(agent, seed)


class Dies:
    """Ends its process with SIGKILL at one seed, as often as it can take a file out of a directory."""

    def __init__(self, seed: int, directory: str) -> None:
        self.seed = seed
        self.directory = directory

    def __call__(self, agent: Any, seed: int) -> float:
        while seed == self.seed and (left := os.listdir(self.directory)):
            with contextlib.suppress(FileNotFoundError):  # another worker that evaluates the same sample was faster
                os.unlink(os.path.join(self.directory, left[0]))
                os.kill(os.getpid(), signal.SIGKILL)
        return output(agent, seed)


class WaitsForPipe:
    """Waits at one seed until a named pipe is opened for writing."""

    def __init__(self, seed: int, pipe: str) -> None:
        self.seed = seed
        self.pipe = pipe

    def __call__(self, agent: Any, seed: int) -> float:
        if seed == self.seed and os.path.exists(self.pipe):
            with open(self.pipe, "rb") as pipe:
                pipe.read()
        return output(agent, seed)
