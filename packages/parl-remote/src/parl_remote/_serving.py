"""`as_remote`: serves an object of this program to another program, over a connection that this program opens.

    obj.as_remote("host:port") --connect, identity---> RemoteManager
                               <---- calls, as to an actor ----      get_remote() returns a handle to the program there
                               ----- answers --------------->

Calls run in a thread of this program, one after the other, or several at once (see `host.Concurrency`). A broken
connection is opened again; the object keeps its state meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from parl_remote._actor.host import ActorHost, Concurrency, ConcurrencyMode, HoldingReply, concurrency_of
from parl_remote._actor.loop_runner import LoopThread
from parl_remote._actor.runners import ClosableRunner, Job, ThreadRunner
from parl_remote._config import Environment, environment
from parl_remote._data import serialize
from parl_remote._data.class_spec import ClassSpec
from parl_remote._links.call_messages import Flag, Kind, header_of, pack
from parl_remote._links.identity import host_id, new_id, versions
from parl_remote._options import check_count, check_number, seconds_of
from parl_remote._program.proxy import make_proxy, reference_of, served_object
from parl_remote._program.rendezvous import find_manager_key
from parl_remote._streams import close_streams, read_by
from parl_remote._transport import Buffer, Channel, CutMessage, abandoned_in_children
from parl_remote._transport.addresses import Address
from parl_remote._transport.zmq import ZmqChannel
from parl_remote.errors import ChannelClosed, ClusterUnreachable, RemoteError, RemoteProtocolError, ResultTimeout

__all__ = ["Serving", "as_remote"]

_log = logging.getLogger("parl.remote")
_PROTOCOL = 1
_JSON = ord("{")  # no kind of call message has this number
_BETWEEN_ATTEMPTS_S = 0.2  # a manager that is being started answers within a second
_CANCEL, _RECEIVED = int(Kind.CANCEL), int(Kind.RECEIVED)


def as_remote(
    obj: Any,
    server_ip: str,
    server_port: int | None = None,
    remote_ip: str | None = None,  # noqa: ARG001  # PARL had the object listen as well; here it only connects outwards
    remote_port: int | None = None,  # noqa: ARG001
    *,
    key_file: str | os.PathLike[str] | None = None,
    max_concurrency: int | None = None,
    timeout_s: float = 30.0,
    reconnect_s: float = 30.0,
) -> Serving:
    """Serve an object to the `RemoteManager` at an address; `obj.as_remote(address)` does the same.

    Return as soon as the manager has registered the object. Calls then run in a thread of this program. The program
    does not end before the manager is closed or `close` is called.

    Args:
        obj: An object of a remote class or of any other class, or the handle of an actor. If it is of a remote class
            and was made without a connection, it is built now, in this process.
        server_ip: The manager's address, "host:port", or only its host, with `server_port`.
        server_port: The manager's port, if it is not in the address.
        remote_ip: No longer used, because no connections to this program are made.
        remote_port: No longer used.
        key_file: The file with the manager's key. By default the key comes from `PARL_KEY_FILE`, `PARL_KEY`, or the
            file of a manager of the same user on this host.
        max_concurrency: The maximum number of calls that run at once, as for `remote_class`.
        timeout_s: Seconds to try to reach the manager, which may start later (default 30).
        reconnect_s: Seconds to try to reconnect after the connection breaks (default 30).

    Returns:
        A handle to wait for the end of the service or to end it.

    Raises:
        ClusterUnreachable: No manager answers at the address.
        AuthenticationFailed: There is no key, or the manager has another one.
        SerializationError: The object's class cannot be sent.
        TypeError: An argument is of the wrong type.
        ValueError: The address is invalid, or a number is out of its range.
    """
    address = Address.parse(server_ip if server_port is None else f"{server_ip}:{server_port}")
    if max_concurrency is not None:
        max_concurrency = check_count("max_concurrency", max_concurrency, 1)
    return Serving(served_object(obj), address, key_file, max_concurrency, timeout_s=timeout_s, reconnect_s=reconnect_s)


class _Caller:
    """One connection to the manager, which receives the replies."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._held: deque[list[Buffer]] = deque()

    def answer(self, reply: list[Buffer]) -> None:
        """Buffer a reply."""
        if isinstance(reply, HoldingReply):
            read_by(self, reply.references)
        self._held.append(reply)

    def flush(self) -> None:
        """Send the buffered replies."""
        with contextlib.suppress(IndexError, ChannelClosed):  # another thread sent it, or the manager is gone
            while True:
                self._channel.send(self._held.popleft())


