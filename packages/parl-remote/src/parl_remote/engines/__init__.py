"""Clusters of others that run the same decorated classes; each engine fills `current.ActorMaker`.

    connect("ray"), connect("ray://host:port")  ->  engines.ray

The native engine is the rest of this package: `client.Client`.
"""
