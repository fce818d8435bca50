"""`ActorPool`: many items, a few actors."""
