"""`parl.core`, below which PARL 1.x and 2.x have their base classes, by framework."""
