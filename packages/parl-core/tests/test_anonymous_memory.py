"""Anonymous memory: found by another process's descriptor, and only while it is the same file."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from parl_core import _shared_memory
from parl_core._shared_memory import MemoryGone, has_shared_memory

pytestmark = pytest.mark.skipif(not has_shared_memory(), reason="this system has no anonymous files")

NAME, SIZE = "parl-test", 2**16


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = _shared_memory.create(NAME, SIZE)
    yield made
    os.close(made)


def test_another_process_finds_what_was_written(descriptor: int) -> None:
    _shared_memory.fill(descriptor, b"some bytes", 100)
    reader = (
        "import os, sys; from parl_core._shared_memory import MemoryAddress, open_at\n"
        f"found = open_at(MemoryAddress(*map(int, sys.argv[1:])), {NAME!r})\n"
        "print(os.pread(found, 10, 100).decode())"
    )
    address = map(str, _shared_memory.address_of(descriptor))
    done = subprocess.run([sys.executable, "-c", reader, *address], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "some bytes"


@pytest.mark.parametrize("part", [b"", b"x", bytearray(range(256)), memoryview(bytes(4096))])
def test_mapped_memory_holds_what_was_copied_into_it(descriptor: int, part: bytes | bytearray | memoryview) -> None:
    with mmap.mmap(descriptor, SIZE) as memory:
        _shared_memory.copy_into(memory, part, 8)
        assert memory[8 : 8 + len(part)] == bytes(part)
    assert os.pread(descriptor, len(part), 8) == bytes(part)


def test_what_cannot_be_written_is_refused_when_it_is_opened_for_reading(descriptor: int) -> None:
    found = _shared_memory.open_at(_shared_memory.address_of(descriptor), NAME)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(found, b"x", 0)
    os.close(found)


@pytest.mark.parametrize("change", [{"inode": 1}, {"size": SIZE - 1}, {"pid": 2**22 + 1}, {"descriptor": 10**6}])
def test_an_address_of_something_else_is_refused(descriptor: int, change: dict[str, int]) -> None:
    address = _shared_memory.address_of(descriptor)._replace(**change)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MemoryGone, match=f"process {address.pid}"):
        _shared_memory.open_at(address, NAME)
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_of_another_name_is_refused(descriptor: int) -> None:
    with pytest.raises(MemoryGone):
        _shared_memory.open_at(_shared_memory.address_of(descriptor), "parl-tes")


@pytest.mark.parametrize("needed", [1, 4096, 4097, 10**5, 10**6, 2**20, 2**20 + 1, 10**9])
def test_sizes_are_rounded_up_by_a_page_or_a_quarter_at_most(needed: int) -> None:
    whole = _shared_memory.whole_size(needed)
    assert needed <= whole < needed + max(4096, needed / 4 + 1)
    assert _shared_memory.whole_size(whole) == whole
