"""Tools of a training program, under the names that programs import; each is loaded at first use.

    from parl.utils import CSVLogger, ReplayMemory, logger, summary

The modules of PARL 2.x (`parl.utils.scheduler`, `parl.utils.rl_utils`, ...) are here, too. All names are defined in
`parl_core`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parl import _names

if TYPE_CHECKING:
    from parl_core import _global_config as globvars
    from parl_core import _hosts as machine_info
    from parl_core import logger as logger
    from parl_core import summary as summary
    from parl_core import summary as tensorboard
    from parl_core._csv_log import CSVLogger as CSVLogger
    from parl_core._deprecation import deprecated as deprecated
    from parl_core._global_config import GlobalConfig as GlobalConfig
    from parl_core._global_config import global_config as global_config
    from parl_core._hosts import get_free_tcp_port as get_free_tcp_port
    from parl_core._hosts import get_gpu_count as get_gpu_count
    from parl_core._hosts import get_ip_address as get_ip_address
    from parl_core._hosts import get_port_from_range as get_port_from_range
    from parl_core._hosts import is_gpu_available as is_gpu_available
    from parl_core._hosts import is_port_available as is_port_available
    from parl_core._hosts import is_xpu_available as is_xpu_available
    from parl_core._policy_outputs import action_mapping as action_mapping
    from parl_core._policy_outputs import np_cross_entropy as np_cross_entropy
    from parl_core._policy_outputs import np_softmax as np_softmax
    from parl_core.checks import check_model_method as check_model_method
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
    "CSVLogger": "_csv_log",
    "FrameReplayMemory": "replay",
    "GlobalConfig": "_global_config",
    "LinearDecayScheduler": "schedules",
    "PiecewiseScheduler": "schedules",
    "Prioritized": "replay",
    "ReplayMemory": "replay",
    "TimeStat": "stats",
    "WindowStat": "stats",
    "action_mapping": "_policy_outputs",
    "calc_discount_norm_reward": "returns",
    "calc_discount_sum_rewards": "returns",
    "calc_gae": "returns",
    "check_model_method": "checks",
    "deprecated": "_deprecation",
    "get_free_tcp_port": "_hosts",
    "get_gpu_count": "_hosts",
    "get_ip_address": "_hosts",
    "get_port_from_range": "_hosts",
    "global_config": "_global_config",
    "is_gpu_available": "_hosts",
    "is_port_available": "_hosts",
    "is_xpu_available": "_hosts",
    "np_cross_entropy": "_policy_outputs",
    "np_softmax": "_policy_outputs",
}

__all__ = [
    "CSVLogger",
    "FrameReplayMemory",
    "GlobalConfig",
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
    "check_model_method",
    "deprecated",
    "get_free_tcp_port",
    "get_gpu_count",
    "get_ip_address",
    "get_port_from_range",
    "global_config",
    "globvars",
    "is_gpu_available",
    "is_port_available",
    "is_xpu_available",
    "logger",
    "machine_info",
    "np_cross_entropy",
    "np_softmax",
    "summary",
    "tensorboard",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"parl_core.{_HOME[name]}"), name)
    return _names.of_old_package("parl.utils", name)


def __dir__() -> list[str]:
    return sorted(__all__)
