"""The program's side of a cluster: proxies, connections to actors and the handling of lost actors."""
