"""Figures, histograms, texts and pictures of a run, for tensorboard.

    from parl.utils import summary
    summary.add_scalar("return", 200.0, global_step=1000)
    # tensorboard --logdir train_log

The first call opens an event file in the logger's directory (`logger.set_dir`), or in a new one below
`train_log/<script>` where none was set. Needs tensorboardX, which `parl-core[train]` brings. All functions can be
called from any thread; what was added reaches the disk with `flush`, `close`, at the end of the program, and every two
minutes.
"""

import atexit
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core import logger

__all__ = [
    "add_histogram",
    "add_hparams",
    "add_image",
    "add_scalar",
    "add_text",
    "close",
    "flush",
    "get_dir",
]


class _CurrentWriter:
    """The one event file of this process; it follows the logger's directory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._writer: Any = None
        self.directory: str | None = None

    def get(self) -> Any:
        wanted = logger.get_dir()
        if self._writer is None or (wanted is not None and wanted != self.directory):
            writer_class = _writer_class()
            self.close()
            self.directory = wanted or logger.auto_set_dir()
            self._writer = writer_class(self.directory)
            atexit.register(self.close)
        return self._writer

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        with self.lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                atexit.unregister(self.close)
                writer.close()


_current = _CurrentWriter()


def add_scalar(tag: str, scalar_value: Any, global_step: int | None = None) -> None:
    """Add one number of a curve.

    Args:
        tag: name of the curve; a slash groups curves, as in `"loss/value"`.
        scalar_value: a number, or an array or tensor with one element.
        global_step: position on the curve.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    value = float(_array(scalar_value).reshape(()))
    with _current.lock:
        _current.get().add_scalar(tag, value, global_step)


def add_histogram(tag: str, values: Any, global_step: int | None = None) -> None:
    """Add a histogram of numbers.

    Args:
        tag: name of the histogram.
        values: array or tensor of any shape, with at least one number, all finite.
        global_step: position in the sequence of histograms.

    Raises:
        ImportError: tensorboardX is not installed.
        ValueError: there are no values, or some are not finite.
    """
    array = _array(values)
    spoiled = array.size - np.count_nonzero(np.isfinite(array))
    if array.size == 0 or spoiled:
        raise ValueError(f"histogram {tag!r} needs finite values, got {array.size} of which {spoiled} are not finite")
    with _current.lock:
        _current.get().add_histogram(tag, array, global_step)


def add_text(tag: str, text_string: str, global_step: int | None = None) -> None:
    """Add a text; tensorboard shows it as Markdown.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    with _current.lock:
        _current.get().add_text(tag, text_string, global_step)


def add_image(tag: str, img_tensor: Any, global_step: int | None = None, dataformats: str = "CHW") -> None:
    """Add a picture.

    Args:
        tag: name of the picture.
        img_tensor: array or tensor, uint8 in [0, 255] or float in [0, 1].
        global_step: position in the sequence of pictures.
        dataformats: order of the axes: `"CHW"`, `"HWC"` or `"HW"`.

    Raises:
        ImportError: tensorboardX or Pillow is not installed.
    """
    with _current.lock:
        _current.get().add_image(tag, _array(img_tensor), global_step, dataformats=dataformats)


def add_hparams(
    hparam_dict: Mapping[str, Any], metric_dict: Mapping[str, float], global_step: int | None = None
) -> None:
    """Add the settings of the run and what came out, for tensorboard's HPARAMS page.

    Args:
        hparam_dict: settings: numbers, texts, truth values; anything else is written as its `str`.
        metric_dict: results.
        global_step: step of the results.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    plain = {
        name: value if isinstance(value, (bool, int, float, str)) else str(value) for name, value in hparam_dict.items()
    }
    with _current.lock:
        _current.get().add_hparams(plain, dict(metric_dict), name="hparams", global_step=global_step)


def get_dir() -> str | None:
    """Return the directory of the event file; None before the first call and after `close`."""
    return _current.directory


def flush() -> None:
    """Write what was added so far to disk."""
    with _current.lock:
        _current.flush()


def close() -> None:
    """Write everything to disk and close the event file; a later call opens a new one."""
    _current.close()


def _writer_class() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError('parl.utils.summary needs tensorboardX: pip install "parl-core[train]"') from error
    return SummaryWriter


def _array(value: Any) -> NDArray[Any]:
    for move in ("detach", "cpu"):  # a torch tensor on any device, with or without a graph
        value = getattr(value, move, lambda value=value: value)()
    return np.asarray(value)
