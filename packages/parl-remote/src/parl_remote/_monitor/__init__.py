"""The web monitor of a cluster: a separate process that is a client of the master, so that it cannot disturb it.

    master --answers--> ClusterSource --snapshots--> Store --> pages, JSON API, /metrics, /healthz --waitress--> browser
                                                             (flask; nothing from another host)

It needs the extra `parl-remote[monitor]`; only `app` and its imports import flask. Importing this package does not.
"""

from __future__ import annotations

__all__: list[str] = []
