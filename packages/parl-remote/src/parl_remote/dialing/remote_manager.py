"""`parl.RemoteManager`: objects of programs that dial in, as handles of this one.

    program elsewhere: obj.as_remote("host:port") --> RemoteManager(port) --get_remote()--> a handle, as of an actor

Nothing has to be reachable but the manager's one port. What dials in must hold the same key.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parl_remote.config import environment
from parl_remote.dialing.keys import given_key, publish_key
from parl_remote.dialing.served_objects import ServedObject, read_hello
from parl_remote.errors import ChannelClosed, NotConnected, RemoteError, ResultTimeout
from parl_remote.links.identity import host_id
from parl_remote.links.loop import Loop
from parl_remote.links.peer_channel import PeerChannel
from parl_remote.options import ActorOptions
from parl_remote.program.handles import unpacked
from parl_remote.program.proxy import make_proxy
from parl_remote.security import ClusterKey
from parl_remote.transport import Closed, Listener, Opened, Received

__all__ = ["RemoteManager"]

_JSON = ord("{")
_GOODBYE_S = 1.0  # for the last messages to leave


class RemoteManager:
    """Waits for objects that other programs serve with `as_remote`.

    Args:
        port: The port to listen on; 0 for a free one, see `address`.
        host: The interface: "127.0.0.1" for programs on this host only, "0.0.0.0" for those on others, too.
        key_file: The key that both ends must have. By default it is taken from `PARL_KEY_FILE` or `PARL_KEY`; without
            those a new one is made, which programs of the same user on this host find by themselves.
        reconnect_s: How long an object whose connection broke may take to come back.

    Raises:
        AuthenticationFailed: The key file is missing, not private or holds no key.
        OSError: The port is in use, or the interface is not of this host.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        key_file: str | os.PathLike[str] | None = None,
        reconnect_s: float = 30.0,
    ) -> None:
        from parl_remote.transport.zmq import ZmqListener

        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 2**16:
            raise ValueError(f"port must be a whole number from 0 to 65535, not {port!r}")
        found = environment()
        given = given_key(found, key_file)
        key = given or ClusterKey.generate()
        self._reconnect_s = reconnect_s
        self._pid = os.getpid()
        self._closed = False
        self._listener: Listener = ZmqListener(host, port, key, limits=found.limits)
        self.address = self._listener.address
        self._directory: Path | None = None
        if given is None:
            self._directory = publish_key(found, host, self.port, key)
        self._loop = Loop()
        self._background: Loop | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, PeerChannel] = {}  # peers that have not said who they are
        self._peers: dict[int, tuple[PeerChannel, ServedObject]] = {}
        self._objects: dict[str, ServedObject] = {}
        self._available: queue.SimpleQueue[ServedObject | None] = queue.SimpleQueue()
        self._loop.add(self._listener, self._poll)
        self._thread = threading.Thread(target=self._loop.run, name="parl-manager", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.address.rpartition(":")[2])

    def get_remote(
        self, timeout_s: float | None = None, *, wait: bool = True, max_pending_calls: int | None = None
    ) -> Any:
        """The next object that somebody serves, each once; one whose handle is dropped is given out again.

        Args:
            timeout_s: How long to wait for one; None waits as long as it takes.
            wait: Whether its methods wait for their results, as for `remote_class`.
            max_pending_calls: How many calls may be unanswered, as for `remote_class`.

        Raises:
            ResultTimeout: None has come in time.
            NotConnected: The manager is closed.
        """
        options = ActorOptions.of({"wait": wait, "max_pending_calls": max_pending_calls})
        while True:
            if self._closed:
                raise NotConnected("this RemoteManager is closed; make another one")
            try:
                served = self._available.get(timeout=timeout_s)
            except queue.Empty:
                raise ResultTimeout(
                    f"nobody has served an object to {self.address} within {timeout_s} s; "
                    f'call obj.as_remote("{self.address}") in the other program'
                ) from None
            if served is None:
                self._available.put(None)  # for others that wait
            elif served.is_connected:
                _, proxies = unpacked(served.shipped)
                return make_proxy(proxies, served.reference(options), wait=options.wait)

    def close(self) -> None:
        """Let all objects go, which ends their serving; a second call does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._available.put(None)
        self._loop.call_soon(self._end)
        self._thread.join(_GOODBYE_S)
        if self._background is not None:
            self._background.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __len__(self) -> int:
        """How many objects are connected now."""
        return sum(served.is_connected for served in list(self._objects.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never whole
            self.close()

    def __repr__(self) -> str:
        return f"<RemoteManager at {self.address}, {len(self)} objects>"

    # -- in the loop -------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        for event in self._listener.poll():
            match event:
                case Opened(peer=peer):
                    self._waiting[peer] = PeerChannel(self._loop, self._listener, peer)
                case Received(peer=peer, frames=frames) if peer in self._peers:
                    self._receive(*self._peers[peer], frames)
                case Received(peer=peer, frames=frames) if peer in self._waiting:
                    self._meet(peer, self._waiting.pop(peer), frames)
                case Closed(peer=peer, reason=reason):
                    self._waiting.pop(peer, None)
                    channel, served = self._peers.pop(peer, (None, None))
                    if channel is not None and served is not None:
                        served.connection_lost(channel, reason)

    def _receive(self, channel: PeerChannel, served: ServedObject, frames: list[memoryview]) -> None:
        if len(frames[0]) and frames[0][0] == _JSON:  # all that it can say beside answers
            served.ended("it is served no longer")
            self._objects.pop(served.object_id, None)
        else:
            channel.deliver(frames)

    def _meet(self, peer: int, channel: PeerChannel, frames: list[memoryview]) -> None:
        """Somebody says which object it serves."""
        try:
            hello = read_hello(frames)
        except RemoteError as error:
            with contextlib.suppress(ChannelClosed):
                self._listener.send(peer, [json.dumps({"refused": str(error)}).encode()])
            self._listener.drop(peer)
            return
        with contextlib.suppress(ChannelClosed):  # it is gone again; `Closed` follows
            self._listener.send(peer, [json.dumps({"welcome": 1, "pid": self._pid, "host": host_id()}).encode()])
        known = self._objects.get(hello.object_id)
        if known is None or known.is_over:
            known = self._objects[hello.object_id] = ServedObject(
                hello,
                channel,
                background=self._background_loop,
                free=self._loop.call_soon,
                available=self._available.put,
                reconnect_s=self._reconnect_s,
            )
            self._available.put(known)
        else:
            known.connected_again(channel)
        self._peers[peer] = channel, known

    def _background_loop(self) -> Loop:
        """The loop that reads for futures with callbacks."""
        with self._lock:
            if self._background is None:
                self._background = Loop()
                threading.Thread(target=self._background.run, name="parl-results", daemon=True).start()
            return self._background

    def _end(self) -> None:
        for peer, (_, served) in list(self._peers.items()):
            with contextlib.suppress(ChannelClosed):
                self._listener.send(peer, [json.dumps({"end": "the manager is closed"}).encode()])
            served.ended("its RemoteManager was closed")
        self._loop.remove(self._listener)
        self._listener.close()
        self._loop.stop()
