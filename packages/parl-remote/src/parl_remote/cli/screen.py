"""A whole terminal for one picture: another page to draw on, keys without Return, everything as before at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import sys
from collections.abc import Sequence
from types import TracebackType

with contextlib.suppress(ImportError):  # not on Windows
    import termios
    import tty

__all__ = ["Screen"]

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other page, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_END_OF_LINE = "\x1b[K"
_REST_OF_PAGE = "\x1b[J"


class Screen:
    """The terminal of this process, from `with` on."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        if importlib.util.find_spec("termios") is None:
            raise OSError("this system has no terminals of the kind that `xparl top` draws on; use `xparl status`")
        self._settings = termios.tcgetattr(self._input)

    @property
    def width(self) -> int:
        """Columns, now."""
        return shutil.get_terminal_size().columns

    @property
    def height(self) -> int:
        """Lines, now."""
        return shutil.get_terminal_size().lines

    def __enter__(self) -> Screen:
        tty.setcbreak(self._input)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._settings)
        self._write(_LEAVE)
        return kind is KeyboardInterrupt  # the usual way to leave

    def show(self, lines: Sequence[str]) -> None:
        """Draw a picture over the one before; lines that do not fit are left out."""
        fitting = lines[: self.height - 1]
        self._write(_HOME + "".join(f"{line}{_END_OF_LINE}\r\n" for line in fitting) + _REST_OF_PAGE)

    def key(self, timeout_s: float) -> str | None:
        """The next key; None if none is pressed in time."""
        if not select.select([self._input], [], [], timeout_s)[0]:
            return None
        pressed = os.read(self._input, 16).decode(errors="replace")
        return pressed[:1] or "q"  # the terminal is gone

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
