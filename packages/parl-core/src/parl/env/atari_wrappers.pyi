"""`wrap_deepmind` and its parts, defined in `parl_core.env.atari` and `parl_core.env.wrappers`."""

from parl_core.env.atari import (
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    FrameStack,
    MaxAndSkipEnv,
    NoopResetEnv,
    TestEnv,
    WarpFrame,
    wrap_deepmind,
)
from parl_core.env.wrappers import MonitorEnv, get_wrapper_by_cls

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
