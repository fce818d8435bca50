"""Figures, histograms, texts and pictures of a run, for tensorboard.

    from parl.utils import summary
    summary.add_scalar("return", 200.0, global_step=1000)
    # tensorboard --logdir train_log

The first call opens an event file in the logger's directory (`logger.set_dir`), or in a new one below
`train_log/<script>` where none was set. Needs tensorboardX, which `parl-core[train]` brings. All functions can be
called from any thread. Additions are written to the file at once; `flush` waits until they are on disk.
"""

import atexit
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from parl_core import logger

__all__ = [
    "EventFile",
    "add_histogram",
    "add_hparams",
    "add_image",
    "add_scalar",
    "add_text",
    "close",
    "flush",
    "get_dir",
]


class EventFile:
    """A new file of events that tensorboard reads; threads may share it.

    The thread that adds an event writes it at once. (tensorboardX's own writer passes events to a thread.
    Ctrl-C within their queue leaves a lock locked, and `close` then waits for ever; its `flush` does not wait for the
    queue; two files that are begun in the same second have the same name.)

        record:  length, 8 bytes | its checksum, 4 | Event | its checksum, 4

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
        """Write a summary of tensorboardX, optionally with a step."""
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
        self._file.flush()  # a forked child must not write it again


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


class _CurrentFile:
    """The event file of this process; it follows the logger's directory."""

    def __init__(self) -> None:
        self.directory: str | None = None
        self._lock = threading.RLock()
        self._file: EventFile | None = None
        self._process = 0

    def add(self, summary: Any, global_step: int | None) -> None:
        with self._lock:
            self._open().add(summary, None if global_step is None else int(global_step))

    def flush(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.sync()

    def close(self) -> None:
        with self._lock:
            file, self._file, self.directory = self._file, None, None
            if file is not None:
                file.close()

    def _open(self) -> EventFile:
        wanted = logger.get_dir()
        process = os.getpid()  # a forked child writes its own file
        if self._file is not None and process == self._process and wanted in (None, self.directory):
            return self._file
        self.close()
        directory = wanted or logger.auto_set_dir()
        self._file = EventFile(Path(directory))
        self.directory = directory
        if not self._process:
            atexit.register(self.close)
            release = self._lock.release
            os.register_at_fork(before=self._lock.acquire, after_in_parent=release, after_in_child=release)
        self._process = process
        return self._file


_file = _CurrentFile()


def add_scalar(tag: str, scalar_value: Any, global_step: int | None = None) -> None:
    """Add one number of a curve.

    Args:
        tag: Name of the curve; a slash groups curves, as in `"loss/value"`.
        scalar_value: A number, or an array or tensor with one element.
        global_step: Position on the curve.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    value = float(_array(scalar_value).reshape(()))
    _file.add(_protocol().scalar(tag, value), global_step)


def add_histogram(tag: str, values: Any, global_step: int | None = None) -> None:
    """Add a histogram of numbers.

    Args:
        tag: Name of the histogram.
        values: Array or tensor of any shape, with at least one number, all finite.
        global_step: Position in the sequence of histograms.

    Raises:
        ImportError: tensorboardX is not installed.
        ValueError: There are no values, or some are not finite.
    """
    array = _array(values)
    spoiled = array.size - np.count_nonzero(np.isfinite(array))
    if array.size == 0 or spoiled:
        raise ValueError(f"histogram {tag!r} needs finite values, got {array.size} of which {spoiled} are not finite")
    bins = _bins_for(float(array.min()), float(array.max()))
    with np.errstate(over="ignore"):  # the sum of squares, which is infinite for numbers beyond 1e154
        histogram = _protocol().histogram(tag, array, bins)
    _file.add(histogram, global_step)


def add_text(tag: str, text_string: str, global_step: int | None = None) -> None:
    """Add a text; tensorboard shows it as Markdown.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    _file.add(_protocol().text(tag, text_string), global_step)


def add_image(tag: str, img_tensor: Any, global_step: int | None = None, dataformats: str = "CHW") -> None:
    """Add a picture.

    Args:
        tag: Name of the picture.
        img_tensor: Array or tensor, uint8 in [0, 255] or float in [0, 1].
        global_step: Position in the sequence of pictures.
        dataformats: Order of the axes: `"CHW"`, `"HWC"` or `"HW"`.

    Raises:
        ImportError: tensorboardX or Pillow is not installed.
    """
    _file.add(_protocol().image(tag, _array(img_tensor), dataformats=dataformats), global_step)


def add_hparams(
    hparam_dict: Mapping[str, Any], metric_dict: Mapping[str, float], global_step: int | None = None
) -> None:
    """Add the settings and the results of the run, for tensorboard's HPARAMS page.

    Args:
        hparam_dict: Settings: numbers, texts, truth values; anything else is written as its `str`.
        metric_dict: The results by name.
        global_step: Step of the results.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    plain = {
        name: value if isinstance(value, (bool, int, float, str)) else str(value) for name, value in hparam_dict.items()
    }
    for part in _protocol().hparams(plain, dict(metric_dict)):
        _file.add(part, global_step)
    for name, value in metric_dict.items():
        add_scalar(name, value, global_step)


def get_dir() -> str | None:
    """Return the directory of the event file; None before the first call and after `close`."""
    return _file.directory


def flush() -> None:
    """Wait until everything added so far is on disk."""
    _file.flush()


def close() -> None:
    """Close the event file; a later call opens a new one."""
    _file.close()


def _protocol() -> Any:
    """Return the functions of tensorboardX that put values into tensorboard's messages."""
    try:
        from tensorboardX import summary
    except ImportError as error:
        raise ImportError('parl.utils.summary needs tensorboardX: pip install "parl-core[train]"') from error
    return summary


@cache
def _bins() -> NDArray[np.float64]:
    """Return edges that grow by 10 % from one to the next on either side of 0, as tensorboard's own histograms have."""
    positive = 1e-12 * 1.1 ** np.arange(775)
    return np.concatenate([-positive[::-1], [0.0], positive])


def _bins_for(smallest: float, largest: float) -> NDArray[np.float64]:
    """Return the usual bins, and where numbers lie beyond them one more that reaches there."""
    bins = _bins()
    below = [smallest] if smallest < bins[0] else []
    above = [largest] if largest > bins[-1] else []
    return np.concatenate([below, bins, above])


def _array(value: Any) -> NDArray[Any]:
    for move in ("detach", "cpu"):  # a torch tensor on any device, with or without a graph
        value = getattr(value, move, lambda value=value: value)()
    return np.asarray(value)
