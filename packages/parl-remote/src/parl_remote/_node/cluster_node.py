r"""A node of a real cluster: its master and worker on one loop, and the program that `xparl` starts for it.

    xparl --settings as JSON, a pipe--> python -m parl_remote._node.cluster_node
          <--{"address": ...} or {"error": ...}--

The zygote is forked first, before anything is opened or any thread runs. The node's log is its stderr. Its connections:

    other hosts --tcp + CURVE, one port--> ZmqListener --\
                                                          PeerAcceptor --> Master, Worker --> zygote --> actors
    this host   --unix socket-----------> UnixListener --/
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from parl_remote._codec import from_json
from parl_remote._config import Limits, environment
from parl_remote._links.call_messages import ClusterReach
from parl_remote._links.handshake import Link, Part, PeerAcceptor, greet, refused_for_shortage
from parl_remote._links.identity import host_id, host_name, new_id
from parl_remote._links.loop import Loop
from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.master import Master
from parl_remote._messages import Message, NodeJoin, Role
from parl_remote._messages.parts import OpenSealed, SealedOpened
from parl_remote._messages.wire import all_kinds
from parl_remote._node.history import HistoryFile
from parl_remote._node.launch import NodeSettings, report_on
from parl_remote._run_files import ClusterRecord, ProcessRecord, WorkerRecord, forget, key_of, write_record
from parl_remote._security import ClusterKey
from parl_remote._system import processes
from parl_remote._system.facilities import is_portable
from parl_remote._system.processes import chosen_by_user
from parl_remote._transport import Channel
from parl_remote._transport.addresses import Address
from parl_remote._transport.memory import MemoryListener
from parl_remote._transport.sealed import SealedListener
from parl_remote._transport.unix import UnixListener, private_directory, sweep_directories
from parl_remote._transport.zmq import ZmqChannel, ZmqListener
from parl_remote._worker.host_check import GpuMeter, HostCheck
from parl_remote._worker.master_link import MasterLink, RejoiningLink, worker_hello
from parl_remote._worker.worker import Worker
from parl_remote._worker.zygote import ActorSource, start_zygote
from parl_remote.errors import DeathCause, DeathKind, RemoteError, RemoteProtocolError

__all__ = ["run_node"]


_log = logging.getLogger("parl.remote")

_ANY_INTERFACE = {"", "0.0.0.0", "*", "::"}


class ClusterNode:
    """One node process.

    Args:
        settings: Its settings.
        key: The cluster's key.
        socket_directory: Its private directory of unix sockets.
        zygote: A running zygote if the node has a worker.
        limits: Times and sizes.

    Raises:
        OSError: The port is in use.
        RemoteError: The master cannot be reached, or does not accept this node.
    """

    def __init__(
        self,
        settings: NodeSettings,
        key: ClusterKey,
        socket_directory: Path,
        zygote: ActorSource | None,
        *,
        limits: Limits,
    ) -> None:
        self._settings = settings
        self.cluster_id = settings.cluster_id
        self._socket_directory = socket_directory
        self._key = key
        self._limits = limits
        self._loop = Loop()
        self._host_id = host_id()
        self._tcp = ZmqListener(settings.host, settings.port, key, limits=limits)
        self._unix = UnixListener(
            f"{socket_directory}/node.sock", first_bytes=limits.max_control_bytes, refusal=refused_for_shortage
        )
        self._reception = PeerAcceptor(
            self._loop,
            node_id=settings.node_id,
            cluster_id=settings.cluster_id,
            host_id=self._host_id,
            limits=limits,
        )
        self._master: Master | None = None
        self._link: MasterLink | RejoiningLink | None = None
        self._within = MemoryListener("this node")
        stopped_alone = DeathCause(DeathKind.NODE_LOST, detail="the worker was stopped")
        self._end = stopped_alone if settings.master else DeathCause(DeathKind.STOPPED)
        self._worker: Worker | None = None
        if zygote is not None:
            self._worker = self._start_worker(zygote)
        all_kinds()  # before peers can use up the descriptors that imports need
        self._reception.listen(self._within)
        if not settings.master:
            self._become_master()
        self._gpu_meter = GpuMeter(settings.gpus if self._worker is not None else ())
        if self._worker is not None:
            self._join(self._worker)
        self._reception.listen(self._tcp)
        self._reception.listen(self._unix)

    @property
    def address(self) -> str:
        """The node's address, "host:port"."""
        return self._tcp.address

    def run(self) -> None:
        """Serve until `stop`."""
        self._loop.run()

    def stop(self) -> None:
        """Make `run` return; callable from signal handlers."""
        self._loop.stop()

    def close(self) -> None:
        """Notify all peers, end all actors and release all resources."""
        if self._master is not None:
            self._master.stop("the cluster was stopped")
        if self._link is not None:
            self._link.close()
        self._gpu_meter.close()
        if self._worker is not None:
            self._worker.close(self._end)
        for listener in (self._unix, self._tcp, self._within):
            listener.close()

    def _start_worker(self, zygote: ActorSource) -> Worker:
        settings = self._settings
        worker = Worker(
            self._loop,
            directory=self._socket_directory,
            log_directory=Path(settings.directory) / "actors",
            zygote=zygote,
            restart_zygote=lambda: start_zygote(self._socket_directory, clear=True),
            to_master=self._tell_master,
            limits=self._limits,
            limit_threads=not chosen_by_user(os.environ),
            reach=self._reach(),
        )
        worker.parts.add(("CheckHost",), self._health_part)
        worker.parts.add(("OpenSealed",), self._sealed_part)
        self._reception.serve(Role.WORKER, worker)
        return worker

    def _reach(self) -> ClusterReach:
        """Return the settings by which actors on this node reach the cluster."""
        settings = self._settings
        port = Address.parse(self._tcp.address).port
        own = str(Address(settings.host if settings.host not in _ANY_INTERFACE else "127.0.0.1", port))
        key_file = str(Path(settings.directory) / "key")
        return ClusterReach(settings.master or own, str(self._socket_directory), not settings.master, key_file)

    def _become_master(self) -> None:
        epoch = time.time() - self._loop.now()
        state = ClusterState(
            cluster_id=self._settings.cluster_id,
            new_lease_id=functools.partial(new_id, "lease"),
            started=self._loop.now(),
            liveness_limit_s=self._limits.liveness_limit_s,
            own_node_id=self._settings.node_id,
            epoch=epoch,
            history=HistoryFile(Path(self._settings.directory), self._settings.cluster_id, time.time()),
            client_grace_s=self._limits.liveness_limit_s,
        )
        self._master = Master(self._loop, self._reception, state, limits=self._limits, on_shutdown=self._loop.stop)
        self._master.parts.add(("CheckHost", "ReachNode"), lambda: self._health_part(state))

    def _health_part(self, state: ClusterState | None = None) -> Part:
        """Return the part that answers `xparl doctor`; a master's has its nodes' addresses."""

        def addresses(node_id: str) -> tuple[str, ...]:
            nodes = state.status(0, self._loop.now(), detail=True, dropped=0).nodes if state is not None else ()
            return next((node.addresses for node in nodes if node.node_id == node_id), ())

        return HostCheck(self._loop, Path(self._settings.directory), addresses if state is not None else None)

    def _sealed_part(self) -> Part:
        """Return the part that opens sealed connections for clients of other hosts."""
        return SealedLinks(self._reception, Address.parse(self._tcp.address), environment().data_port, self._limits)

    def _join(self, worker: Worker) -> None:
        """Connect this node's worker to its master, here or on another host."""
        if not self._settings.master:
            self._link = MasterLink(
                self._loop,
                self._within.connect(),
                joined=self._joined,
                on_message=worker.on_master,
                on_lost=self._ended,
                limits=self._limits,
                gpus=self._gpu_meter.latest,
            )
            return
        first = self._connect_master()
        # Fails now if it is refused.
        welcome = greet(first, worker_hello(self._joined()), self._limits.connect_timeout_s)
        first.close()
        self.cluster_id = welcome.cluster_id
        self._link = RejoiningLink(
            self._loop,
            self._connect_master(),
            connect=self._connect_master,
            joined=self._joined,
            on_message=worker.on_master,
            on_end=self._ended,
            limits=self._limits,
            gpus=self._gpu_meter.latest,
        )

    def _connect_master(self) -> Channel:
        return ZmqChannel.connect(self._settings.master, self._key, limits=self._limits)

    def _tell_master(self, message: Message) -> None:
        if self._link is not None:
            self._link.tell(message)

    def _ended(self, reason: str) -> None:
        _log.info("this worker ends: %s", reason)
        self._end = DeathCause(DeathKind.STOPPED)
        self._loop.stop()

    def _joined(self) -> NodeJoin:
        port = Address.parse(self._tcp.address).port
        known_as = str(Address(self._settings.known_as, port)) if self._settings.known_as else f":{port}"
        return NodeJoin(
            node_id=self._settings.node_id,
            host_id=self._host_id,
            addresses=(known_as,),
            socket_dir=str(self._socket_directory),
            resources=self._settings.resources,
            leases=self._worker.running() if self._worker is not None else (),
            name=host_name(),
            gpus=self._settings.gpus,
        )


