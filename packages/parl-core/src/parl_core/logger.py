"""Messages from a program: on the console, and in `log.log` of the run's directory.

    from parl.utils import logger
    logger.set_dir("runs/first")                                    # or auto_set_dir(); neither ever deletes anything
    logger.info("Episode %d, Reward Sum %s.", 1, 200.0)

    logger.info ── logging.getLogger("parl") ──┬─ console (standard error), unless the program set up logging itself
                                               ├─ <directory>/log.log, once a directory is set
                                               └─ the handlers that the program gave to the root logger

Importing this module does nothing. The first message prepares the logger "parl": level INFO unless the program has set
one, and a console handler that is silent while the root logger has handlers, so that no line appears twice. The root
logger is never changed; the handler that importing paddle adds to it does not count, and gets no messages of this
logger. All functions can be called from any thread.
"""

import logging
import os
import sys
import threading
from datetime import datetime
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, TextIO

__all__ = [
    "CRITICAL",
    "DEBUG",
    "ERROR",
    "INFO",
    "WARNING",
    "add_stdout_handler",
    "auto_set_dir",
    "close",
    "critical",
    "debug",
    "error",
    "exception",
    "get_dir",
    "get_logger",
    "info",
    "remove_handler",
    "setLevel",
    "set_dir",
    "set_level",
    "warn",
    "warning",
]

LOG_FILE = "log.log"
_COLOURS = {WARNING: "\x1b[33m", ERROR: "\x1b[31m", CRITICAL: "\x1b[31;1m"}
_MARKS = {WARNING: "WRN ", ERROR: "ERR ", CRITICAL: "CRITICAL ", DEBUG: "DBG "}
_OF_PADDLE = "[%(asctime)-15s] [%(levelname)8s] %(filename)s:%(lineno)s - %(message)s"
_GREEN, _PLAIN = "\x1b[32m", "\x1b[0m"


class _Format(logging.Formatter):
    """Formats `[01-31 23:59:59 MainThread @train.py:12] WRN message`, optionally in colour."""

    def __init__(self, coloured: bool) -> None:
        super().__init__("%(message)s")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%m-%d %H:%M:%S")
        place = f"[{when} {record.threadName} @{record.filename}:{record.lineno}]"
        mark = _MARKS.get(record.levelno, "")
        if self._coloured:
            place = f"{_GREEN}{place}{_PLAIN}"
            mark = f"{_COLOURS[record.levelno]}{mark}{_PLAIN}" if record.levelno in _COLOURS else mark
        return f"{place} {mark}{super().format(record)}"


