"""Parallel evaluation of samples: by threads, by processes, or by actors on other machines.

    sample(agent, evaluate, n, pool)
        │ parameters once a model, keys               ▲ eight bytes of key, four of reward
        ▼                                             │
    worker: clone ───── take ────── evaluate ── reward┘

Names are imported from their modules at their first use. `ActorPool` is the former name of `Pool`.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_evokit.parallel._observations import ObservationStatistics as ObservationStatistics
    from parl_evokit.parallel._pool import Pool as Pool
    from parl_evokit.parallel._pool import ProcessPool as ProcessPool
    from parl_evokit.parallel._pool import Sampled as Sampled
    from parl_evokit.parallel._pool import ThreadPool as ThreadPool
    from parl_evokit.parallel._pool import open_pool as open_pool
    from parl_evokit.parallel._pool import sample as sample

_MODULES = {
    "ObservationStatistics": "_observations",
    "Pool": "_pool",
    "ProcessPool": "_pool",
    "Sampled": "_pool",
    "ThreadPool": "_pool",
    "open_pool": "_pool",
    "sample": "_pool",
}

__all__ = ["ObservationStatistics", "Pool", "ProcessPool", "Sampled", "ThreadPool", "open_pool", "sample"]


def __getattr__(name: str) -> Any:
    if name == "ActorPool":
        warnings.warn("ActorPool is deprecated: use Pool", DeprecationWarning, stacklevel=2)
        name = "Pool"
    path = _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{path}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
