"""`ReplayMemory` and related classes, defined in `parl_core.replay`."""

from parl_core.replay import FrameReplayMemory, Prioritized, ReplayBatch, ReplayMemory

__all__ = ["FrameReplayMemory", "Prioritized", "ReplayBatch", "ReplayMemory"]