class _Console(logging.Handler):
    """Handler that writes to the present standard error, unless the root logger has handlers."""

    def __init__(self) -> None:
        super().__init__()
        self._keeps = False  # messages from the root logger, which has only paddle's handler

    def emit(self, record: logging.LogRecord) -> None:
        stream: TextIO | None = sys.stderr
        handlers = logging.getLogger().handlers
        chosen = any(getattr(handler.formatter, "_fmt", None) != _OF_PADDLE for handler in handlers)
        if self._keeps != (bool(handlers) and not chosen):
            self._keeps = not self._keeps
            _run.logger.propagate = not self._keeps  # read after this handler has returned
        if chosen or stream is None:
            return
        try:
            stream.write(_Format(coloured=stream.isatty()).format(record) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


class _Run:
    """The log directory of this process, and the logger's handlers."""

    def __init__(self) -> None:
        self.logger = logging.getLogger("parl")
        self.directory: Path | None = None
        self._console: _Console | None = None
        self._file: logging.FileHandler | None = None
        self._lock = threading.Lock()

    def ready(self) -> logging.Logger:
        if self._console is None:
            with self._lock:
                self._add_console()
        return self.logger

    def open(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._add_console()
            file = logging.FileHandler(directory / LOG_FILE, encoding="utf-8")
            file.setFormatter(_Format(coloured=False))
            self._close_file()
            self.logger.addHandler(file)
            self._file, self.directory = file, directory

    def close(self) -> None:
        with self._lock:
            self._close_file()
            self.directory = None

    def _add_console(self) -> None:
        if self._console is None:
            if self.logger.level == logging.NOTSET:
                self.logger.setLevel(INFO)
            self._console = _Console()
            self.logger.addHandler(self._console)

    def _close_file(self) -> None:
        if self._file is not None:
            self.logger.removeHandler(self._file)
            self._file.close()
            self._file = None


_run = _Run()


def get_logger() -> logging.Logger:
    """Return the standard library's logger behind the functions of this module, ready for use."""
    return _run.ready()


def debug(msg: object, *args: object, **kwargs: Any) -> None:
    """Log at level DEBUG; arguments as those of `logging.Logger.debug`. Not shown unless the level is lowered."""
    _run.ready().debug(msg, *args, stacklevel=2, **kwargs)


def info(msg: object, *args: object, **kwargs: Any) -> None:
    """Log at level INFO; arguments as those of `logging.Logger.info`."""
    _run.ready().info(msg, *args, stacklevel=2, **kwargs)


def warning(msg: object, *args: object, **kwargs: Any) -> None:
    """Log at level WARNING; arguments as those of `logging.Logger.warning`."""
    _run.ready().warning(msg, *args, stacklevel=2, **kwargs)


def error(msg: object, *args: object, **kwargs: Any) -> None:
    """Log at level ERROR; arguments as those of `logging.Logger.error`."""
    _run.ready().error(msg, *args, stacklevel=2, **kwargs)


def exception(msg: object, *args: object, **kwargs: Any) -> None:
    """Log at level ERROR with the traceback of the exception that is being handled."""
    _run.ready().exception(msg, *args, stacklevel=2, **kwargs)


def critical(msg: object, *args: object, **kwargs: Any) -> None:
    """Log at level CRITICAL; arguments as those of `logging.Logger.critical`."""
    _run.ready().critical(msg, *args, stacklevel=2, **kwargs)


warn = warning


def set_level(level: int | str) -> None:
    """Show messages from this level on: `logger.DEBUG`, `"WARNING"`, ... The default is INFO."""
    _run.ready().setLevel(level)


setLevel = set_level  # noqa: N816 -- PARL's and the standard library's name


def add_stdout_handler() -> logging.Handler:
    """Also write all further messages to standard output, and return the handler that does, for `remove_handler`."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Format(coloured=False))
    _run.ready().addHandler(handler)
    return handler


def remove_handler(handler: logging.Handler) -> None:
    """Stop writing messages to a handler, such as the result of `add_stdout_handler`."""
    _run.ready().removeHandler(handler)


def set_dir(dirname: str | os.PathLike[str]) -> None:
    """Write all further messages to `log.log` in a directory, too, in place of the previous one.

    The directory is made where it does not exist; an existing `log.log` is continued. Nothing is ever deleted.

    Raises:
        OSError: The directory or the file cannot be created; the previous one stays in use.
    """
    _run.open(Path(dirname))


def auto_set_dir(action: str | None = None) -> str:
    """Choose a directory for this run below `train_log/<name of the script>`, and `set_dir` it.

    Args:
        action: None or `"n"` makes a new directory named after the time. `"k"` keeps using
            `train_log/<script>` itself, together with what is there. `"d"`, with which PARL deleted the old
            directory, does the same as `"n"`. `"q"` refuses to continue where `train_log/<script>` exists.

    Returns:
        The directory.

    Raises:
        FileExistsError: The action is `"q"` and the directory exists.
        ValueError: The action is unknown.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    base = Path("train_log") / (Path(main).stem if main else "interactive")
    if action == "k":
        directory = base
    elif action in (None, "n", "d"):
        directory = _new_directory(base / datetime.now().strftime("%Y%m%d-%H%M%S"))
    elif action == "q":
        if base.exists():
            raise FileExistsError(f'{base} exists: move it away, or call auto_set_dir("n") for a new directory in it')
        directory = base
    else:
        raise ValueError(f"action must be None, 'n', 'k', 'd' or 'q', got {action!r}")
    set_dir(directory)
    return str(directory)


def get_dir() -> str | None:
    """Return the directory that was set, or None."""
    return None if _run.directory is None else str(_run.directory)


def close() -> None:
    """Close `log.log` and reset the directory; from then on, messages only go to the console."""
    _run.close()


def _new_directory(wanted: Path) -> Path:
    """Make a new directory, also for two runs that start in the same second."""
    candidate, number = wanted, 1
    while True:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            number += 1
            candidate = wanted.with_name(f"{wanted.name}-{number}")
        else:
            return candidate
