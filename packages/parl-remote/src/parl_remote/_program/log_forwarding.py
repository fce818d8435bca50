"""`connect(logs=True)`: shows the output of a program's actors as lines of the program's own output.

    worker --ActorOutputs--> thread "parl-logs" --"(Counter pid=4711) text"--> sys.stdout, sys.stderr
           <-FollowActors-- the next request follows once the lines are written, so a slow terminal delays no actor

It has links of its own to the workers, and one thread; without `logs=True` this module is not loaded.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TextIO

from parl_remote._links.loop import Loop
from parl_remote._links.requests import arrived_messages
from parl_remote._messages import LeaseGranted
from parl_remote._messages.parts import ActorOutput, ActorOutputs, FollowActors
from parl_remote._messages.wire import encode
from parl_remote._system.texts import visible
from parl_remote._transport import Channel
from parl_remote.errors import ChannelClosed, RemoteError, ResultTimeout

__all__ = ["LogForwarder", "show"]

_WAIT_S = 30.0  # a request is answered with nothing after this time, and repeated
_TRY_AGAIN_S = 1.0
_TRIES = 5  # a network that was cut for longer than this comes back with the next actor
_LAST_WAIT_S = 0.1  # seconds for an actor of this program to end; others may run for ever
_LAST_OUTPUT_S = 1.0  # seconds for which an ending program waits for the rest of its actors' output
_LONGEST_LINE = 2**16  # a line that is longer is shown in parts
_MOST_LAST_ANSWERS = 8  # chunks of a megabyte each; more output than that at the end is not shown
_POSITIONS_KEPT = 100  # of workers that cannot be reached: one that was cut off, and comes back, does so within minutes


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker whose actors' output is followed."""

    granted: LeaseGranted
    channel: Channel
    shown: _LineAssembler
    question: int = 0


class LogForwarder:
    """Follows the output of one program's actors on all their workers.

    Args:
        connect: Opens one more link to the worker of a lease, under the program's own id.
        where: Returns the location shown in lines from that worker; empty for this host.
    """

    def __init__(self, connect: Callable[[LeaseGranted], Channel], where: Callable[[LeaseGranted], str]) -> None:
        self._connect = connect
        self._where = where
        self._loop = Loop()
        self._workers: dict[str, _Worker] = {}
        self._positions: dict[str, dict[str, int]] = {}
        self._given_up: dict[str, None] = {}  # workers that could not be reached again, the latest one last
        self._numbers = itertools.count(1)
        self._closing = False
        self._left = 0
        self._patience = 5
        self._has_closed: Future[None] = Future()
        self._thread = threading.Thread(target=self._loop.run, name="parl-logs", daemon=True)
        self._thread.start()

    def follow(self, granted: LeaseGranted) -> None:
        """Follow the worker of a lease; callable from any thread."""
        if granted.node_id not in self._workers:
            self._loop.call_soon(lambda: self._connect_worker(granted))

    def close(self) -> None:
        """Show the remaining output, which may take a moment, and close the links."""
        self._loop.call_soon(self._start_closing)
        if self._thread is not threading.current_thread():
            with contextlib.suppress(TimeoutError):
                self._has_closed.result(_LAST_OUTPUT_S)
            self._loop.stop()
            self._thread.join(_LAST_OUTPUT_S)
        if not self._thread.is_alive():
            for worker in self._workers.values():
                worker.channel.close()
            self._loop.close()

    # -- in the thread -------------------------------------------------------------------------------------------

    def _connect_worker(self, granted: LeaseGranted, tries: int = 0) -> None:
        node_id = granted.node_id
        if node_id in self._workers or self._closing:
            return
        try:
            channel = self._connect(granted)
        except (RemoteError, OSError) as error:
            if tries:  # the connection was lost; the worker may be gone as well, and then there is nothing to show
                self._loop.call_later(_TRY_AGAIN_S, lambda: self._connect_worker(granted, tries - 1))
            elif node_id not in self._positions:
                show(sys.stderr, f"(parl) cannot show what actors on {node_id} write: {error}\n")
            else:
                self._give_up(node_id)
            return
        self._given_up.pop(node_id, None)
        self._workers[node_id] = worker = _Worker(granted, channel, _LineAssembler(self._where(granted)))
        self._loop.add(channel, lambda: self._on_readable(node_id, worker))
        self._ask(node_id, worker, _WAIT_S)

    def _give_up(self, node_id: str) -> None:
        """Keep the positions for a worker that is only cut off, and forget those of the one given up long before."""
        self._given_up.pop(node_id, None)
        self._given_up[node_id] = None
        if len(self._given_up) > _POSITIONS_KEPT:
            oldest = next(iter(self._given_up))
            del self._given_up[oldest]
            self._positions.pop(oldest, None)

    def _ask(self, node_id: str, worker: _Worker, wait_s: float) -> None:
        positions = self._positions.get(node_id, {}) if not worker.question else {}
        worker.question = next(self._numbers)
        try:
            worker.channel.send([encode(FollowActors(worker.question, wait_s, positions))], _LAST_OUTPUT_S)
        except (ChannelClosed, ResultTimeout):
            self._disconnect(node_id, worker)

    def _on_readable(self, node_id: str, worker: _Worker) -> None:
        for message in arrived_messages(worker.channel):
            if message is None:
                self._disconnect(node_id, worker)
                return
            if isinstance(message, ActorOutputs):
                self._note(node_id, message.outputs)
                for is_error, text in worker.shown.paragraphs(message.outputs):
                    show(sys.stderr if is_error else sys.stdout, text)
                if message.request_id == worker.question:
                    self._ask_again(node_id, worker, message)

    def _ask_again(self, node_id: str, worker: _Worker, heard: ActorOutputs) -> None:
        if not self._closing:
            self._ask(node_id, worker, _WAIT_S)
        elif heard.outputs and self._left:
            self._left -= 1
            self._ask(node_id, worker, 0.0)
        elif self._positions.get(node_id) and self._patience:  # an actor that is about to end may still write something
            self._patience -= 1
            self._ask(node_id, worker, _LAST_WAIT_S)
        else:
            self._disconnect(node_id, worker)

    def _note(self, node_id: str, outputs: tuple[ActorOutput, ...]) -> None:
        """Record the position read of each actor's output, for resuming on a new link."""
        positions = self._positions.setdefault(node_id, {})
        for output in outputs:
            if output.ended:
                positions.pop(output.lease_id, None)
            else:
                positions[output.lease_id] = output.end

    def _disconnect(self, node_id: str, worker: _Worker) -> None:
        self._loop.remove(worker.channel)
        worker.channel.close()
        self._workers.pop(node_id, None)
        if not self._closing:
            self._loop.call_later(_TRY_AGAIN_S, lambda: self._connect_worker(worker.granted, _TRIES))
        self._end_if_over()

    def _start_closing(self) -> None:
        self._closing = True
        self._left = _MOST_LAST_ANSWERS * max(1, len(self._workers))
        for node_id, worker in list(self._workers.items()):
            self._ask(node_id, worker, 0.0)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._closing and not self._workers and not self._has_closed.done():
            self._has_closed.set_result(None)


