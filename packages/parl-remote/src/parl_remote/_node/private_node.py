"""Master and worker of a private cluster on one loop, for one program.

Connections:

    driver --unix--> PeerAcceptor --> _SingleDriverService --> Master <--memory--> MasterLink <--> Worker --> zygote
                                  `-> Worker
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from parl_remote._config import environment
from parl_remote._links.call_messages import ClusterReach
from parl_remote._links.handshake import Link, PeerAcceptor, Service, refused_for_shortage
from parl_remote._links.identity import host_id, host_name, new_id
from parl_remote._links.loop import Loop
from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.master import Master
from parl_remote._messages import Bye, NodeJoin, Role
from parl_remote._messages.wire import all_kinds, decode
from parl_remote._resources import Resources
from parl_remote._system.host import usable_memory, visible_gpus
from parl_remote._system.processes import chosen_by_user
from parl_remote._transport.memory import MemoryListener
from parl_remote._transport.unix import UnixListener
from parl_remote._worker.master_link import MasterLink
from parl_remote._worker.worker import Worker
from parl_remote._worker.zygote import ActorSource, start_zygote
from parl_remote.errors import DeathCause, DeathKind

__all__ = ["PrivateNode"]


_QUIET_S = 0.3  # seconds; a program has its first actors by then


class _SingleDriverService:
    """The master's service for one driver; the node ends when the driver is gone.

    Args:
        master: The master's own service.
        on_joined: Called when the node's worker has joined; the driver is answered only after that.
        on_gone: Called when the driver is gone.
    """

    def __init__(self, master: Service, *, on_joined: Callable[[], None], on_gone: Callable[[], None]) -> None:
        self._master = master
        self._on_joined = on_joined
        self._on_gone = on_gone
        self._driver: Link | None = None

    @property
    def has_connected(self) -> bool:
        """Return whether the driver has connected."""
        return self._driver is not None

    def opened(self, link: Link) -> None:
        """Handle a new link: the first client is the driver, others are actors or the node's own worker."""
        if self._driver is None and link.hello.role is Role.CLIENT:
            self._driver = link
        self._master.opened(link)

    def received(self, link: Link, frames: list[memoryview]) -> None:
        """Pass a message to the master; the driver's Bye ends the node as a broken connection does."""
        self._master.received(link, frames)
        message = decode(frames[0])
        if isinstance(message, NodeJoin):
            self._on_joined()
        elif isinstance(message, Bye) and link is self._driver:
            self._on_gone()

    def closed(self, link: Link, reason: str) -> None:
        """Record that a peer is gone; without the driver or the worker the node ends."""
        self._master.closed(link, reason)
        if link is self._driver or link.hello.role is not Role.CLIENT:
            self._on_gone()


class _ConnectingDriver:
    """A source for a loop that is readable when the driver has connected, or has ended before it could."""

    def __init__(self, held: socket.socket) -> None:
        self._held = held

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._held.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def close(self) -> None:
        """Close the socket; the loop must have forgotten this before."""
        self._held.close()


class PrivateNode:
    """The node of a private cluster.

    Args:
        directory: The node's private directory, which exists.
        log_directory: The directory of actors' log files.
        slots: CPUs to give to actors.
        preload: Modules that the zygote imports once for all actors.
        listening: The socket that the driver has made; None if it could not be passed.
        driver: The socket that the driver closes when it has connected or ended; None if it could not be passed.
        zygote: The zygote, which may still be importing modules.
    """

    def __init__(
        self,
        directory: Path,
        log_directory: Path,
        *,
        slots: int,
        preload: Sequence[str],
        listening: socket.socket | None,
        driver: socket.socket | None,
        zygote: ActorSource,
    ) -> None:
        self._loop = Loop()
        limits, host, node_id = environment().limits, host_id(), new_id("node")
        reception = PeerAcceptor(self._loop, node_id=node_id, cluster_id="local", host_id=host, limits=limits)
        first_bytes = limits.max_control_bytes
        path = f"{directory}/node.sock"
        self._listener = UnixListener(path, listening=listening, first_bytes=first_bytes, refusal=refused_for_shortage)
        state = ClusterState(
            cluster_id="local",
            new_lease_id=functools.partial(new_id, "lease"),
            started=self._loop.now(),
            liveness_limit_s=limits.liveness_limit_s,
            nodes_may_join=False,
            own_node_id=node_id,
            epoch=time.time() - self._loop.now(),
        )
        master = Master(self._loop, reception, state, limits=limits, on_shutdown=self._loop.stop)
        self._program = _SingleDriverService(
            master, on_joined=lambda: reception.listen(self._listener), on_gone=self._loop.stop
        )
        reception.serve(Role.MASTER, self._program)
        gpus = visible_gpus(os.environ)
        self._worker = Worker(
            self._loop,
            directory=directory,
            log_directory=log_directory,
            zygote=zygote,
            restart_zygote=functools.partial(start_zygote, directory, tuple(preload), clear=True),
            to_master=lambda message: self._link.tell(message),
            limits=limits,
            limit_threads=not chosen_by_user(os.environ),
            reach=ClusterReach("local", str(directory), True, ""),
            keep_logs=directory not in log_directory.parents,
        )
        reception.serve(Role.WORKER, self._worker)
        within = MemoryListener("the node itself")
        reception.listen(within)
        offered = Resources(cpu=slots, gpu=len(gpus), memory=usable_memory())
        self._link = MasterLink(
            self._loop,
            within.connect(),
            joined=lambda: NodeJoin(
                node_id, host, (), str(directory), offered, self._worker.running(), host_name(), gpus
            ),
            on_message=self._worker.on_master,
            on_lost=lambda _: self._loop.stop(),
            limits=limits,
        )
        self._loop.call_later(limits.start_timeout_s, self._give_up)
        if driver is not None:
            self._connecting = _ConnectingDriver(driver)
            self._loop.add(self._connecting, self._driver_left)
        # Unlike in other nodes, not before it listens: a program waits for its first actor, and this takes 30 ms.
        self._loop.call_later(_QUIET_S, all_kinds)

    def run(self) -> None:
        """Serve until the program is gone."""
        self._loop.run()

    def stop(self) -> None:
        """Make `run` return; callable from signal handlers."""
        self._loop.stop()

    def close(self) -> None:
        """Kill the remaining actors and release all resources."""
        self._worker.close(DeathCause(DeathKind.STOPPED))
        self._listener.close()

    def _driver_left(self) -> None:
        self._loop.remove(self._connecting)
        self._connecting.close()
        self._give_up()

    def _give_up(self) -> None:
        """Stop if the driver has not connected by now, since it was killed before it could."""
        if not self._program.has_connected:
            self._loop.stop()
