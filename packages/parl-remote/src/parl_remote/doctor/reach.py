"""The way from here to a master: what a probe of its address means for somebody who wants to connect there."""

from __future__ import annotations

from parl_remote.config import Environment
from parl_remote.doctor.finding import Finding, fine, problem
from parl_remote.doctor.probe import Seen, probe
from parl_remote.node.run_files import ClusterRecord, RunFiles
from parl_remote.transport.addresses import Address, is_loopback, is_this_host

__all__ = ["check_reach"]

_EVERYWHERE = frozenset({"0.0.0.0", "::"})


def check_reach(address: Address, found: Environment, timeout_s: float) -> Finding:
    """Try to reach what should be a cluster's node.

    Args:
        address: Where it should be.
        found: Which clusters of this user run on this host.
        timeout_s: How long to wait for a connection.
    """
    look = probe(address, timeout_s)
    host, port = address.host, address.port
    match look.seen:
        case Seen.NODE:
            return fine("port", f"{address} can be reached ({look.took_s * 1000:.1f} ms)")
        case Seen.UNKNOWN_NAME:
            return problem(
                "address",
                f"the name {host!r} is not known on this host ({look.detail})",
                f"check the spelling, or use a number that `hostname -I` prints there, as in 10.0.0.5:{port}",
            )
        case Seen.NO_ROUTE:
            return problem(
                "address",
                f"there is no way from here to {host} ({look.detail})",
                f"check the address, the network and its routes (ip route get {host})",
            )
        case Seen.NO_ANSWER:
            return problem(
                "port",
                f"{address} does not answer at all within {timeout_s:g} s: the host is down, or a firewall swallows "
                "packets",
                f"check that {host} is up (ping {host}), and open TCP port {port} in its firewall",
            )
        case Seen.REFUSED:
            return _refused(address, found)
        case Seen.STRANGER:
            return problem(
                "port",
                f"another program answers at {address}; it says {look.detail!r}",
                "use the port that `xparl start` printed on that host (xparl status shows it there)",
            )
        case Seen.SILENT:
            return problem(
                "port",
                f"something at {address} takes connections and says nothing: another program, a firewall or a tunnel "
                "without a cluster behind it, or a cluster that is stopped (Ctrl-Z, debugger)",
                f"look on {host} who has the port (ss -ltnp sport = :{port}), and use the port that `xparl status` "
                "shows there",
            )


def _place_of(record: ClusterRecord) -> str:
    """The address of a cluster of this host for programs here."""
    if is_loopback(record.host) or record.host in _EVERYWHERE:
        return f"localhost:{record.port}"
    return str(Address(record.host, record.port))


def _refused(address: Address, found: Environment) -> Finding:
    here = is_this_host(address.host)
    running = [record for _, record in RunFiles(found.run_dirs).clusters() if record.process.alive()]
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
            f"nobody listens at {address}; your clusters on this host are at {ports}",
            f"use one of these addresses, or start one there: xparl start --port {address.port}",
        )
    if here:
        return problem(
            "port",
            f"nobody listens at {address}, and you have no cluster on this host",
            f"xparl start --port {address.port}",
        )
    return problem(
        "port",
        f"{address.host} is up, but nobody listens at port {address.port} of it, at least not for other hosts",
        f"on {address.host}: xparl status shows its port; one that was started without --host listens only there, so "
        f"xparl start --port {address.port} --host 0.0.0.0",
    )
