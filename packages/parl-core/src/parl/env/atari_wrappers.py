"""`wrap_deepmind` and its parts, at home in `parl_core.env`: `atari`, `frames`, `monitor`, `wrapping`."""

from parl_core.env.atari import (
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    NoopResetEnv,
    TestEnv,
    wrap_deepmind,
)
from parl_core.env.frames import FrameStack, MaxAndSkipEnv, WarpFrame
from parl_core.env.monitor import MonitorEnv
from parl_core.env.wrapping import get_wrapper_by_cls

__all__ = [
    "ClipRewardEnv",
    "EpisodicLifeEnv",
    "FireResetEnv",
    "FrameStack",
    "MaxAndSkipEnv",
    "MonitorEnv",
    "NoopResetEnv",
    "TestEnv",
    "WarpFrame",
    "get_wrapper_by_cls",
    "wrap_deepmind",
]
