"""The fast transport between hosts: a TCP connection whose records are sealed with AES-256-GCM. Needs `cryptography`.

    client --OpenSealed, over its CURVE link--> node        the node makes a ticket and a key for one connection
           <--SealedOpened(port, ticket, key)--
    SealedChannel --TCP: the ticket, then records--> SealedListener --hand over, Linux--> the actor itself

    record   length u32 of what follows | ciphertext, up to 256 KiB of the byte stream of `unix.sockets` | tag, 16 bytes

The key is random and new for every connection, and only the encrypted link carried it. Each direction has a key of its
own, derived from it; the nonce of a record is its number in its direction, which no record carries, and its length is
authenticated as well. A record that is forged, changed, repeated, left out or out of order therefore does not open, and
ends the connection. After 2^20 records a direction continues with the next key. A ticket opens one connection, within
some seconds; an eavesdropper can use it up, but cannot seal a record.

The kernel notices peers that vanish: it probes silent connections and gives up on data that is not acknowledged.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from parl_remote._config import Limits
from parl_remote._system.facilities import IN, OUT, is_raised_by_handler, new_poller, wait_once
from parl_remote._transport import Buffer, Closed, Event, Opened
from parl_remote._transport.addresses import Address
from parl_remote._transport.unix.channel import UnixChannel
from parl_remote._transport.unix.listener import Acceptor, UnixPeers
from parl_remote._transport.unix.sockets import NO_SIZE, NOW, FrameReader, after, stream, would_block
from parl_remote.errors import ChannelClosed, ClusterUnreachable, RemoteProtocolError, ResultTimeout

__all__ = ["Handover", "Opener", "SealedChannel", "SealedListener", "Sealer", "can_seal"]

_RECORD = 2**18  # plain bytes: some 15 us of work, so that one end seals while the other opens
_SMALL_RECORD = 2**11  # where there is no memory for a larger one
_TAG = 16
_LENGTH = struct.Struct("<I")
_NONCE = struct.Struct("<4xQ")
_RECORDS_A_KEY = 2**20  # AES-GCM stays far from its limits for 2^38 bytes under one key
_TICKET_BYTES = 16
_READ_AT_FIRST = 2**12
_READ_AHEAD = 2**19
_BACKLOG = 256
_MOST_WAITING = 64  # connections that have not shown a ticket yet; the oldest one gives way
_MOST_TICKETS = 4096
_PROBES = 3
_TO_NODE, _TO_CLIENT = b"parl sealed to node", b"parl sealed to client"


def can_seal() -> bool:
    """Return whether this process can use this transport: `cryptography` is installed."""
    try:
        _cipher(bytes(32))
    except ImportError:
        return False
    return True


def _cipher(key: bytes) -> _Cipher:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 22 ms, and an extra

    return cast("_Cipher", AESGCM(key))


class _Cipher:
    """The part of `AESGCM` that is used here."""

    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes, /) -> bytes:
        """Return ciphertext and tag."""
        raise NotImplementedError

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes, /) -> bytes:
        """Return the plain bytes; raise `InvalidTag`."""
        raise NotImplementedError


class _RecordStream:
    """The records of one direction: a key and the number of the next record."""

    def __init__(self, key: bytes, number: int = 0) -> None:
        self.key = key
        self.number = number
        self._cipher = _cipher(key)

    def _next(self) -> tuple[_Cipher, bytes]:
        number = self.number
        if number and not number % _RECORDS_A_KEY:
            self.key = hashlib.blake2b(b"parl sealed next", key=self.key, digest_size=32).digest()
            self._cipher = _cipher(self.key)
        self.number = number + 1
        return self._cipher, _NONCE.pack(number)


class Sealer(_RecordStream):
    """Seals the records of one direction."""

    def seal(self, plain: Buffer) -> bytes:
        """Return a record."""
        return b"".join(self._sealed(plain))

    def _sealed(self, plain: Buffer) -> tuple[bytes, bytes]:
        """Return a record's length and the rest of it."""
        length = _LENGTH.pack(len(plain) + _TAG)
        cipher, nonce = self._next()
        return length, cipher.encrypt(nonce, plain, length)

    def first(self, parts: Sequence[Buffer], most: int = _RECORD) -> tuple[list[Buffer], int]:
        """Return the first record of a message, a long one in two pieces, and the number of plain bytes in it.

        Args:
            parts: The bytes of the message.
            most: The maximum number of plain bytes.

        Raises:
            MemoryError: There is no memory for it; nothing has changed.
        """
        before = self.state()
        try:
            return self._first(parts, most)
        except MemoryError:
            self.restore(before)
            raise

    def state(self) -> tuple[bytes, _Cipher, int]:
        """Return the state for `restore`."""
        return self.key, self._cipher, self.number

    def restore(self, state: tuple[bytes, _Cipher, int]) -> None:
        """Return to a state since which no record has left this process."""
        self.key, self._cipher, self.number = state

    def _first(self, parts: Sequence[Buffer], most: int) -> tuple[list[Buffer], int]:
        held = count = 0
        if len(parts) == 1 and len(parts[0]) <= most:  # the usual case
            return [self.seal(parts[0])], len(parts[0])
        for part in parts:
            if held + len(part) > most:
                break
            held += len(part)
            count += 1
        if held:
            return [self.seal(parts[0] if count == 1 else b"".join(parts[:count]))], held
        return [*self._sealed(memoryview(parts[count])[:most])], most

    def records(self, parts: Sequence[Buffer]) -> Iterator[list[Buffer]]:
        """Yield the records of one message after the other; see `first`."""
        parts = after(parts, 0)
        while parts:
            record, size = self.first(parts)
            yield record
            parts = after(parts, size)


