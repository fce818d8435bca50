"""The log of samples and rewards: segments of checksummed frames, written online and read by updates."""

from parl_evokit.log._reader import LogContents, SegmentReport, read_log, read_raw, write_raw
from parl_evokit.log._writer import LogWriter

__all__ = ["LogContents", "LogWriter", "SegmentReport", "read_log", "read_raw", "write_raw"]
