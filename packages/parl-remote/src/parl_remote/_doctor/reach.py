"""Reachability of a master from this host: a probe without a key, and the causes of a failed `connect`.

name --> route --> TCP --> the first bytes          the first step that fails is the finding
"""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from enum import Enum

from parl_remote._config import Environment
from parl_remote._doctor.local import Finding, Severity, check_here, fine, problem
from parl_remote._run_files import ClusterRecord, RunFiles
from parl_remote._transport.addresses import Address, address_here, is_loopback, is_this_host
from parl_remote.errors import AuthenticationFailed, ClusterUnreachable, RemoteError, VersionMismatch

__all__ = ["ProbeResult", "check_reach", "explained", "explained_here", "finding_for", "probe"]


_SILENCE_S = 1.0  # seconds; a PARL node sends first and at once, so only a slow line takes longer
# For servers that wait for a request, such as the monitor, whose port users may give by mistake.
_QUESTION = b"GET / HTTP/1.0\r\n\r\n"
_ANSWER_S = 0.5
_GREETING = 10  # bytes of ZMTP's signature, which zmq sends to a peer that connects


class ProbeResult(Enum):
    """The result of a probe.

    UNKNOWN_NAME: the host's name cannot be resolved here. NO_ROUTE: there is no route to it. NO_ANSWER: nothing came
    back in time. REFUSED: the host is up, but nothing listens at the port. SILENT: something accepts connections and
    sends nothing. OTHER_PROGRAM: it sends something, but is no node. NODE: a node.
    """

    UNKNOWN_NAME = "unknown name"
    NO_ROUTE = "no route"
    NO_ANSWER = "no answer"
    REFUSED = "refused"
    SILENT = "silent"
    OTHER_PROGRAM = "other program"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of an address.

    Attributes:
        seen: The result.
        detail: The system's reason, or the first text of another program.
        took_s: The time that the connection took.
    """

    seen: ProbeResult
    detail: str = ""
    took_s: float = 0.0


def probe(address: Address, timeout_s: float) -> Probe:
    """Probe an address, waiting `timeout_s` for a connection and a second more for its first bytes."""
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Probe(ProbeResult.UNKNOWN_NAME, error.strerror or str(error))
    began = time.monotonic()
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            took_s = time.monotonic() - began
            return _classify_greeting(_first_bytes(connection), took_s)
    except TimeoutError:
        return Probe(ProbeResult.NO_ANSWER, f"no answer within {timeout_s:g} s")
    except OSError as error:
        seen = ProbeResult.REFUSED if error.errno == errno.ECONNREFUSED else ProbeResult.NO_ROUTE
        return Probe(seen, error.strerror or str(error))


def _first_bytes(connection: socket.socket) -> bytes:
    connection.settimeout(_SILENCE_S)
    data = b""
    try:
        while len(data) < _GREETING and (more := connection.recv(64)):
            data += more
    except OSError:  # it sends no more in time, or closes
        pass
    return data or _answer(connection)


def _answer(connection: socket.socket) -> bytes:
    """Return the answer of a server that sends data only on request."""
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendall(_QUESTION)
        return connection.recv(64)
    except OSError:
        return b""


def _classify_greeting(data: bytes, took_s: float) -> Probe:
    if data[:1] == b"\xff" and data[_GREETING - 1 : _GREETING] == b"\x7f":
        return Probe(ProbeResult.NODE, "", took_s)
    if data:
        return Probe(ProbeResult.OTHER_PROGRAM, data[:40].decode("ascii", "replace").splitlines()[0], took_s)
    return Probe(ProbeResult.SILENT, "", took_s)


def check_reach(address: Address, found: Environment, timeout_s: float) -> Finding:
    """Check whether a cluster's node can be reached.

    Args:
        address: The expected address.
        found: The environment, with the run files of this user's clusters here.
        timeout_s: The time to wait for a connection.
    """
    look = probe(address, timeout_s)
    host, port = address.host, address.port
    match look.seen:
        case ProbeResult.NODE:
            return fine("port", f"{address} can be reached ({look.took_s * 1000:.1f} ms)")
        case ProbeResult.UNKNOWN_NAME:
            return problem(
                "address",
                f"the name {host!r} is not known on this host ({look.detail})",
                f"check the spelling, or use an IP address that `hostname -I` prints there, as in 10.0.0.5:{port}",
            )
        case ProbeResult.NO_ROUTE:
            return problem(
                "address",
                f"there is no route from here to {host} ({look.detail})",
                f"check the address, the network and its routes (ip route get {host})",
            )
        case ProbeResult.NO_ANSWER:
            return problem(
                "port",
                f"{address} does not answer at all within {timeout_s:g} s: the host is down, or a firewall swallows "
                "packets",
                f"check that {host} is up (ping {host}), and open TCP port {port} in its firewall",
            )
        case ProbeResult.REFUSED:
            return _refused(address, found)
        case ProbeResult.OTHER_PROGRAM:
            return problem(
                "port",
                f"another program answers at {address}; it says {look.detail!r}",
                "use the port that `xparl start` printed on that host (xparl status shows it there)",
            )
        case ProbeResult.SILENT:
            return problem(
                "port",
                f"something at {address} takes connections and says nothing: another program, a firewall or a tunnel "
                "without a cluster behind it, or a cluster that is stopped (Ctrl-Z, debugger)",
                f"on {host}, see which process has the port (ss -ltnp sport = :{port}), and use the port that "
                "`xparl status` shows there",
            )


def _place_of(record: ClusterRecord) -> str:
    """Return the address of a cluster of this host for programs here."""
    return str(address_here(record.host, record.port))


def _refused(address: Address, found: Environment) -> Finding:
    here = is_this_host(address.host)
    running = [record for _, record in RunFiles(found.run_dir).clusters() if record.process.alive()]
    on_port = next((record for record in running if record.port == address.port), None)
    if here and on_port is not None and not is_loopback(address.host):
        return problem(
            "address",
            f"your cluster on port {address.port} listens at {on_port.host} only, not at {address.host}",
            f"use {_place_of(on_port)} here, or start it for other hosts, too: xparl stop --port {address.port}; "
            f"xparl start --port {address.port} --host 0.0.0.0",
        )
    if here and running:
        ports = ", ".join(map(_place_of, running))
        return problem(
            "port",
            f"nothing listens at {address}; your clusters on this host are at {ports}",
            f"use one of these addresses, or start one there: xparl start --port {address.port}",
        )
    if here:
        return problem(
            "port",
            f"nothing listens at {address}, and you have no cluster on this host",
            f"xparl start --port {address.port}",
        )
    return problem(
        "port",
        f"{address.host} is up, but nothing listens at port {address.port} of it, at least not for other hosts",
        f"on {address.host}: xparl status shows its port; one that was started without --host listens only there, so "
        f"xparl start --port {address.port} --host 0.0.0.0",
    )


_REACH_S = 1.5  # the caller has waited long enough already


def finding_for(error: RemoteError, address: str, found: Environment) -> Finding | None:
    """Return the finding that explains an error of `connect`, or None.

    Args:
        error: The error.
        address: The master, "host:port", or "local" for a private cluster.
        found: The environment, with run files and key.
    """
    if address == "local":
        return next((one for one in check_here(found) if one.severity is Severity.PROBLEM), None)
    if isinstance(error, VersionMismatch):
        ours, theirs = error.ours, error.theirs
        if ours == theirs:
            what = "this side and the cluster run different minor versions of Python"
            return Finding("version", Severity.PROBLEM, what, "use the same on this host as on the cluster's hosts")
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
    """Return the same error with a remedy as the last line of its message; the diagnosis may take two seconds."""
    try:
        finding = finding_for(error, address, found)
    except (OSError, ValueError, RemoteError):  # a failing diagnosis must not hide the original error
        finding = None
    if finding is not None and error.args:
        option = "" if address == "local" else f" --address {address}"
        text = _with_finding(str(error.args[0]), finding)
        error.args = (f"{text}\n  more:       xparl doctor{option}", *error.args[1:])
    return error


def _with_finding(text: str, finding: Finding) -> str:
    what = "" if finding.what in text else f"\n  found:      {finding.what}"
    found = f"{text}{what}".replace(f"; run: {finding.remedy}", "")  # the remedy is shown once
    return f"{found}\n  what to do: {finding.remedy}"


def explained_here(text: str, found: Environment) -> str:
    """Return the text of an error on this host with the finding and its remedy, if there is one."""
    try:
        finding = finding_for(RemoteError(text), "local", found)
    except OSError:
        finding = None
    return text if finding is None else _with_finding(text, finding)


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
