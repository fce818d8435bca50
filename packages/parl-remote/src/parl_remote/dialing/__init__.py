"""Objects that dial in: `as_remote` on one side, `RemoteManager` on the other."""
