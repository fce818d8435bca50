"""The load of GPUs, with a stand-in for the driver's library."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from parl_remote._messages.links import GpuUse
from parl_remote._worker.host_check import GpuMeter, Nvml

GIB = 2**30
NOT_SUPPORTED = 3


class Driver:
    """Two GPUs, behind the functions of NVML."""

    uuids = (b"GPU-aaaa-1", b"GPU-bbbb-2")

    def __init__(self) -> None:
        self.inits = self.shutdowns = 0
        self.says_use = True

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the library's own name
        self.inits += 1
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.shutdowns += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: Any) -> int:  # noqa: N802
        if index.value > 1:
            return 2
        device._obj.value = 1000 + index.value
        return 0

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:  # noqa: N802
        text.value = self.uuids[(device.value or 0) - 1000]
        return 0

    def nvmlDeviceGetName(self, device: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:  # noqa: N802
        text.value = b"NVIDIA Test"
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, use: Any) -> int:  # noqa: N802
        use._obj.gpu = 25 * ((device.value or 0) - 999)
        return 0 if self.says_use else NOT_SUPPORTED

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:  # noqa: N802
        memory._obj.total, memory._obj.used = 80 * GIB, 20 * GIB
        return 0


def test_gpus_are_found_by_number_and_by_uuid() -> None:
    first, second = Nvml(("0", "GPU-bbbb"), Driver()).look()
    assert first == GpuUse("0", "NVIDIA Test", 0.25, 20 * GIB, 80 * GIB)
    assert (second.name, second.busy) == ("GPU-bbbb", 0.5)


def test_gpus_that_are_not_there_are_left_out() -> None:
    assert Nvml(("7", "GPU-none"), Driver()).look() == ()


def test_what_a_gpu_does_not_say_is_unknown() -> None:
    driver = Driver()
    driver.says_use = False
    (gpu,) = Nvml(("0",), driver).look()
    assert (gpu.busy, gpu.memory_used) == (None, 20 * GIB)


def test_a_driver_that_does_not_answer_is_an_error() -> None:
    class Dead(Driver):
        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 9

    with pytest.raises(OSError, match=r"nvmlInit_v2 of libnvidia-ml\.so\.1 failed with 9"):
        Nvml(("0",), Dead())


def test_a_meter_looks_by_itself_and_lets_go_in_the_end() -> None:
    driver, looked, closed = Driver(), threading.Event(), threading.Event()

    class Watched(Nvml):
        def look(self) -> tuple[GpuUse, ...]:
            seen = super().look()
            if looked.is_set():
                return seen
            looked.set()
            return seen

        def close(self) -> None:
            super().close()
            closed.set()

    meter = GpuMeter(("0",), lambda names: Watched(names, driver))
    assert looked.wait(60)
    meter.close()
    assert closed.wait(60)
    assert (driver.inits, driver.shutdowns) == (1, 1)


def test_without_a_driver_there_is_nothing_to_say() -> None:
    tried = threading.Event()

    def connect(names: tuple[str, ...]) -> Nvml:
        tried.set()
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    meter = GpuMeter(("0",), connect)
    assert tried.wait(60)
    assert meter.latest() == ()


def test_a_node_without_gpus_has_no_thread_for_them() -> None:
    before = set(threading.enumerate())
    assert GpuMeter(()).latest() == ()
    assert set(threading.enumerate()) <= before
