"""`CSVLogger`, defined in `parl_core._csv_log`."""

from parl_core._csv_log import CSVLogger

__all__ = ["CSVLogger"]
