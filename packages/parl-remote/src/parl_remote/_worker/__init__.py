"""A node's worker: starts, watches and ends actors, and serves their files, logs and values."""
