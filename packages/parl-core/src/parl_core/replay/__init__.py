"""Replay memories of off-policy algorithms: uniform or prioritised, one-step or n-step, in memory or on disk."""

from parl_core.replay._frames import FrameReplayMemory
from parl_core.replay._memory import BootstrapMasks, HindsightReplayMemory, ReplayMemory, outcome_of
from parl_core.replay._priorities import Prioritized
from parl_core.replay._sampled_ring import ReplayBatch
from parl_core.replay._sequences import EpisodeReplayMemory, SequenceReplayMemory

__all__ = [
    "BootstrapMasks",
    "EpisodeReplayMemory",
    "FrameReplayMemory",
    "HindsightReplayMemory",
    "Prioritized",
    "ReplayBatch",
    "ReplayMemory",
    "SequenceReplayMemory",
    "outcome_of",
]
