"""The monitor's process: a link to the cluster, a store, and a WSGI server, until the cluster or the user ends it.

    xparl --settings as JSON, a pipe--> python -m parl_remote._monitor.server --- client ---> master
          <--{"address": ...} or {"error": ...}--

    Source --snapshot--> Collector --add | failed--> Store --> application

A monitor started with a cluster of this host ends with its node. Any other keeps trying to reach its master until it is
stopped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from waitress.channel import HTTPChannel
from waitress.server import create_server

from parl_remote._codec import from_json
from parl_remote._config import environment
from parl_remote._links.identity import host_name
from parl_remote._monitor.app import create_app
from parl_remote._monitor.guard import Peers
from parl_remote._monitor.launch import MonitorSettings
from parl_remote._monitor.link import ClusterSource
from parl_remote._monitor.model import Source, SourceError
from parl_remote._monitor.sessions import token_of
from parl_remote._monitor.store import Store
from parl_remote._node.launch import report_on
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._run_files import MonitorRecord, ProcessRecord, RunFiles, forget_monitor, write_record
from parl_remote._system import processes
from parl_remote._system.facilities import is_portable, oldest_of_largest_owner
from parl_remote._transport.addresses import EVERY_INTERFACE, Address
from parl_remote.errors import RemoteError

__all__ = ["Collector", "main", "run_monitor", "share_fairly"]


_SHARE = 0.05  # share of the time that snapshots may take; the rest is for the master's work
_LONGEST_S = 15.0


class Collector:
    """A thread that keeps a store up to date.

    Args:
        source: The source of snapshots.
        store: The store to fill.
        interval_s: The shortest interval between snapshots.
        clock: Any clock in seconds.
    """

    def __init__(
        self,
        source: Source,
        store: Store,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._store = store
        self._interval_s = interval_s
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parl-monitor-collector", daemon=True)
        self._reason = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop the thread, and wait up to `wait_s` seconds for its end."""
        self._over.set()
        self._thread.join(wait_s)

    def collect(self) -> float:
        """Take one snapshot; return how long to wait until the next one."""
        started = self._clock()
        try:
            snapshot = self._source.snapshot()
        except SourceError as error:
            self._failed(str(error))
            return self._interval_s
        except Exception as error:  # after any error, the next snapshot may succeed, and pages stay available
            _log.exception("a snapshot of the cluster failed")
            self._failed(f"{type(error).__name__}: {error}")
            return self._interval_s
        if self._reason:
            _log.info("the master answers again")
            self._reason = ""
        wait_s = min(_LONGEST_S, max(self._interval_s, (self._clock() - started) / _SHARE))
        self._store.add(snapshot, next_in_s=wait_s)
        return wait_s

    def _failed(self, reason: str) -> None:
        if reason != self._reason:
            _log.warning("the cluster does not answer: %s", reason)
            self._reason = reason
        self._store.failed(reason)

    def _run(self) -> None:
        while not self._over.wait(self.collect()):
            pass


_log = logging.getLogger("parl.remote")

_THREADS = 8  # requests are answered from memory; one that waits for a stack occupies one thread
_GOODBYE_S = 1.0
_MOST_CONNECTIONS = 250  # connections per socket; a browser opens six, and a process may have a thousand descriptors


def main(settings_json: str, pipe: int) -> int:
    """Run a monitor, detached from the process that started it.

    Args:
        settings_json: `MonitorSettings`.
        pipe: The descriptor on which to report the outcome, once.

    Returns:
        The exit status.
    """
    os.set_inheritable(pipe, False)
    processes.ignore_hang_up()

    def report(outcome: dict[str, str]) -> None:
        if error := outcome.get("error"):
            logging.getLogger("parl.remote").error("the monitor cannot run: %s", error)
        with contextlib.suppress(BrokenPipeError):  # its starter does not wait
            report_on(pipe, outcome)

    return run_monitor(from_json(MonitorSettings, json.loads(settings_json), "settings"), report)


