"""Plain functions in warm worker processes: `Executor`, `remote_function`, `map`."""