class Serving:
    """The handle of a served object, returned by `as_remote`.

    Attributes:
        error: The error that ended the service; None while the object is served and after a regular end.
    """

    def __init__(
        self,
        obj: Any,
        address: Address,
        key_file: str | os.PathLike[str] | None,
        max_concurrency: int | None,
        *,
        timeout_s: float,
        reconnect_s: float,
    ) -> None:
        self.error: BaseException | None = None
        self._address = address
        self._key_file = key_file
        self._reconnect_s = check_number("reconnect_s", reconnect_s)
        self._id = new_id("object")
        self._ended = threading.Event()
        self._closing = False
        ref = reference_of(obj)
        spec = ClassSpec(type(obj)) if ref is None else ref.spec
        self._host = ActorHost()
        served = obj if ref is None else make_proxy(type(obj), ref, wait=True)  # calls from afar wait here
        self._host.adopt(served, spec.name, spec.names)
        names = self._host.attributes if ref is None else tuple(ref.attributes.names)
        self._hello = [_hello(self._id, spec.name), *serialize.dumps((tuple(spec.shipped()), names))]
        self._runner = _runner_for(self._host, concurrency_of(spec.cls, max_concurrency))
        self._channel, welcome = self._connect(check_number("timeout_s", timeout_s))
        manager_is_here = welcome.get("pid") == os.getpid() and welcome.get("host") == host_id()
        abandoned_in_children(self)
        daemon = threading.current_thread().daemon or manager_is_here  # else the program could not end
        threading.Thread(target=self._live, name="parl-serving", daemon=daemon).start()

    @property
    def is_alive(self) -> bool:
        """Return whether the object is served: calls are accepted, or the connection is being opened again."""
        return not self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the service has ended and return True; return False after the timeout.

        Args:
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            RemoteError: The service ended because the manager could no longer be reached.
        """
        if not self._ended.wait(seconds_of("timeout_s", timeout_s)):
            return False
        if self.error is not None:
            raise self.error
        return True

    def close(self) -> None:
        """Stop serving the object; a running call finishes, but its answer is lost. A second call does nothing."""
        if not self._closing:
            self._closing = True
            with contextlib.suppress(ChannelClosed, ResultTimeout):
                self._channel.send([json.dumps({"end": "its program serves it no longer"}).encode()], 1.0)
            self._channel.close()

    def abandon(self) -> None:
        """Stop serving, in the child of a fork; the call that forked ends the child when it returns or raises."""
        self._closing = True
        self._host.become_copy()
        self._ended.set()

    def __repr__(self) -> str:
        return f"<{'serving' if self.is_alive else 'served'} {self._host.class_name} to {self._address}>"

    # -- connecting --------------------------------------------------------------------------------------------------

    def _connect(self, within_s: float) -> tuple[Channel, dict[str, Any]]:
        """Connect and send the Hello."""
        deadline = time.monotonic() + within_s
        found: Environment = environment()
        while True:
            try:
                key = find_manager_key(self._address, found, self._key_file)
                channel = ZmqChannel.connect(str(self._address), key, limits=found.limits)
                return channel, _greet(channel, self._hello, found.limits.connect_timeout_s)
            except RemoteError as error:
                # A manager that is not started yet has not written its key either.
                if time.monotonic() >= deadline or self._closing or _is_final(error, self._key_file, found):
                    raise
            time.sleep(_BETWEEN_ATTEMPTS_S)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            while True:
                caller = _Caller(self._channel)
                try:
                    self._serve(caller)
                    return
                except ChannelClosed as error:
                    self._channel.close()
                    close_streams(caller)
                    if self._runner is not None:
                        self._runner.forget(caller)
                    if self._closing:
                        return
                    _log.warning("the connection to the manager at %s was lost (%s)", self._address, str(error))
                self._channel, _ = self._connect(self._reconnect_s)
                _log.warning("the manager at %s is reached again", self._address)
        except RemoteError as error:
            _log.warning("%s is not served any more: %s", self._host.class_name, str(error))
            self.error = error
        finally:
            self._channel.close()
            if self._runner is not None:
                self._runner.close()
            self._ended.set()

    def _serve(self, caller: _Caller) -> None:
        """Serve one connection until the manager ends the serving."""
        waiting: deque[Sequence[memoryview]] = deque()
        while True:
            if not self._take(waiting, caller, None):
                return
            while waiting:
                frames = waiting.popleft()
                try:
                    if self._runner is not None:
                        self._runner.take(Job(self._host.accept(frames), caller))
                    else:
                        caller.answer(self._host.handle(frames))
                        caller.flush()
                except RemoteProtocolError as error:
                    raise ChannelClosed(f"the manager sent an invalid message: {error}") from error
                if not self._take(waiting, caller, 0.0):
                    return

    def _take(self, waiting: deque[Sequence[memoryview]], caller: _Caller, timeout_s: float | None) -> bool:
        """Queue the messages that have arrived; return False if the manager ends the serving."""
        while True:
            try:
                frames = self._channel.receive(timeout_s)
            except ResultTimeout:
                return True
            timeout_s = 0.0
            kind = frames[0][0] if len(frames[0]) else 0
            if type(frames) is CutMessage:
                caller.answer(self._host.refuse(frames.shortage, header_of(frames[0])[3]))
                caller.flush()
            elif kind == _JSON:
                return False
            elif kind == _CANCEL:
                self._cancel(waiting, caller, header_of(frames[0])[3])
            elif kind != _RECEIVED:
                waiting.append(frames)

    def _cancel(self, waiting: deque[Sequence[memoryview]], caller: _Caller, call_id: int) -> None:
        for frames in waiting:
            if header_of(frames[0])[3] == call_id:
                waiting.remove(frames)
                caller.answer(pack(Kind.FAILURE, Flag.CANCELLED, 0, call_id))
                caller.flush()
                return
        if self._runner is not None:
            self._runner.cancel(caller, call_id)


def _hello(object_id: str, class_name: str) -> bytes:
    message = {"object": object_id, "protocol": _PROTOCOL, "class": class_name, "host": host_id(), "pid": os.getpid()}
    return json.dumps({**message, "versions": versions()}).encode()


def _greet(channel: Channel, hello: list[Buffer], timeout_s: float) -> dict[str, Any]:
    """Send the Hello and return the manager's answer."""
    try:
        channel.send(hello, timeout_s)
        answer = json.loads(bytes(channel.receive(timeout_s)[0]))
        if not isinstance(answer, dict) or "refused" in answer:
            raise RemoteProtocolError(f"the manager refused: {answer}")
    except BaseException as error:
        channel.close()
        if isinstance(error, ValueError | ResultTimeout | ChannelClosed):
            raise ClusterUnreachable(f"the peer is not a RemoteManager: {error}") from error
        raise
    return answer


def _is_final(error: RemoteError, key_file: object, found: Environment) -> bool:
    """Return whether reconnecting is pointless."""
    if isinstance(error, ClusterUnreachable):
        return False
    return key_file is not None or found.key_file is not None or found.key is not None


def _runner_for(host: ActorHost, concurrency: Concurrency) -> ClosableRunner | None:
    """Return the runner of several concurrent calls, None if they run one after the other."""
    if concurrency.how is ConcurrencyMode.SERIAL:
        return None
    if concurrency.how is ConcurrencyMode.THREADS:
        return ThreadRunner(host, concurrency.limit)
    thread = LoopThread()
    thread.serve(host, concurrency.limit)
    return thread
