"""Why a `connect` has failed, found out while its caller waits: one line what, one line what to do."""

from __future__ import annotations

from parl_remote.config import Environment
from parl_remote.doctor.finding import Finding, Severity
from parl_remote.doctor.here import check_here
from parl_remote.doctor.reach import check_reach
from parl_remote.errors import AuthenticationFailed, ClusterUnreachable, RemoteError, VersionMismatch
from parl_remote.transport.addresses import Address

__all__ = ["explained", "explained_here", "why"]

_REACH_S = 1.5  # the caller has waited long enough already


def why(error: RemoteError, address: str, found: Environment) -> Finding | None:
    """The finding behind an error of `connect`; None if there is nothing to add.

    Args:
        error: What was raised.
        address: The master, "host:port", or "local" for a private cluster.
        found: Which clusters run here, and which key is used.
    """
    if address == "local":
        return next((one for one in check_here(found) if one.severity is Severity.PROBLEM), None)
    if isinstance(error, VersionMismatch):
        ours, theirs = error.ours, error.theirs
        older = "here" if ours < theirs else "on the cluster's hosts"
        return Finding(
            "version",
            Severity.PROBLEM,
            "this side and the cluster speak different versions of the protocol",
            f"install the newer parl-remote {older} as well (xparl --version shows what a host has)",
        )
    if not isinstance(error, AuthenticationFailed | ClusterUnreachable):
        return None
    reach = check_reach(Address.parse(address), found, _REACH_S)
    if reach.severity is not Severity.FINE:
        return reach
    if isinstance(error, AuthenticationFailed):
        return Finding("key", Severity.PROBLEM, str(error), _key_remedy(error, found))
    return Finding(
        "master",
        Severity.PROBLEM,
        f"a node listens at {address}, but its master does not answer",
        f"on its host: xparl doctor --address {address}, and look into node.log (xparl status names its place)",
    )


def explained(error: RemoteError, address: str, found: Environment) -> RemoteError:
    """The same error, with what to do as the last line of its message; it may take two seconds to find out."""
    try:
        finding = why(error, address, found)
    except (OSError, ValueError, RemoteError):  # a diagnosis that fails must not hide what it was for
        finding = None
    if finding is not None and error.args:
        text = str(error.args[0])
        what = "" if finding.what in text else f"\n  found:      {finding.what}"
        option = "" if address == "local" else f" --address {address}"
        more = f"\n  what to do: {finding.remedy}\n  more:       xparl doctor{option}"
        error.args = (f"{text}{what}{more}", *error.args[1:])
    return error


def explained_here(text: str, found: Environment) -> str:
    """An error that has to do with this host alone, with what to do if the reason can be seen."""
    try:
        finding = why(RemoteError(text), "local", found)
    except OSError:
        finding = None
    return text if finding is None else f"{text}\n  found:      {finding.what}\n  what to do: {finding.remedy}"


def _key_remedy(error: AuthenticationFailed, found: Environment) -> str:
    text = str(error)
    if "chmod" in text:
        return text.rpartition("run: ")[2] or "chmod 600 the key file"
    source = "PARL_KEY_FILE" if found.key_file is not None else "PARL_KEY" if found.key is not None else ""
    stale = f"{source} holds another cluster's key: unset it, or " if source and "refused" in text else ""
    return (
        f"{stale}copy the key file that `xparl start` named on the cluster's host here (mode 0600), "
        "and set PARL_KEY_FILE to it"
    )
