"""Reproducible faults for programs that use remote actors: killed, paused, slowed and disconnected processes.

    pytest -p parl_remote.testing.plugin        or, in conftest.py:  pytest_plugins = ["parl_remote.testing"]

Either form provides the fixtures of `parl_remote.testing.plugin`. This package also contains the parts that they are
made of, for other test frameworks and scripts. Its modules are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_remote.testing._faults import ActorFaults as ActorFaults
    from parl_remote.testing._faults import Faults as Faults
    from parl_remote.testing._line import Conditions as Conditions
    from parl_remote.testing._line import Direction as Direction
    from parl_remote.testing._line import Line as Line
    from parl_remote.testing._loopback_cluster import LoopbackCluster as LoopbackCluster
    from parl_remote.testing._loopback_cluster import Member as Member
    from parl_remote.testing._machine import FaultUnavailable as FaultUnavailable
    from parl_remote.testing._machine import MemoryHog as MemoryHog
    from parl_remote.testing._machine import Process as Process
    from parl_remote.testing._machine import SmallDisk as SmallDisk
    from parl_remote.testing._machine import processes_with as processes_with

pytest_plugins = ("parl_remote.testing.plugin",)  # read by pytest where this package is named as a plugin

_MODULES = {
    "ActorFaults": "_faults",
    "Conditions": "_line",
    "Direction": "_line",
    "FaultUnavailable": "_machine",
    "Faults": "_faults",
    "Line": "_line",
    "LoopbackCluster": "_loopback_cluster",
    "Member": "_loopback_cluster",
    "MemoryHog": "_machine",
    "Process": "_machine",
    "SmallDisk": "_machine",
    "processes_with": "_machine",
}

__all__ = [
    "ActorFaults",
    "Conditions",
    "Direction",
    "FaultUnavailable",
    "Faults",
    "Line",
    "LoopbackCluster",
    "Member",
    "MemoryHog",
    "Process",
    "SmallDisk",
    "processes_with",
]


def __getattr__(name: str) -> Any:
    path = _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module 'parl_remote.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"parl_remote.testing.{path}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "pytest_plugins"])
