"""The programs that are a node: a private cluster's, and those behind `xparl start` and `xparl connect`."""
