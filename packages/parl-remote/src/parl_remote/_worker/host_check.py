"""The state of a node's host: answers to `xparl doctor`, whether it reaches another node, and its GPUs.

CheckHost, ReachNode --> a thread for each, because disks and networks may take their time --> HostReport, NodeReached
a thread of its own --every two seconds--> Nvml.look --> GpuMeter.latest() --> Heartbeat

The driver may take a second to answer. The numbers come from its own library (NVML), which is there wherever the driver
is, so nothing has to be installed. Its documentation: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from parl_remote._links.handshake import Link
from parl_remote._links.identity import host_id, host_name
from parl_remote._links.loop import Loop
from parl_remote._messages import Failed, Message
from parl_remote._messages.links import GpuUse
from parl_remote._messages.parts import CheckHost, HostReport, NodeReached, ReachNode
from parl_remote._system.facilities import missing
from parl_remote._system.host import shared_memory_free, write_error
from parl_remote._transport.addresses import Address
from parl_remote.errors import RemoteError, RemoteProtocolError

if TYPE_CHECKING:
    from parl_remote._messages.links import GpuUse

__all__ = ["GpuMeter", "HostCheck", "Nvml", "missing_modules", "versions_that_matter"]


with contextlib.suppress(ImportError):  # not on Windows
    import resource


_log = logging.getLogger("parl.remote")

_MOST_AT_ONCE = 8
_MOST_MODULES = 500
_MOST_PATHS = 100
_REACH_S = 2.0  # a host that is there answers in milliseconds, over a bad line in a second
_MATTER = ("parl-remote", "numpy", "cloudpickle")  # packages whose versions must agree at both ends of a pickle


class HostCheck:
    """Answers `CheckHost`, and in a master `ReachNode`; see `handshake.Part`.

    Args:
        loop: The node's loop.
        directory: The directory of the node's logs and files.
        addresses: Returns the addresses that a node has told the master, none if the node is unknown; None in a worker.
    """

    def __init__(self, loop: Loop, directory: Path, addresses: Callable[[str], Sequence[str]] | None = None) -> None:
        self._loop = loop
        self._directory = directory
        self._addresses = addresses
        self._busy = 0

    def received(self, link: Link, message: Message, _frames: Sequence[memoryview]) -> None:
        """Start a check in a thread; the answer follows."""
        match message:
            case CheckHost():
                if len(message.modules) > _MOST_MODULES or len(message.paths) > _MOST_PATHS:
                    raise RemoteError(f"at most {_MOST_MODULES} modules and {_MOST_PATHS} paths can be asked for")
                self._answer_in_thread(link, message.request_id, lambda: report_of(message, self._directory))
            case ReachNode() if self._addresses is not None:
                addresses = self._addresses(message.node_id)
                if not addresses:
                    raise RemoteError(f"the master knows no node {message.node_id}")
                self._answer_in_thread(link, message.request_id, lambda: _reach(message.request_id, addresses))
            case _:
                raise RemoteProtocolError(f"this node does not take {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """Do nothing: answers to a peer that is gone are dropped."""

    def close(self) -> None:
        """Do nothing: the threads end by themselves, and do not keep the process alive."""

    def _answer_in_thread(self, link: Link, request_id: int, find: Callable[[], Message]) -> None:
        if self._busy >= _MOST_AT_ONCE:
            raise RemoteError(f"this node answers {_MOST_AT_ONCE} questions about its health already; try again")
        self._busy += 1

        def work() -> None:
            try:
                answer = find()
            except Exception as error:  # any error is the requested answer
                answer = Failed(request_id, f"{type(error).__name__}: {error}")
            self._loop.call_soon(lambda: self._answer(link, answer))

        try:
            threading.Thread(target=work, name="parl-check", daemon=True).start()
        except RuntimeError as error:  # the host has no more threads
            self._busy -= 1
            raise RemoteError(f"this node cannot determine it: {error}") from error

    def _answer(self, link: Link, answer: Message) -> None:
        self._busy -= 1
        link.tell(answer)


def report_of(asked: CheckHost, directory: Path) -> HostReport:
    """Return the report of this host."""
    missing = missing_modules(asked.modules, asked.paths)
    free = -1
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(directory).free
    return HostReport(
        asked.request_id,
        host_name(),
        host_id(),
        time.time(),
        sys.executable,
        versions_that_matter(),
        str(directory),
        free,
        write_error(directory),
        shared_memory_free(),
        _most_descriptors(),
        missing,
    )


def versions_that_matter() -> dict[str, str]:
    """Return the versions of Python and of the packages that pickles depend on."""
    found = {"python": platform.python_version()}
    for name in _MATTER:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def missing_modules(names: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that cannot be imported here; only the first part of a dotted name is checked."""
    importlib.invalidate_caches()
    elsewhere = [path for path in paths if os.path.isabs(path)]
    missing = []
    for name in names:
        top = name.partition(".")[0]
        try:
            found = importlib.util.find_spec(top) or importlib.machinery.PathFinder.find_spec(top, elsewhere)
        except (ImportError, ValueError, AttributeError):
            found = None
        if found is None:
            missing.append(name)
    return tuple(missing)