def show(stream: TextIO | None, text: str) -> None:
    """Write to one of the program's current streams, which notebooks and tests may have replaced."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed, and is not read any more
            stream.write(text)
            stream.flush()


class _LineAssembler:
    """The lines of one worker's actors; the last line of each stream may be incomplete."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._begun: dict[tuple[str, bool], str] = {}

    def paragraphs(self, outputs: tuple[ActorOutput, ...]) -> Iterator[tuple[bool, str]]:
        """Yield texts to write at once, in order, each with whether it is for stderr."""
        for is_error, lines in itertools.groupby(self._lines(outputs), lambda line: line[0]):
            yield is_error, "".join(line for _, line in lines)

    def _lines(self, outputs: tuple[ActorOutput, ...]) -> Iterator[tuple[bool, str]]:
        for output in outputs:
            name = f" {output.actor_name}" if output.actor_name else ""
            prefix = visible(f"({output.class_name}{name} pid={output.pid}{self._where}) ")
            if output.dropped:
                lines = f"{output.dropped} line{'s' * (output.dropped != 1)}"
                yield True, f"{prefix}[{lines} left out, it writes faster than they can be shown]\n"
            for piece in output.pieces:
                stream = output.lease_id, piece.is_error
                *whole, begun = (self._begun.pop(stream, "") + piece.text).split("\n")
                if len(begun) > _LONGEST_LINE:
                    whole.append(begun)
                elif begun:
                    self._begun[stream] = begun
                for line in whole:
                    yield piece.is_error, f"{prefix}{_as_shown(line)}\n"
            if output.ended:
                for is_error in (False, True):
                    if begun := self._begun.pop((output.lease_id, is_error), ""):
                        yield is_error, f"{prefix}{_as_shown(begun)}\n"


def _as_shown(line: str) -> str:
    """Return the visible part of a line that was overwritten, as by a progress bar: its last state."""
    return visible(line.rstrip("\r").rpartition("\r")[2])
