"""Options of a remote class or one of its objects, validated on construction, and the checks of other arguments."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parl_remote._resources import Placement, Resources

__all__ = ["RECORD_VARIABLE", "ActorOptions", "check_count", "check_flag", "check_number", "deadline_of", "seconds_of"]

RECORD_VARIABLE = "PARL_RECORD"  # tells an actor's process the folder of its journal

_MIB = 2**20
_MOST = 2**62  # of any number in a message
_MOST_MIB = 2**27  # 128 TiB
_PLACEMENTS = tuple(placement.value for placement in Placement)
_WHEN_FULL = ("wait", "raise")
_LONGEST_S = threading.TIMEOUT_MAX / 2  # the maximum of the locks of every system; 146 years on Linux
_LONGEST_NAME = 200  # short enough for tables
_ABSENT: Mapping[str, Any] = {"labels": {}, "node": "", "name": "", "record": ""}  # None if it is not among them


@dataclass(frozen=True)
class ActorOptions:
    """Options of `@remote_class` and of one object.

    Attributes:
        wait: Whether a method call waits for its result; if not, it returns a `RemoteFuture`.
        n_cpu: CPUs that an actor takes, 0 or more; fractions share one.
        n_gpu: GPUs that an actor takes, 0 or more; fractions share one. With 0, no GPU is visible in the actor.
        memory: MiB of its node's memory that are set aside for an actor, 0 or more.
        max_memory: MiB that the actor's process may grow by; a process that exceeds it is ended. None has no limit.
        labels: Amounts of resources that the cluster's owner has named, for example `{"license": 1}`; an actor takes
            them.
        placement: "spread" puts an actor on the node with the most free resources, "pack" on the
            fullest one that has enough.
        node: The only node that an actor may go to, by its name or id as `xparl list nodes` shows them; empty for any.
        name: The actor's name for `get_actor`, unique in the cluster; empty for none.
        detached: Whether the actor outlives the program that made it; it ends by `kill` or with the cluster.
        max_restarts: The maximum number of restarts of a lost actor, -1 for no limit.
        max_concurrency: The maximum number of calls that run in the actor at once; None is 1, or many where methods are
            `async def`.
        max_pending_calls: The maximum number of unanswered calls of one caller; None for no limit.
        when_full: The effect of a call above that limit: "wait" for a slot, or "raise" `TooManyPendingCalls`.
        record: A folder for a journal of the actor's calls, for `xparl replay`; empty for none.
        lease_timeout_s: Seconds to wait for free resources; None takes the value given to `connect`.

    Raises:
        TypeError: An option is of the wrong type.
        ValueError: An option is out of its range.
    """

    wait: bool = True
    n_cpu: float = 1
    n_gpu: float = 0
    memory: float = 0
    max_memory: float | None = None
    labels: Mapping[str, float] = field(default_factory=dict)
    placement: str = "spread"
    node: str = ""
    name: str = ""
    detached: bool = False
    max_restarts: int = 0
    max_concurrency: int | None = None
    max_pending_calls: int | None = None
    when_full: str = "wait"
    record: str = ""
    lease_timeout_s: float | None = None

    def __post_init__(self) -> None:
        check_flag("wait", self.wait)
        check_flag("detached", self.detached)
        for name in ("n_cpu", "n_gpu", "memory"):
            self._set(name, check_number(name, getattr(self, name)))
        if self.n_gpu > 1 and self.n_gpu != int(self.n_gpu):
            raise ValueError(f"n_gpu above 1 must be a whole number, not {self.n_gpu!r}")
        if self.max_memory is not None:
            self._set("max_memory", check_number("max_memory", self.max_memory))
            if self.max_memory == 0:
                raise ValueError("max_memory is in MiB and must be above 0; leave it out for no limit")
        for name in ("memory", "max_memory"):
            if (getattr(self, name) or 0) > _MOST_MIB:  # most likely given in bytes
                raise ValueError(f"{name} is in MiB, and no node has {getattr(self, name)!r} of them")
        self._set("labels", _checked_labels(self.labels))
        if self.placement not in _PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(_PLACEMENTS)}, not {self.placement!r}")
        for name in ("name", "node", "record"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be text, not {getattr(self, name)!r}")
        if len(self.name) > _LONGEST_NAME or not self.name.isprintable():
            raise ValueError(f"name must be up to {_LONGEST_NAME} printable characters, not {self.name[:80]!r}")
        self._set("max_restarts", check_count("max_restarts", self.max_restarts, -1))
        for name in ("max_concurrency", "max_pending_calls"):
            if getattr(self, name) is not None:
                self._set(name, check_count(name, getattr(self, name), 1))
        if self.when_full not in _WHEN_FULL:
            raise ValueError(f"when_full must be one of {', '.join(_WHEN_FULL)}, not {self.when_full!r}")
        if self.lease_timeout_s is not None:
            self._set("lease_timeout_s", check_number("lease_timeout_s", self.lease_timeout_s))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ActorOptions:
        """Return options from keyword arguments.

        Raises:
            TypeError: One has an unknown name, or a value of the wrong type.
            ValueError: One is out of its range.
        """
        return _DEFAULTS.changed(given)

    def changed(self, given: Mapping[str, Any]) -> ActorOptions:
        """Return a copy with some options changed, None to what they are by default; raise what `of` raises."""
        if not given:
            return self
        known = [field.name for field in dataclasses.fields(self)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise TypeError(f"remote_class has no option {name!r}{hint} It takes: {', '.join(known)}.")
        if given.get("name") == "":
            raise ValueError("name must not be empty; leave it out, or give None, for an actor without a name")
        values: dict[str, Any] = {name: _ABSENT.get(name) if value is None else value for name, value in given.items()}
        return dataclasses.replace(self, **values)

    @functools.cached_property
    def resources(self) -> Resources:
        """The resources to request from the cluster."""
        return Resources(
            cpu=round(self.n_cpu, 3),
            gpu=round(self.n_gpu, 3),
            memory=int(self.memory * _MIB),
            labels={name: round(amount, 3) for name, amount in self.labels.items()},
        )

    @functools.cached_property
    def memory_limit(self) -> int | None:
        """The maximum growth of the actor's process in bytes; None for no limit."""
        return None if self.max_memory is None else int(self.max_memory * _MIB)


