"""Network namespaces: hosts that exist only as far as the network is concerned, on one machine. Linux, root.

A thread enters a namespace for itself alone; the sockets that it makes there stay there, whoever uses them later.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import TypeVar

from parl_remote.testing import FaultUnavailable, Line

__all__ = ["LineBetween", "create", "delete", "inside", "ip"]

_CLONE_NEWNET = 0x40000000
_COMMAND_S = 30.0
_DIAL_S = 5.0

_Made = TypeVar("_Made")


def create(name: str) -> None:
    """Make a namespace with its loopback interface up.

    Raises:
        FaultUnavailable: This user, kernel or container does not allow it.
    """
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")


def delete(name: str) -> None:
    """Remove a namespace; processes that still run in it keep it alive, unnamed."""
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=_COMMAND_S)


def ip(*arguments: str) -> None:
    """Run the command `ip`.

    Raises:
        FaultUnavailable: It is not installed, or refuses.
    """
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    except OSError as error:
        raise FaultUnavailable(f"network namespaces need the command ip (package iproute2): {error}") from error
    if done.returncode:
        raise FaultUnavailable(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}; namespaces need root")


def inside(name: str, make: Callable[[], _Made]) -> _Made:
    """Call `make` in a namespace and return what it returns.

    Raises:
        FaultUnavailable: There is no such namespace, or this user may not enter it.
        Exception: Whatever `make` raised.
    """
    outcome: list[_Made] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            _enter(name)
            outcome.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter, name=f"inside-{name}")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return outcome[0]


class LineBetween(Line):
    """A relay whose ends lie in two namespaces.

    Args:
        to: The target, (host, port), in the namespace `to_in`.
        listen: Where to listen, (host, port), in the namespace `listen_in`.
        to_in: The target's namespace.
        listen_in: The relay's.

    Raises:
        OSError: It cannot listen there.
        FaultUnavailable: A namespace cannot be entered.
    """

    def __init__(self, to: tuple[str, int], listen: tuple[str, int], *, to_in: str, listen_in: str) -> None:
        self._to_in, self._listen_in = to_in, listen_in
        super().__init__(to, listen=listen)

    def _listen(self, address: tuple[str, int]) -> socket.socket:
        return inside(self._listen_in, lambda: socket.create_server(address))

    def _dial(self) -> socket.socket:
        return inside(self._to_in, lambda: socket.create_connection(self._to, _DIAL_S))


def _enter(name: str) -> None:
    try:
        descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FaultUnavailable(f"there is no network namespace {name}: {error.strerror}") from error
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise FaultUnavailable(f"cannot enter network namespace {name}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
