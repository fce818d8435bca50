"""Diagnoses of a program's access to its cluster, each with a one-line remedy, for `xparl doctor` and `connect`.

    local     this host: disk, limits, keys, remains of crashed clusters; the imports of a program
    reach     from here to a port: name, route, answer; why a `connect` has just failed, in a second or two

What is checked through the port is in the command itself, `cli._doctor`. Each check yields findings; none of them
changes anything.
"""

from parl_remote._doctor.local import Finding, Severity

__all__ = ["Finding", "Severity"]
