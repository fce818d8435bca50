"""Learning from logged data: what a dataset is, where it is read from, and how batches are drawn from it."""

from parl_core.offline.dataset import OfflineDataset
from parl_core.offline.reading import read_minari, read_npz

__all__ = ["OfflineDataset", "read_minari", "read_npz"]
