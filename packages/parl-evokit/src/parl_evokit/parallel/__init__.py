"""Samples evaluated side by side: by threads, by processes, or by actors on other machines.

    sample(agent, evaluate, n, pool)
        │ parameters once a model, keys               ▲ eight bytes of key, four of reward
        ▼                                             │
    worker: clone ── apply_noise ── evaluate ── reward┘

Names are read from their modules when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_evokit.parallel.actors import ActorPool as ActorPool
    from parl_evokit.parallel.observations import ObservationStatistics as ObservationStatistics
    from parl_evokit.parallel.pool import Pool as Pool
    from parl_evokit.parallel.processes import ProcessPool as ProcessPool
    from parl_evokit.parallel.sampling import Sampled as Sampled
    from parl_evokit.parallel.sampling import open_pool as open_pool
    from parl_evokit.parallel.sampling import sample as sample
    from parl_evokit.parallel.threads import ThreadPool as ThreadPool

_HOMES = {
    "ActorPool": "actors",
    "ObservationStatistics": "observations",
    "Pool": "pool",
    "ProcessPool": "processes",
    "Sampled": "sampling",
    "ThreadPool": "threads",
    "open_pool": "sampling",
    "sample": "sampling",
}

__all__ = ["ActorPool", "ObservationStatistics", "Pool", "ProcessPool", "Sampled", "ThreadPool", "open_pool", "sample"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
