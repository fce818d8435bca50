"""`ReplayMemory` and its kind, at home in `parl_core.replay`."""

from parl_core.replay import FrameReplayMemory, Prioritized, ReplayBatch, ReplayMemory

__all__ = ["FrameReplayMemory", "Prioritized", "ReplayBatch", "ReplayMemory"]