def check_count(name: str, value: Any, least: int) -> int:
    """Return a whole number, also one of numpy's, that is `least` or more.

    Raises:
        TypeError: It is not a whole number.
        ValueError: It is smaller, or larger than a message can carry.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be a whole number of {least} or more, not {value!r}")
    if number > _MOST:
        raise ValueError(f"{name} is too large: {value!r}")
    return number


def check_number(name: str, value: Any) -> float:
    """Return a finite number of 0 or more, as an int if it is one.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, not finite, or larger than a message can carry.
    """
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
    number = value if isinstance(value, int) else float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be a finite number of 0 or more, not {value!r}")
    if number > _MOST:
        raise ValueError(f"{name} is too large: {value!r}")
    return number


def seconds_of(name: str, timeout: Any) -> float | None:
    """Return how many seconds to wait, 0 for less and years for infinity; None for None.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN.
    """
    if timeout is None:
        return None
    try:
        seconds = max(min(timeout, _LONGEST_S), 0)
    except TypeError:
        raise TypeError(f"{name} must be a number of seconds or None, not {timeout!r}") from None
    if timeout != timeout:
        raise ValueError(f"{name} must be a number of seconds or None, not {timeout!r}")
    return seconds if isinstance(seconds, int) else float(seconds)


def deadline_of(name: str, timeout: Any) -> float | None:
    """Return when a number of seconds will have passed, on the monotonic clock; raise what `seconds_of` raises."""
    seconds = seconds_of(name, timeout)
    return None if seconds is None else time.monotonic() + seconds


def check_flag(name: str, value: object) -> None:
    """Raise an error for a value that is not True or False.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _checked_labels(labels: object) -> Mapping[str, float]:
    if not isinstance(labels, Mapping):
        raise TypeError(f'labels must be amounts by name, for example {{"license": 1}}, not {labels!r}')
    for name in labels:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a label's name must be text, not {name!r}")
    checked = {name: check_number(f"label {name!r}", amount) for name, amount in labels.items()}
    Resources(labels={name: round(amount, 3) for name, amount in checked.items()})  # refuses names that have a meaning
    return checked


_DEFAULTS = ActorOptions()