def main(settings_json: str, pipe: int) -> int:
    """Run a node, detached from the process that started it.

    Args:
        settings_json: `NodeSettings`.
        pipe: Descriptor to report on, once, how the start went.

    Returns:
        The exit status.
    """
    os.set_inheritable(pipe, False)
    processes.ignore_hang_up()

    def report(outcome: dict[str, str]) -> None:
        report_on(pipe, outcome)

    return run_node(from_json(NodeSettings, json.loads(settings_json), "settings"), report)


def run_node(settings: NodeSettings, report: Callable[[dict[str, str]], None]) -> int:
    """Run a node in this process until SIGTERM, SIGINT or the end of its cluster.

    Args:
        settings: The node's settings.
        report: Called once with `address`, or with `error` if the node cannot run.

    Returns:
        The exit status.
    """
    os.umask(0o077)
    processes.raise_descriptor_limit()
    found = environment()
    directory = Path(settings.directory)
    with ExitStack() as undo:
        try:
            _clear(directory)
            sweep_directories(found.socket_parent)
            sockets = private_directory(found.socket_parent)
            undo.callback(shutil.rmtree, sockets, ignore_errors=True)
            zygote = start_zygote(sockets, clear=True) if settings.has_worker else None
            # Not before: actors are forks of the zygote, and the root logger is theirs.
            level = logging.DEBUG if settings.debug or found.debug else logging.INFO
            logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
            _log.debug("runs with %s", settings)
            processes.set_name("parl:node")
            node = ClusterNode(settings, key_of(directory), sockets, zygote, limits=found.limits)
        except (OSError, RemoteError) as error:
            if settings.master:
                forget(directory)
            report({"error": str(error)})
            return 1
        undo.callback(node.close)

        def stop(number: int, _: FrameType | None) -> None:
            _log.info("ends because of %s", signal.Signals(number).name)
            node.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        undo.callback(forget, directory)
        write_record(directory, _record(settings, node.cluster_id))
        report({"address": node.address})
        node.run()
    return 0


