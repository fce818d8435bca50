"""The node processes: a private cluster's, and those behind `xparl start` and `xparl connect`."""