def run_monitor(settings: MonitorSettings, report: Callable[[dict[str, str]], None]) -> int:
    """Run a monitor in this process until SIGTERM, SIGINT or the end of its cluster.

    Args:
        settings: Its settings.
        report: Called once with `address`, or with `error` if it cannot run.

    Returns:
        The exit status.
    """
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("waitress").setLevel(logging.ERROR)
    processes.set_name("parl:monitor")
    found = environment()
    try:
        node = _node_of(settings) if settings.with_cluster else None
        key_file = settings.key_file or None
        source = ClusterSource(ClusterAddress(settings.address, found, key_file), found.limits)
        store = Store(time.time, settings.interval_s)
        first = source.snapshot()
        store.add(first)  # to report errors now
        server = _serve(settings, store, source)
    except (OSError, ValueError, RemoteError, SourceError) as error:
        report({"error": str(error)})
        return 1

    def stop(number: int, _: FrameType | None) -> None:
        _log.info("the monitor ends because of %s", signal.Signals(number).name)
        raise SystemExit  # this stops the server

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if node is not None:
        threading.Thread(target=_end_with, args=(node,), name="parl-monitor-watch", daemon=True).start()
    collector = Collector(source, store, settings.interval_s)
    collector.start()
    process = ProcessRecord.of(os.getpid())
    record = MonitorRecord(settings.address, _url(settings, server), process, first.cluster.cluster_id)
    with contextlib.ExitStack() as rest:  # an error of one does not keep the others from being closed
        rest.enter_context(_on_record(Path(settings.directory), record))
        report({"address": str(Address(settings.host, _port_of(server)))})
        rest.callback(source.close)
        rest.callback(collector.stop, _GOODBYE_S)
        rest.callback(server.close)
        server.run()
    return 0


@contextlib.contextmanager
def _on_record(directory: Path, record: MonitorRecord) -> Iterator[None]:
    """Keep the record of this process within the block, if it can be written."""
    try:
        write_record(directory, record)
    except OSError as error:
        _log.warning("xparl stop cannot find this monitor, process %d: %s", record.process.pid, error)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            forget_monitor(directory)


def _serve(settings: MonitorSettings, store: Store, source: ClusterSource) -> Any:
    token = token_of(settings.token_file)
    sockets: dict[int, Any] = {}
    server: Any = create_server(
        lambda environ, start: application(environ, start),
        host=settings.host,
        port=settings.port,
        threads=_THREADS,
        asyncore_use_poll=not is_portable(),
        ident=None,
        clear_untrusted_proxy_headers=True,
        max_request_header_size=32 * 1024,
        max_request_body_size=64 * 1024,
        connection_limit=2 * _MOST_CONNECTIONS,
        channel_timeout=30,
        map=sockets,
    )
    servers = [one for one in sockets.values() if hasattr(one, "channel_class")]
    share_fairly(servers, Peers(settings.host), _MOST_CONNECTIONS)
    application = create_app(store, source, token=token, host=settings.host, port=_port_of(server))
    return server


def share_fairly(servers: Iterable[Any], peers: Peers, most: int) -> None:
    """Keep any visitor from taking all connections of some servers; waitress itself accepts no more above its limit.

    Args:
        servers: waitress's servers.
        peers: Distinguishes the users of this host.
        most: The maximum number of connections; beyond it, one of the peer with the most is closed.
    """

    class FairChannel(HTTPChannel):
        def __init__(self, server: Any, sock: Any, addr: Any, adj: Any, map: Any = None) -> None:
            super().__init__(server, sock, addr, adj, map)
            asks = {"REMOTE_ADDR": addr[0], "REMOTE_PORT": addr[1], "SERVER_PORT": _port_of(server)}
            uid = peers.uid_of(asks)
            self.visitor = f"host {addr[0]}" if uid is None else f"user {uid}"
            open_now = server.active_channels
            if len(open_now) > most:
                open_now[oldest_of_largest_owner({key: one.visitor for key, one in open_now.items()})].handle_close()

    for server in servers:
        server.channel_class = FairChannel


def _url(settings: MonitorSettings, server: Any) -> str:
    host = host_name() if settings.host in EVERY_INTERFACE else settings.host
    return f"http://{Address(host, _port_of(server))}"


def _port_of(server: Any) -> int:
    """Return the port found if 0 was requested; all sockets of a server, as of "localhost", have the same."""
    several = getattr(server, "effective_listen", None)
    return int(several[0][1] if several else server.effective_port)


def _node_of(settings: MonitorSettings) -> ProcessRecord:
    """Return the process of the node of the cluster in the monitor's directory."""
    directory = Path(settings.directory)
    for where, record in RunFiles(directory.parent).clusters():
        if where == directory and record.process.alive():
            return record.process
    raise OSError(f"no cluster runs in {settings.directory}")


def _end_with(node: ProcessRecord) -> None:
    """Wait for the end of the node's process, then end this one."""
    node.ended_within(None)
    _log.info("the cluster's node has ended")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
