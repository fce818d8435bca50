"""`xparl doctor`: what is wrong between a program and its cluster, and the one line that mends it.

    here      this host: disk, limits, keys, what crashed clusters left behind
    reach     from here to a port: name, route, who answers
    cluster   through the port: key, versions, clocks, CPUs, each worker from both sides, modules
    explain   the same for a `connect` that has just failed, in a second or two

Each check gives findings; none of them changes anything.
"""

from parl_remote.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity"]
