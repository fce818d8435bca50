"""Master and worker of a private cluster, put together on one loop."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

from parl_remote.cluster_state import ClusterState, ToClient, ToNode
from parl_remote.config import Limits
from parl_remote.gpus import visible_gpus
from parl_remote.handshake import Link, Reception
from parl_remote.identity import host_id, host_name, new_id
from parl_remote.loop import Loop
from parl_remote.messages import (
    Bye,
    LeaseCancel,
    LeaseEnded,
    LeaseRelease,
    LeaseRequest,
    Message,
    NodeJoin,
    Role,
    decode,
)
from parl_remote.node import PrivateNodeSettings
from parl_remote.resources import Resources
from parl_remote.thread_counts import chosen_by_user
from parl_remote.transport_unix import UnixListener
from parl_remote.worker import Worker
from parl_remote.zygote import ZygoteProcess, start_zygote


class _Master:
    def __init__(self, loop, on_gone) -> None:
        self.loop = loop
        self.state = ClusterState(
            cluster_id=new_id("cluster"),
            new_lease_id=functools.partial(new_id, "lease"),
            started=loop.now(),
            liveness_limit_s=1e9,
            rejoin_timeout_s=10,
            nodes_may_join=False,
        )
        self.links: dict[str, Link] = {}
        self.worker: Worker | None = None
        self.on_gone = on_gone

    def opened(self, link: Link) -> None:
        self.links[link.hello.id] = link
        self.state.client_joined(link.hello.id, link.hello.name, link.hello.pid)

    def received(self, link, frames):
        message = decode(frames[0])
        cid = link.hello.id
        if isinstance(message, LeaseRequest):
            self.do(self.state.lease_requested(cid, message, self.loop.now()))
            self.later()
        elif isinstance(message, LeaseRelease):
            self.do(self.state.lease_released(cid, message.lease_id))
        elif isinstance(message, LeaseCancel):
            self.do(self.state.lease_cancelled(cid, message.request_id))
        elif isinstance(message, Bye):
            self.on_gone(True)

    def closed(self, link, reason):
        self.links.pop(link.hello.id, None)
        self.do(self.state.client_lost(link.hello.id))
        self.on_gone(False)

    def from_worker(self, message: Message) -> None:
        if isinstance(message, LeaseEnded):
            self.do(self.state.lease_ended("node", message.lease_id, message.cause))

    def later(self):
        deadline = self.state.next_deadline()
        if deadline is not None and deadline < 1e8:
            self.loop.call_at(deadline, lambda: (self.do(self.state.tick(self.loop.now())), self.later()))

    def do(self, instructions):
        for one in instructions:
            if isinstance(one, ToClient):
                if one.client_id in self.links:
                    self.links[one.client_id].tell(one.message)
            elif isinstance(one, ToNode):
                self.worker.on_master(one.message)


class PrivateNode:
    def __init__(self, settings: PrivateNodeSettings, listening: socket.socket, zygote: ZygoteProcess) -> None:
        self.loop = Loop()
        limits = Limits()
        host = host_id()
        self.listener = UnixListener(f"{settings.directory}/node.sock", listening=listening)
        self.reception = Reception(self.loop, node_id="node", cluster_id="private", host_id=host, limits=limits)
        self.master = _Master(self.loop, self.client_gone)
        self.worker = Worker(
            self.loop,
            directory=Path(settings.directory),
            log_directory=Path(settings.log_directory),
            zygote=zygote,
            restart_zygote=lambda: start_zygote(settings.directory, tuple(settings.preload), clear=True),
            to_master=self.master.from_worker,
            limits=limits,
            gpus=visible_gpus(os.environ),
            limit_threads=not chosen_by_user(os.environ),
        )
        self.master.worker = self.worker
        self.master.do(
            self.master.state.node_joined(
                NodeJoin("node", host, (), settings.directory, Resources(cpu=settings.slots), name=host_name()),
                self.loop.now(),
            )
        )
        self.reception.serve(Role.MASTER, self.master)
        self.reception.serve(Role.WORKER, self.worker)
        self.reception.listen(self.listener)

    def client_gone(self, politely: bool) -> None:
        if not politely:
            self.loop.stop()
        else:
            self.loop.call_later(0.3, self.loop.stop)
            self.worker.when_idle(self.loop.stop)

    def run(self):
        self.loop.run()

    def stop(self):
        self.loop.stop()

    def close(self):
        self.worker.close()
        self.listener.close()
