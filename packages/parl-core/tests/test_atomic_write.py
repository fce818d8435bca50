"""A file is there whole or not at all, whatever happens while it is written."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parl_core.atomic_write import atomic_write, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_content_is_invisible_before_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "figures.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["figures.bin"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "figures.bin"
    path.write_bytes(b"old")

    def fail_halfway() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["figures.bin"]


def test_a_killed_program_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "figures.bin"
    path.write_bytes(b"old")
    program = (
        "import os, sys\nfrom parl_core.atomic_write import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n    file.write(b'half')\n    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_text_is_written_with_the_options_of_open(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with atomic_write(path, "w", encoding="latin-1", newline="\r\n") as file:
        file.write("ä\n")
    assert path.read_bytes() == b"\xe4\r\n"


def test_a_file_keeps_the_permissions_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("old")
    path.chmod(0o640)
    write_json(path, {"new": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_private_file_is_private_from_its_first_byte_on(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with atomic_write(path, "w", permissions=0o600) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        file.write("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_replace_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "listener"
    with atomic_write(path, "w", replace=False) as file:
        file.write("first")
    with pytest.raises(FileExistsError), atomic_write(path, "w", replace=False) as file:
        file.write("second")
    assert path.read_text() == "first"
    assert names(tmp_path) == ["listener"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path, forced = tmp_path / "figures.bin", []
    real = os.fsync

    def fsync(descriptor: int) -> Any:
        forced.append((os.fstat(descriptor).st_size, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(path, durable=durable) as file:
        file.write(b"whole")
    assert forced == ([(5, False)] if durable else [])
