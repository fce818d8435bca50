"""`wrap_rms` and its parts, defined in `parl_core.env.normalize` and `parl_core.env.wrappers`."""

from parl_core.env.normalize import TimeLimitMaskEnv, VecNormalizeEnv, get_ob_rms, wrap_rms
from parl_core.env.wrappers import MonitorEnv, get_wrapper_by_cls
from parl_core.stats import RunningMeanStd

__all__ = [
    "MonitorEnv",
    "RunningMeanStd",
    "TimeLimitMaskEnv",
    "VecNormalizeEnv",
    "get_ob_rms",
    "get_wrapper_by_cls",
    "wrap_rms",
]
