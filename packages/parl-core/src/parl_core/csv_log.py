"""A table of a run in a CSV file, one row a call."""

import csv
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["CSVLogger"]


class CSVLogger:
    """Writes dictionaries with the same keys as rows of a CSV file; can be shared by threads.

        with CSVLogger("progress.csv") as table:
            table.log_dict({"step": 100, "return": 20.5})

    The keys of the first row are the header. A file that exists is continued when it has the same columns, so that a
    resumed run keeps its table; anything else in it is an error, and is left as it is.

    Args:
        output_file: path of the file; missing directories are made.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, output_file: str | os.PathLike[str]) -> None:
        self.path = Path(output_file)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+", newline="", encoding="utf-8")
        self._file.seek(0)
        self._columns: list[str] | None = next(csv.reader(self._file), None)
        self._file.seek(0, os.SEEK_END)
        self._writer = csv.writer(self._file)
        self._lock = threading.Lock()

    def log_dict(self, result_dict: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            result_dict: values by column, in any order.

        Raises:
            ValueError: the keys differ from the columns of the file, or the file is closed.
        """
        with self._lock:
            if self._columns is None:
                self._columns = [str(key) for key in result_dict]
                self._writer.writerow(self._columns)
            if set(result_dict) != set(self._columns):
                raise ValueError(
                    f"{self.path} has the columns {self._columns}, got a row with {list(result_dict)}: "
                    "pass the same keys in every row, or use another file"
                )
            self._writer.writerow([result_dict[column] for column in self._columns])

    def flush(self) -> None:
        """Write all rows to disk."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Write all rows to disk and close the file; a second call does nothing."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
