"""From here to a port, step by step: the host's name, the way there, whether anybody answers, and who.

name --> route --> TCP --> the first bytes          the first step that fails is the finding
"""

from __future__ import annotations

import errno
import socket
import time

from parl_remote.addresses import Address, is_loopback, is_this_host
from parl_remote.config import Environment
from parl_remote.doctor.finding import Finding, fine, problem
from parl_remote.run_files import ClusterRecord, RunFiles

__all__ = ["check_reach"]

_SILENCE_S = 1.0  # a PARL node speaks first and at once; a line that takes longer takes longer for everything
_GREETING = 10  # bytes of ZMTP's signature, which zmq sends to whoever connects


def check_reach(address: Address, found: Environment, timeout_s: float) -> Finding:
    """Try to reach what should be a cluster's node.

    Args:
        address: Where it should be.
        found: Which clusters of this user run on this host.
        timeout_s: How long to wait for a connection.
    """
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return problem(
            "address",
            f"the name {address.host!r} is not known on this host ({error.strerror or error})",
            f"check the spelling, or use a number that `hostname -I` prints there, as in 10.0.0.5:{address.port}",
        )
    began = time.monotonic()
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            return _who_answers(connection, address, time.monotonic() - began)
    except TimeoutError:
        return problem(
            "port",
            f"{address} does not answer at all within {timeout_s:g} s: the host is down, or a firewall swallows the "
            "packets",
            f"check that {address.host} is up (ping {address.host}), and open TCP port {address.port} in its firewall",
        )
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return _refused(address, found)
        return problem(
            "address",
            f"there is no way from here to {address.host} ({error.strerror or error})",
            f"check the address, the network and its routes (ip route get {address.host})",
        )


def _who_answers(connection: socket.socket, address: Address, took_s: float) -> Finding:
    """By the first bytes: zmq's signature, something else, or nothing."""
    connection.settimeout(_SILENCE_S)
    data = b""
    try:
        while len(data) < _GREETING and (more := connection.recv(64)):
            data += more
    except TimeoutError:
        pass
    except OSError:
        data = b""
    if data[:1] == b"\xff" and data[_GREETING - 1 : _GREETING] == b"\x7f":
        return fine("port", f"{address} can be reached ({took_s * 1000:.1f} ms)")
    if data:
        shown = data[:40].decode("ascii", "replace").splitlines()[0]
        return problem(
            "port",
            f"another program answers at {address}; it says {shown!r}",
            "use the port that `xparl start` printed on that host (xparl status shows it there)",
        )
    return problem(
        "port",
        f"something at {address} takes connections and says nothing: another program, a firewall or a tunnel without a "
        "cluster behind it, or a cluster that is stopped (Ctrl-Z, debugger)",
        f"look on {address.host} who has the port (ss -ltnp sport = :{address.port}), and use the port that "
        "`xparl status` shows there",
    )


def _refused(address: Address, found: Environment) -> Finding:
    here = is_this_host(address.host)
    running = [record for _, record in RunFiles(found.run_dirs).clusters() if record.process.alive()]
    same_port = next((record for record in running if record.port == address.port), None)
    if here and same_port is not None and not is_loopback(address.host):
        return _listens_elsewhere(address, same_port)
    if here and running:
        ports = ", ".join(f"localhost:{record.port}" for record in running)
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


def _listens_elsewhere(address: Address, record: ClusterRecord) -> Finding:
    return problem(
        "address",
        f"your cluster on port {address.port} listens at {record.host} only, not at {address.host}",
        f"use localhost:{address.port} on this host, or start it for other hosts: xparl stop --port {address.port}; "
        f"xparl start --port {address.port} --host 0.0.0.0",
    )
