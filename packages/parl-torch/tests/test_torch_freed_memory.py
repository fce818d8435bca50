"""An update does not take from the kernel what the one before gave back to it."""

import ctypes
import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from parl_torch import _tensors

VECTORS = """
agent = Agent(algorithms.TD3(networks.TwinActorCritic(6), device="cpu"))
obs, action, column = np.zeros((256, 17), np.float32), np.zeros((256, 6), np.float32), np.zeros(256, np.float32)
batch, updates = (obs, action, column, obs, column), 100
"""
FRAMES = """
agent = Agent(algorithms.A2C(networks.AtariActorCritic(6), device="cpu"))
column = np.zeros(320, np.float32)
batch, updates = (np.zeros((320, 4, 84, 84), np.uint8), np.zeros(320, np.int64), column, column), 4
"""
PROGRAM = """
import resource
import numpy as np
from parl_torch import algorithms, networks
from parl_torch.agent import Agent
{}
for update in range(2 * updates):
    if update == updates:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    agent.learn(*batch)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / updates)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc hands memory back that soon")
@pytest.mark.parametrize(("batch", "most"), [(VECTORS, 25), (FRAMES, 5000)])
def test_updates_cause_few_page_faults(batch: str, most: int) -> None:
    # With vectors 50 to 1,700 an update, with frames 50,000, where glibc is left alone. A heap that still grows by a
    # block once in a while causes 1 with vectors, and up to 1,000 with frames.
    command = [sys.executable, "-c", PROGRAM.format(batch)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert float(found.stdout) < most


LARGE_ARRAYS = """
import resource
import numpy as np
from parl_torch import _tensors
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
_tensors.keep_freed_memory()
before, kept = resident(), []
for _ in range(2):
    large = np.ones(160 * 2**20, np.uint8)
    kept.append(np.ones(2**20, np.uint8))
    del large
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries decide by themselves")
def test_large_arrays_below_others_go_back_to_the_kernel() -> None:
    command = [sys.executable, "-c", LARGE_ARRAYS]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert float(found.stdout) < 80


class _Library:
    """Glibc whose blocks of the heap have a largest size, or none."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.set: dict[int, int] = {}

    def mallopt(self, parameter: int, value: int) -> int:
        if parameter == _tensors._MMAP_THRESHOLD and value > self.largest:
            return 0
        self.set[parameter] = value
        return 1


@pytest.mark.skipif(os.name != "posix", reason="glibc is of Linux")
@pytest.mark.parametrize("largest", [2**25, 2**31])
def test_older_libraries_keep_smaller_blocks(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library(largest)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    _tensors.keep_freed_memory.__wrapped__()
    assert library.set == {_tensors._TRIM_THRESHOLD: 2**30, _tensors._MMAP_THRESHOLD: min(largest, 2**27)}


@pytest.mark.skipif(os.name != "posix", reason="glibc is of Linux")
def test_other_tunables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library(2**31)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1")
    _tensors.keep_freed_memory.__wrapped__()
    assert library.set == {_tensors._TRIM_THRESHOLD: 2**30, _tensors._MMAP_THRESHOLD: 2**27}


@pytest.mark.parametrize(
    "setting",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}],
    ids=["variable", "tunable"],
)
def test_the_user_s_choice_is_kept(setting: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(_: Any) -> Any:
        raise AssertionError("the C library was asked")

    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ctypes, "CDLL", loaded)
    _tensors.keep_freed_memory.__wrapped__()
