"""A file of events that tensorboard reads.

Each event is written by the thread that adds it, at once. (tensorboardX's own writer hands events to a thread. Ctrl-C
within their queue leaves a lock locked, and `close` then waits for ever; its `flush` does not wait for the queue; two
files that are begun in the same second have the same name.)

    record:  length, 8 bytes | its checksum, 4 | Event | its checksum, 4
"""

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["EventFile"]


class EventFile:
    """A new event file; threads may share it.

    Args:
        directory: The directory of the file; made if it is missing.

    Raises:
        ImportError: tensorboardX is not installed.
        OSError: The file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        first = _record(file_version="brain.Event:2")
        directory.mkdir(parents=True, exist_ok=True)
        self._file = _new(directory)
        self._write(first)

    def add(self, summary: Any, step: int | None = None) -> None:
        """Write a summary of tensorboardX, of a step if there is one."""
        self._write(_record(step=step, summary=summary))

    def hide_earlier_from(self, step: int) -> None:
        """Hide the events of earlier files of the directory from this step on."""
        from tensorboardX.proto.event_pb2 import SessionLog

        self._write(_record(step=step, session_log=SessionLog(status=SessionLog.START)))

    def sync(self) -> None:
        """Wait until the disk has all events."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self._file.flush()  # a forked child must not write it once more


def _record(**fields: Any) -> bytes:
    """Return an Event of now, with its length and checksums."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    content: bytes = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(content))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, content)]
    return length + checksums[0] + content + checksums[1]


def _new(directory: Path) -> BinaryIO:
    stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
    number = 0
    while True:
        try:
            return (directory / f"{stem}.{number}").open("xb")
        except FileExistsError:
            number += 1
