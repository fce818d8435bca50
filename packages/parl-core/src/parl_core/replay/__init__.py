"""Replay memories of off-policy algorithms: uniform or prioritised, one-step or n-step, in memory or on disk."""

from parl_core.replay.frames import FrameReplayMemory
from parl_core.replay.memory import BootstrapMasks, ReplayMemory
from parl_core.replay.priorities import Prioritized
from parl_core.replay.sampled_ring import ReplayBatch

__all__ = ["BootstrapMasks", "FrameReplayMemory", "Prioritized", "ReplayBatch", "ReplayMemory"]