def _most_descriptors() -> int:
    """Return the limit of open files per process, -1 if there is none."""
    if "resource" in missing():  # on Windows
        return -1
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _reach(request_id: int, addresses: Sequence[str]) -> NodeReached:
    began = time.monotonic()
    problem = "it has no address"
    for text in addresses:
        if text.startswith(":"):  # it is where the master is
            return NodeReached(request_id, True)
        try:
            address = Address.parse(text)
            socket.create_connection((address.host, address.port), _REACH_S).close()
            return NodeReached(request_id, True, "", time.monotonic() - began)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
    return NodeReached(request_id, False, problem, time.monotonic() - began)


_GPU_INTERVAL_S = 2.0


class Gpus(Protocol):
    """A source of GPU use; see `Nvml`."""

    def look(self) -> tuple[GpuUse, ...]:
        """Return the current state of the GPUs."""

    def close(self) -> None:
        """Close the connection to the driver."""


class GpuMeter:
    """The last sampled utilization of the GPUs.

    Args:
        names: As CUDA_VISIBLE_DEVICES names them; no thread is started if there are none.
        connect: Opens the connection to the driver.
    """

    def __init__(self, names: tuple[str, ...], connect: Callable[[tuple[str, ...]], Gpus] | None = None) -> None:
        self._names = names
        self._connect = connect or Nvml
        self._latest: tuple[GpuUse, ...] = ()
        self._over = threading.Event()
        if names:
            threading.Thread(target=self._run, name="parl-gpu-meter", daemon=True).start()

    def latest(self) -> tuple[GpuUse, ...]:
        """Return the last sample; empty before the first one, and without a driver."""
        return self._latest

    def close(self) -> None:
        """Stop sampling soon."""
        self._over.set()

    def _run(self) -> None:
        try:
            gpus = self._connect(self._names)
        except OSError as error:
            _log.info("the utilization of the GPUs is not reported: %s", error)
            return
        try:
            while not self._over.is_set():
                self._latest = gpus.look()
                self._over.wait(_GPU_INTERVAL_S)
        finally:
            self._latest = ()
            gpus.close()


_LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """An open connection to the driver.

    Args:
        names: The GPUs to query, as CUDA_VISIBLE_DEVICES names them: numbers or prefixes of UUIDs.
        library: The library; the system's if None.

    Raises:
        OSError: There is no such library, or the driver does not answer.
    """

    def __init__(self, names: tuple[str, ...], library: Any = None) -> None:
        self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        self._call("nvmlInit_v2")
        self._devices = [(name, self._find(name)) for name in names]

    def look(self) -> tuple[GpuUse, ...]:
        """Return the current state of the GPUs; values that a GPU does not report are None."""
        return tuple(self._look_at(name, device) for name, device in self._devices if device is not None)

    def close(self) -> None:
        """Close the connection to the driver."""
        self._library.nvmlShutdown()

    def _look_at(self, name: str, device: ctypes.c_void_p) -> GpuUse:
        use, memory = _Utilization(), _Memory()
        knows_use = self._succeeds("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use))
        knows_memory = self._succeeds("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return GpuUse(
            name=name,
            model=self._text("nvmlDeviceGetName", device),
            busy=min(1.0, use.gpu / 100) if knows_use else None,
            memory_used=memory.used if knows_memory else None,
            memory_total=memory.total if knows_memory else None,
        )

    def _find(self, name: str) -> ctypes.c_void_p | None:
        device = ctypes.c_void_p()
        if name.isascii() and name.isdigit():
            index = ctypes.c_uint(int(name))
            return device if self._succeeds("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)) else None
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for number in range(count.value):
            index = ctypes.c_uint(number)
            if self._succeeds("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)) and self._text(
                "nvmlDeviceGetUUID", device
            ).startswith(name):
                return device
        return None

    def _text(self, function: str, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_TEXT)
        known = self._succeeds(function, device, text, ctypes.c_uint(_TEXT))
        return text.value.decode(errors="replace") if known else ""

    def _succeeds(self, function: str, *arguments: Any) -> bool:
        return int(getattr(self._library, function)(*arguments)) == 0

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code:
            raise OSError(f"{function} of {_LIBRARY} failed with {code}")
