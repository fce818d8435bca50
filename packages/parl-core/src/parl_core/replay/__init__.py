"""Replay memories of off-policy algorithms: uniform or prioritised, one-step or n-step, in memory or on disk."""

from parl_core.replay.batch import ReplayBatch
from parl_core.replay.bootstrap import BootstrapMasks
from parl_core.replay.frames import FrameReplayMemory
from parl_core.replay.memory import ReplayMemory
from parl_core.replay.priorities import Prioritized

__all__ = ["BootstrapMasks", "FrameReplayMemory", "Prioritized", "ReplayBatch", "ReplayMemory"]