def _whole(sealer: Sealer, frames: Sequence[Buffer]) -> list[Buffer]:
    """Return the bytes to write for a message, which are then sent as a whole.

    Raises:
        MemoryError: There is no memory for all of it; nothing has changed.
    """
    before = sealer.state()
    try:
        return [piece for record in sealer.records(stream(frames)) for piece in record]
    except MemoryError:
        sealer.restore(before)
        raise


class Opener(_RecordStream):
    """Opens the records of one direction, in their order."""

    def __init__(self, key: bytes, number: int = 0) -> None:
        from cryptography.exceptions import InvalidTag

        super().__init__(key, number)
        self._invalid = InvalidTag

    def open(self, length: bytes, sealed: Buffer) -> bytes:
        """Return a record's plain bytes.

        Raises:
            RemoteProtocolError: It is not the next record of the peer.
        """
        cipher, nonce = self._next()
        try:
            return cipher.decrypt(nonce, sealed, length)
        except self._invalid:
            raise RemoteProtocolError("a record was changed on its way, or is not the peer's next one") from None


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=key, digest_size=32).digest()


class SealedReader(FrameReader):
    """Parses the records of a socket into messages.

    Args:
        opener: Opens the records.
        max_bytes: Largest message that is accepted.
        allocate: Makes memory for long frames.
    """

    __slots__ = ("_opener", "_sealed", "_sealed_end")

    def __init__(self, opener: Opener, max_bytes: int, allocate: Callable[[int], Buffer] = bytearray) -> None:
        super().__init__(max_bytes, allocate)
        self._opener = opener
        self._sealed = bytearray(_READ_AT_FIRST)
        self._sealed_end = 0

    def next(self) -> list[memoryview] | None:
        """Return the next message that was read completely, None if there is none."""
        return self._finished() if self._frames and not self._missing else super().next()

    @property
    def inside_message(self) -> bool:
        """Return whether a message has been read in part."""
        return self._sealed_end > 0 or super().inside_message

    def fill(self, source: socket.socket, flags: int = 0) -> None:
        """Read once from `source`, and open all records that are complete; see `FrameReader.fill`.

        Raises:
            RemoteProtocolError: A record does not open.
        """
        if not self._counts:
            with memoryview(self._sealed) as view:
                self._receive(map(source.recv_into, (view[self._sealed_end :],), NO_SIZE, (flags,)), flags)
        self._note()

    def _note(self) -> None:
        got = self._counts.pop()
        if not got:
            raise EOFError
        self._sealed_end += got
        end, at, needed = self._sealed_end, 0, 0
        with memoryview(self._sealed) as view:
            while end - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, at)
                if not _TAG <= length <= _RECORD + _TAG:
                    raise RemoteProtocolError(f"a record cannot have {length} bytes")
                start = at + _LENGTH.size
                if end - start < length:
                    needed = _LENGTH.size + length
                    break
                self._take(memoryview(self._opener.open(bytes(view[at:start]), view[start : start + length])))
                at = start + length
        if needed > len(self._sealed) or (end == len(self._sealed) < _READ_AHEAD):
            larger = bytearray(_READ_AHEAD)
            larger[: end - at] = self._sealed[at:end]
            self._sealed = larger
        elif at < end and at:
            self._sealed[: end - at] = self._sealed[at:end]
        self._sealed_end = end - at

    def _take(self, plain: memoryview) -> None:
        """Add plain bytes to the message that is being read."""
        missing = self._missing
        while missing and plain:
            part = missing[0]
            size = min(len(part), len(plain))
            part[:size] = plain[:size]
            plain = plain[size:]
            if size == len(part):
                del missing[0]
            else:
                missing[0] = part[size:]
        if plain:
            if len(self._buffer) - self._end < len(plain):
                self._reserve(self._end - self._start + len(plain))
            self._view[self._end : self._end + len(plain)] = plain
            self._end += len(plain)


