"""What can be asked for a remote class or one of its objects, checked when it is written down."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parl_remote.resources import Resources

__all__ = ["ActorOptions"]

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """Options of `@remote_class` and `with_options`.

    Attributes:
        wait: Whether a method call waits for its result; if not, it returns a `RemoteFuture`.
        n_cpu: CPUs that an actor takes, 0 or more; fractions share one.
        n_gpu: GPUs that an actor takes, 0 or more; fractions share one. Without any it sees no GPU.
        max_memory: MiB that the actor's process may grow by; it is ended when it passes that. None has no limit.
        lease_timeout_s: Seconds to wait for free resources; None takes what `connect` was given.

    Raises:
        TypeError: An option is of the wrong type.
        ValueError: An option is out of its range.
    """

    wait: bool = True
    n_cpu: float = 1
    n_gpu: float = 0
    max_memory: float | None = None
    lease_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.wait, bool):
            raise TypeError(f"wait must be True or False, not {self.wait!r}")
        _check_amount("n_cpu", self.n_cpu)
        _check_amount("n_gpu", self.n_gpu)
        if self.n_gpu > 1 and self.n_gpu != int(self.n_gpu):
            raise ValueError(f"n_gpu above 1 must be a whole number, not {self.n_gpu!r}")
        if self.max_memory is not None:
            _check_amount("max_memory", self.max_memory)
            if self.max_memory == 0:
                raise ValueError("max_memory is in MiB and must be above 0; leave it out for no limit")
        if self.lease_timeout_s is not None:
            _check_amount("lease_timeout_s", self.lease_timeout_s)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ActorOptions:
        """Options from keyword arguments.

        Raises:
            TypeError: One has an unknown name, or a value of the wrong type.
            ValueError: One is out of its range.
        """
        return cls().changed(given)

    def changed(self, given: Mapping[str, Any]) -> ActorOptions:
        """The same options with some of them changed; raises as `of` does."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"remote_class has no option {name!r}{hint} It takes: {', '.join(known)}.")
        return dataclasses.replace(self, **given)

    @property
    def resources(self) -> Resources:
        """What to ask the cluster for."""
        return Resources(cpu=round(self.n_cpu, 3), gpu=round(self.n_gpu, 3))

    @property
    def memory_limit(self) -> int | None:
        """Bytes that the actor's process may grow by."""
        return None if self.max_memory is None else int(self.max_memory * _MIB)


def _check_amount(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number of 0 or more, not {value!r}")
