"""`xparl doctor`: what is wrong between a program and its cluster, and the one line that mends it.

    here      this host: disk, limits, keys, what crashed clusters left behind; the imports of a program
    reach     from here to a port: name, route, what answers; why a `connect` has just failed, in a second or two
    cluster   through the port: key, versions, clocks, CPUs, each worker from both sides, modules

Each check gives findings; none of them changes anything.
"""

from parl_remote.doctor.here import Finding, Severity

__all__ = ["Finding", "Severity"]
