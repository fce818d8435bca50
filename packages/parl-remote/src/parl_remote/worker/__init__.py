"""A node's worker: starts, watches and ends actors, and answers for their files, logs and values."""