_HANDOVER = struct.Struct("<32sQ32sQ")


class Handover(NamedTuple):
    """The state with which another process continues a connection, beside its socket.

    Attributes:
        send_key: Seals what it sends.
        sent: The number of sent records.
        receive_key: Opens what it receives.
        received: The number of received records.
    """

    send_key: bytes
    sent: int
    receive_key: bytes
    received: int

    def encode(self) -> bytes:
        """Return the handover as bytes."""
        return _HANDOVER.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> Handover:
        """Return the handover that `encode` wrote.

        Raises:
            RemoteProtocolError: It did not write these bytes.
        """
        if len(data) != _HANDOVER.size:
            raise RemoteProtocolError(f"a handover has {_HANDOVER.size} bytes, not {len(data)}")
        return cls(*_HANDOVER.unpack(data))


class SealedChannel(UnixChannel):
    """One end of a sealed connection, used by many threads; see `UnixChannel`.

    Args:
        connection: A connected socket; the channel owns it from now on.
        state: Keys and numbers of records.
        allocate: Makes memory for long frames.
    """

    def __init__(
        self, connection: socket.socket, state: Handover, *, allocate: Callable[[int], Buffer] = bytearray
    ) -> None:
        opener = Opener(state.receive_key, state.received)
        reader = SealedReader(opener, Limits.max_frame_bytes, allocate)
        super().__init__(connection, reader=reader)
        self._sealer = Sealer(state.send_key, state.sent)
        self._record: list[Buffer] = []  # the rest of the record that is being written
        self._plain = 0  # the number of bytes of the message that it has
        self._record_bytes = 0  # the number that it had at first
        self._before = self._sealer.state()

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        ticket: bytes,
        key: bytes,
        *,
        limits: Limits,
        timeout_s: float,
        allocate: Callable[[int], Buffer] = bytearray,
    ) -> SealedChannel:
        """Connect to a `SealedListener` with a ticket that it has made.

        Raises:
            ClusterUnreachable: Nothing answers there.
        """
        try:
            connection = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            reason = f"{Address(host, port)} cannot be reached: {error}"
            raise ClusterUnreachable(reason, address=str(Address(host, port))) from error
        try:
            connection.sendall(ticket)
            configure_tcp(connection, limits)
            state = Handover(_derived(key, _TO_NODE), 0, _derived(key, _TO_CLIENT), 0)
            return cls(connection, state, allocate=allocate)
        except OSError as error:
            connection.close()
            raise ClusterUnreachable(f"the connection to {Address(host, port)} broke: {error}") from error

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message; see `Channel.send`. One that was begun is completed, or the connection ends."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._send_lock:
            if self._closed:
                raise ChannelClosed("this channel was closed")
            self._await_flushed(timeout_s)
            if deadline is not None and not wait_once(
                self._socket, OUT, max(0.0, 1000 * (deadline - time.monotonic()))
            ):
                raise ResultTimeout(f"the peer received nothing for {timeout_s} s")
            complete, is_begun = False, False
            try:
                for record in self._sealer.records(stream(frames)):
                    is_begun = True
                    self._write(record, deadline)
                complete = True
            except MemoryError:
                complete = not is_begun
                raise
            except OSError as error:
                if is_raised_by_handler(error):
                    raise
                raise self._broken(error) from error
            finally:
                if not complete:  # its record number is used, so no message can follow
                    self._hang_up()

    def post(self, frames: Sequence[Buffer], more: Sequence[Sequence[Buffer]] = ()) -> bool:
        """Take messages without waiting; see `UnixChannel.post`."""
        with self._send_lock:
            if self._closed:
                raise ChannelClosed("this channel was closed")
            return self._write_or_keep(stream(frames, *more))

    def _rest_of(self, parts: list[Buffer]) -> list[Buffer]:
        """Seal and write one record after the other without waiting; return the rest, with the record begun last.

        Without memory for the next record it takes nothing for now, as if the socket were full.
        """
        complete = False
        try:
            while parts:
                if not self._record and not self._seal_first(parts):
                    break
                self._record = super()._rest_of(self._record)
                if self._record:
                    break
                parts = after(parts, self._plain)
            complete = True
        finally:
            if not complete:  # see `send`
                self._hang_up()
        return parts

    def _seal_first(self, parts: list[Buffer]) -> bool:
        """Seal the next record; return False if there is no memory even for a small one."""
        for most in (_RECORD, _SMALL_RECORD):
            with contextlib.suppress(MemoryError):
                self._before = self._sealer.state()
                self._record, self._plain = self._sealer.first(parts, most)
                self._record_bytes = sum(map(len, self._record))
                return True
        return False

    def withdraw(self, frames: Sequence[Buffer]) -> bool:
        """Forget a message of which nothing has been sent; see `Channel.withdraw`."""
        with self._send_lock:
            has_record = len(self._unsent) == 1 and bool(self._record)
            if has_record and sum(map(len, self._record)) < self._record_bytes:
                return False
            is_forgotten = super().withdraw(frames)
            if is_forgotten and has_record:
                self._record = []
                self._sealer.restore(self._before)
            return is_forgotten

    def _write(self, rest: list[Buffer], deadline: float | None) -> None:
        while True:
            try:
                sent = self._socket.send(rest[0], NOW) if len(rest) == 1 else self._socket.sendmsg(rest, (), NOW)
            except OSError as error:
                if not would_block(error):
                    raise
                sent = 0
            rest = after(rest, sent)
            if not rest:
                return
            if not self._wait_writable(deadline, inside_message=True):
                raise ChannelClosed("the peer took a long message too slowly; the connection is closed")