def _clear(directory: Path) -> None:
    """Make an empty directory for actors' logs; the previous node's, which may have crashed, are kept once."""
    logs, before = directory / "actors", directory / "actors.before"
    if logs.exists():
        shutil.rmtree(before, ignore_errors=True)
        logs.rename(before)
    logs.mkdir()


def _record(settings: NodeSettings, cluster_id: str) -> ClusterRecord | WorkerRecord:
    process = ProcessRecord.of(os.getpid())
    if settings.master:
        return WorkerRecord(settings.node_id, settings.master, process, settings.once, cluster_id)
    return ClusterRecord(cluster_id, settings.host, settings.port, host_name(), process)


class SealedLinks:
    """The part that opens sealed connections: tickets for clients of other hosts, and the port that takes them.

    The port is opened, and `cryptography` imported, with the first request. Implements `handshake.Part`.

    Args:
        reception: Accepts the connections.
        address: The interface and the port that the node listens on.
        port: The port for sealed connections; 0 for a free one.
        limits: Times.
    """

    def __init__(self, reception: PeerAcceptor, address: Address, port: int, limits: Limits) -> None:
        self._reception = reception
        self._port = port
        self._address = address
        self._limits = limits
        self._listener: SealedListener | None = None

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002  # as in Part
        """Answer a request for a connection."""
        if not isinstance(message, OpenSealed):
            raise RemoteProtocolError(f"{type(message).__name__} is not for sealed connections")
        if message.port != self._address.port:
            raise RemoteError(f"the port {message.port} is forwarded to this node, which listens on {self._address}")
        if self._listener is None:
            if is_portable():
                raise RemoteError("a process cannot pass sockets on to others here")
            try:
                self._listener = SealedListener(self._address.host, self._port, limits=self._limits)
            except ImportError as error:
                raise RemoteError("this node lacks `cryptography`: pip install parl-remote[fast]") from error
            self._reception.listen(self._listener)
        ticket, key = self._listener.new_ticket()
        link.tell(SealedOpened(message.request_id, self._listener.port, ticket.hex(), key.hex()))

    def closed(self, link: Link) -> None:
        """Do nothing: a ticket ends by itself."""

    def close(self) -> None:
        """Close the port."""
        if self._listener is not None:
            self._listener.close()


if __name__ == "__main__":
    status = main(sys.argv[1], int(sys.argv[2]))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)  # the interpreter would take apart what ends anyway: some tenths of a second on a busy machine
