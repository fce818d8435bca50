"""`CSVLogger`, at home in `parl_core.csv_log`."""

from parl_core.csv_log import CSVLogger

__all__ = ["CSVLogger"]