def configure_tcp(connection: socket.socket, limits: Limits) -> None:
    """Make the kernel send small messages at once, and close the connection if the peer is silent for too long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, int(limits.liveness_limit_s / (_PROBES + 1)))
    for name, value in (
        ("TCP_KEEPIDLE", probe_s),
        ("TCP_KEEPINTVL", probe_s),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", int(1000 * limits.liveness_limit_s)),
    ):
        option = getattr(socket, name, None)  # some systems have their own names
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _Waiting:
    """A connection that has not shown its ticket yet."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection = connection
        self.until = until
        self.ticket = b""


class SealedListener:
    """Listens on a TCP port for connections with tickets; implements `Listener`.

    Args:
        host: The interface to listen on.
        port: The port; 0 for a free one.
        limits: The lifetime of a ticket, and the time for which a peer may be silent.

    Raises:
        OSError: There is no port, or no descriptor.
        ImportError: `cryptography` is not installed.
    """

    def __init__(self, host: str, port: int = 0, *, limits: Limits) -> None:
        _cipher(bytes(32))
        self._limits = limits
        is_six = ":" in host
        listening = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if is_six else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=is_six and socket.has_dualstack_ipv6(),
        )
        self._acceptor = Acceptor(listening, any_user=True)
        self._host = host
        self._port: int = listening.getsockname()[1]
        self._peers = UnixPeers()
        self._sealers: dict[int, Sealer] = {}
        self._openers: dict[int, Opener] = {}
        self._tickets: dict[bytes, tuple[bytes, float]] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._poller = new_poller()
        self._poller.register(self._acceptor.fileno(), IN)
        self._poller.register(self._peers.fileno(), IN)
        self._closed = False

    @property
    def port(self) -> int:
        """The port."""
        return self._port

    @property
    def address(self) -> str:
        """The interface and port, "host:port"."""
        return str(Address(self._host, self.port))

    def new_ticket(self) -> tuple[bytes, bytes]:
        """Return a ticket for one connection, and its key."""
        now = time.monotonic()
        self._tickets = {ticket: (key, until) for ticket, (key, until) in self._tickets.items() if until > now}
        while len(self._tickets) >= _MOST_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket, key = os.urandom(_TICKET_BYTES), os.urandom(32)
        self._tickets[ticket] = key, now + self._limits.connect_timeout_s
        return ticket, key

    def fileno(self) -> int:
        """Return a descriptor that is readable while `poll` has something to do."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def poll(self) -> list[Event]:
        """Return the events since the last call; see `Listener.poll`."""
        events: list[Event] = []
        for descriptor, _ in self._poller.poll(0):
            if descriptor == self._acceptor.fileno():
                self._accept()
            elif descriptor == self._peers.fileno():
                events.extend(self._peers.poll())
            elif descriptor in self._waiting:
                self._check_ticket(self._waiting[descriptor], events)
        for event in events:
            if type(event) is Closed:
                self._forget(event.peer)
        return events

    def _accept(self) -> None:
        for connection in self._acceptor.waiting():
            now = time.monotonic()
            for waiting in list(self._waiting.values()):
                if waiting.until < now or len(self._waiting) >= _MOST_WAITING:
                    self._drop_waiting(waiting)
            try:
                connection.setblocking(False)
                self._poller.register(connection.fileno(), IN)
            except OSError:  # no memory, or the limit of watched descriptors: it may come again
                connection.close()
            else:
                self._waiting[connection.fileno()] = _Waiting(connection, now + self._limits.hello_timeout_s)

    def _check_ticket(self, waiting: _Waiting, events: list[Event]) -> None:
        try:
            got = waiting.connection.recv(_TICKET_BYTES - len(waiting.ticket))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        waiting.ticket += got
        if got and len(waiting.ticket) < _TICKET_BYTES:
            return
        key, until = self._tickets.pop(waiting.ticket, (b"", 0.0))
        if not got or until < time.monotonic():
            self._drop_waiting(waiting)
            return
        self._let_go(waiting)
        sealer, opener = Sealer(_derived(key, _TO_CLIENT)), Opener(_derived(key, _TO_NODE))
        try:
            configure_tcp(waiting.connection, self._limits)
            peer = self._peers.add(
                waiting.connection,
                reader=lambda max_bytes, allocate: SealedReader(opener, max_bytes, allocate),
                encode=functools.partial(_whole, sealer),
            )
        except OSError:  # it has gone already, or there is no memory
            waiting.connection.close()
            return
        self._sealers[peer], self._openers[peer] = sealer, opener
        events.append(Opened(peer))

    def _let_go(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.connection.fileno()]
        self._poller.unregister(waiting.connection.fileno())

    def _drop_waiting(self, waiting: _Waiting) -> None:
        self._let_go(waiting)
        waiting.connection.close()

    def hand_over(self, peer: int) -> tuple[socket.socket, Handover] | None:
        """Give a connection away; None if it is gone, or in the middle of a message."""
        connection = self._peers.take_out(peer)
        if connection is None:
            return None
        sealer, opener = self._sealers[peer], self._openers[peer]
        self._forget(peer)
        return connection, Handover(sealer.key, sealer.number, opener.key, opener.number)

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer; see `Listener.send`."""
        self._peers.send(peer, frames)

    def drop(self, peer: int) -> None:
        """Close the connection to a peer after the queued messages; see `Listener.drop`."""
        self._peers.drop(peer)
        self._forget(peer)

    def _forget(self, peer: int) -> None:
        self._sealers.pop(peer, None)
        self._openers.pop(peer, None)

    def close(self) -> None:
        """Drop all peers, waiting a little for slow ones, and stop listening."""
        if self._closed:
            return
        self._closed = True
        for waiting in list(self._waiting.values()):
            self._drop_waiting(waiting)
        self._peers.close()
        self._poller.close()
        self._acceptor.close()
