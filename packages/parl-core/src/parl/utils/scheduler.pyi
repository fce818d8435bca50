"""`PiecewiseScheduler` and related classes, defined in `parl_core.schedules`."""

from parl_core.schedules import (
    LinearDecayScheduler,
    PiecewiseScheduler,
    Schedule,
    as_schedule,
    constant,
    linear,
    piecewise,
)

__all__ = ["LinearDecayScheduler", "PiecewiseScheduler", "Schedule", "as_schedule", "constant", "linear", "piecewise"]
