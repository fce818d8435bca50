"""`ActorPool`: distribution of many items over a few actors."""
