"""Tools of a training program, under the names that programs import; each is loaded at first use.

    from parl.utils import CSVLogger, ReplayMemory, logger, summary

The modules of PARL 2.x (`parl.utils.scheduler`, `parl.utils.rl_utils`, ...) are here too. Everything is at home in
`parl_core`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl.utils import globvars as globvars
    from parl.utils import logger as logger
    from parl.utils import machine_info as machine_info
    from parl.utils import summary as summary
    from parl.utils import tensorboard as tensorboard
    from parl.utils.csv_logger import CSVLogger as CSVLogger
    from parl.utils.deprecation import deprecated as deprecated
    from parl.utils.globvars import global_config as global_config
    from parl.utils.machine_info import get_gpu_count as get_gpu_count
    from parl.utils.machine_info import get_ip_address as get_ip_address
    from parl.utils.machine_info import is_gpu_available as is_gpu_available
    from parl.utils.np_utils import np_cross_entropy as np_cross_entropy
    from parl.utils.np_utils import np_softmax as np_softmax
    from parl.utils.replay_memory import FrameReplayMemory as FrameReplayMemory
    from parl.utils.replay_memory import Prioritized as Prioritized
    from parl.utils.replay_memory import ReplayMemory as ReplayMemory
    from parl.utils.rl_utils import action_mapping as action_mapping
    from parl.utils.rl_utils import calc_discount_norm_reward as calc_discount_norm_reward
    from parl.utils.rl_utils import calc_discount_sum_rewards as calc_discount_sum_rewards
    from parl.utils.rl_utils import calc_gae as calc_gae
    from parl.utils.scheduler import LinearDecayScheduler as LinearDecayScheduler
    from parl.utils.scheduler import PiecewiseScheduler as PiecewiseScheduler
    from parl.utils.time_stat import TimeStat as TimeStat
    from parl.utils.window_stat import WindowStat as WindowStat

_HOME = {
    "CSVLogger": "csv_logger",
    "FrameReplayMemory": "replay_memory",
    "LinearDecayScheduler": "scheduler",
    "PiecewiseScheduler": "scheduler",
    "Prioritized": "replay_memory",
    "ReplayMemory": "replay_memory",
    "TimeStat": "time_stat",
    "WindowStat": "window_stat",
    "action_mapping": "rl_utils",
    "calc_discount_norm_reward": "rl_utils",
    "calc_discount_sum_rewards": "rl_utils",
    "calc_gae": "rl_utils",
    "deprecated": "deprecation",
    "get_gpu_count": "machine_info",
    "get_ip_address": "machine_info",
    "global_config": "globvars",
    "is_gpu_available": "machine_info",
    "np_cross_entropy": "np_utils",
    "np_softmax": "np_utils",
}
_MODULES = ("globvars", "logger", "machine_info", "summary", "tensorboard")

__all__ = [
    "CSVLogger",
    "FrameReplayMemory",
    "LinearDecayScheduler",
    "PiecewiseScheduler",
    "Prioritized",
    "ReplayMemory",
    "TimeStat",
    "WindowStat",
    "action_mapping",
    "calc_discount_norm_reward",
    "calc_discount_sum_rewards",
    "calc_gae",
    "deprecated",
    "get_gpu_count",
    "get_ip_address",
    "global_config",
    "globvars",
    "is_gpu_available",
    "logger",
    "machine_info",
    "np_cross_entropy",
    "np_softmax",
    "summary",
    "tensorboard",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"parl.utils.{name}")
    if name in _HOME:
        return getattr(import_module(f"parl.utils.{_HOME[name]}"), name)
    raise AttributeError(f"module 'parl.utils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
