"""Tools of a training program, under the names that programs import; each is loaded at first use.

    from parl.utils import CSVLogger, ReplayMemory, logger, summary

The modules of PARL 2.x (`parl.utils.scheduler`, `parl.utils.rl_utils`, ...) are here too. Everything is at home in
`parl_core`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_core import global_config as globvars
    from parl_core import hosts as machine_info
    from parl_core import logger as logger
    from parl_core import summary as summary
    from parl_core import summary as tensorboard
    from parl_core.csv_log import CSVLogger as CSVLogger
    from parl_core.deprecation import deprecated as deprecated
    from parl_core.global_config import global_config as global_config
    from parl_core.hosts import get_gpu_count as get_gpu_count
    from parl_core.hosts import get_ip_address as get_ip_address
    from parl_core.hosts import is_gpu_available as is_gpu_available
    from parl_core.policy_outputs import action_mapping as action_mapping
    from parl_core.policy_outputs import np_cross_entropy as np_cross_entropy
    from parl_core.policy_outputs import np_softmax as np_softmax
    from parl_core.replay import FrameReplayMemory as FrameReplayMemory
    from parl_core.replay import Prioritized as Prioritized
    from parl_core.replay import ReplayMemory as ReplayMemory
    from parl_core.returns import calc_discount_norm_reward as calc_discount_norm_reward
    from parl_core.returns import calc_discount_sum_rewards as calc_discount_sum_rewards
    from parl_core.returns import calc_gae as calc_gae
    from parl_core.schedules import LinearDecayScheduler as LinearDecayScheduler
    from parl_core.schedules import PiecewiseScheduler as PiecewiseScheduler
    from parl_core.stats import TimeStat as TimeStat
    from parl_core.stats import WindowStat as WindowStat

_HOME = {
    "CSVLogger": "csv_log",
    "FrameReplayMemory": "replay",
    "LinearDecayScheduler": "schedules",
    "PiecewiseScheduler": "schedules",
    "Prioritized": "replay",
    "ReplayMemory": "replay",
    "TimeStat": "stats",
    "WindowStat": "stats",
    "action_mapping": "policy_outputs",
    "calc_discount_norm_reward": "returns",
    "calc_discount_sum_rewards": "returns",
    "calc_gae": "returns",
    "deprecated": "deprecation",
    "get_gpu_count": "hosts",
    "get_ip_address": "hosts",
    "global_config": "global_config",
    "is_gpu_available": "hosts",
    "np_cross_entropy": "policy_outputs",
    "np_softmax": "policy_outputs",
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
        return getattr(import_module(f"parl_core.{_HOME[name]}"), name)
    raise AttributeError(f"module 'parl.utils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
