"""A table of a run in a CSV file, one row per call."""

import csv
import io
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parl_core._closing import ClosingContext

__all__ = ["CSVLogger"]


class CSVLogger(ClosingContext):
    """Writes dictionaries with the same keys as rows of a CSV file; can be shared by threads.

        with CSVLogger("progress.csv") as table:
            table.log_dict({"step": 100, "return": 20.5})

    The keys of the first row are the header. An existing file is continued if it has the same columns, so that a
    resumed run keeps its table; a file with other content is an error and stays unchanged. An incomplete last row, left
    by a killed program, is replaced by the first new row.

    Args:
        output_file: Path of the file; missing directories are created.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, output_file: str | os.PathLike[str]) -> None:
        self.path = Path(output_file)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+", newline="", encoding="utf-8")
        content = self.path.read_bytes()
        self._whole = _end_of_rows(content)
        self._torn = content[self._whole :].decode(errors="replace")
        rows = io.StringIO(content[: self._whole].decode(), newline="")
        self._columns: list[str] | None = next(csv.reader(rows), None)
        self._writer = csv.writer(self._file)
        self._lock = threading.Lock()

    def log_dict(self, result_dict: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            result_dict: Values by column, in any order; a tensor of one number is written as the number.

        Raises:
            ValueError: The keys differ from the columns of the file, or the file is closed.
        """
        with self._lock:
            header = self._columns is None
            if self._columns is None:
                self._columns = self._header(result_dict)
            if set(result_dict) != set(self._columns):
                raise ValueError(
                    f"{self.path} has the columns {self._columns}, got a row with {list(result_dict)}: "
                    "pass the same keys in every row, or use another file"
                )
            if self._torn:
                self._file.truncate(self._whole)
                self._torn = ""
            if header:
                self._writer.writerow(self._columns)
            self._writer.writerow([_plain(result_dict[column]) for column in self._columns])

    def _header(self, result_dict: Mapping[str, Any]) -> list[str]:
        columns = [str(key) for key in result_dict]
        if not ",".join(columns).startswith(self._torn):
            raise ValueError(f"{self.path} holds {self._torn[:80]!r} and is not a table: use another file")
        return columns

    def flush(self) -> None:
        """Write all rows to disk."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Write all rows to disk and close the file; a second call does nothing."""
        with self._lock:
            self._file.close()


def _plain(value: Any) -> Any:
    """Return a framework's tensor of one number as that number, and other values unchanged."""
    return value.item() if hasattr(value, "detach") and len(value.shape) == 0 else value


def _end_of_rows(content: bytes) -> int:
    """Return the end of the last complete row of a table; line ends within quotes do not end rows."""
    end = content.rfind(b"\n") + 1
    while content.count(b'"', 0, end) % 2:
        end = content.rfind(b"\n", 0, end - 1) + 1
    return end
