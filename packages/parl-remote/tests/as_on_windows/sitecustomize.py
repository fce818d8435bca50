"""Takes from Python what Windows' Python lacks; runs at the start of every process that has this directory on its path.

What the standard library and other packages need of it on this system, they have taken before; further packages that
go by `os.name` are named in `AS_ON_WINDOWS_AFTER`, since every process would pay for them.
"""

import asyncio  # noqa: F401
import faulthandler
import importlib
import importlib.abc
import multiprocessing  # noqa: F401
import os
import select
import selectors
import shutil  # noqa: F401
import signal
import socket
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401

import click  # noqa: F401
import cloudpickle  # noqa: F401
import numpy as np  # noqa: F401
import psutil  # noqa: F401
import zmq
import zmq.utils.monitor  # noqa: F401

for _name in os.environ.get("AS_ON_WINDOWS_AFTER", "").split():
    importlib.import_module(_name)

_GONE = {
    os: (
        *("fork", "forkpty", "register_at_fork", "memfd_create", "pidfd_open", "pipe2", "eventfd", "eventfd_read"),
        *("eventfd_write", "getuid", "geteuid", "getgid", "getegid", "sched_getaffinity", "wait4", "setpgid"),
        *("posix_spawn", "posix_fallocate", "killpg", "getpgid", "setsid", "sysconf", "waitid", "WNOWAIT", "WEXITED"),
        *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "pread", "pwrite", "uname", "getloadavg"),
        *("MFD_CLOEXEC", "EFD_NONBLOCK", "EFD_CLOEXEC", "chown", "fchmod", "fchown"),
    ),
    select: ("epoll", "poll", "EPOLLIN", "EPOLLOUT", "POLLIN", "POLLOUT"),
    selectors: ("EpollSelector", "PollSelector"),
    signal: (
        *("pidfd_send_signal", "pthread_sigmask", "pthread_kill", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGSTOP"),
        *("SIGCONT", "SIGRTMAX", "SIGRTMIN", "SIGALRM", "setitimer", "alarm", "sigwait", "SIGPIPE", "SIG_SETMASK"),
    ),
    socket: (
        "AF_UNIX",
        "SO_PEERCRED",
        "SOCK_SEQPACKET",
        "SOCK_NONBLOCK",
        "SOCK_CLOEXEC",
        "MSG_DONTWAIT",
        "MSG_NOSIGNAL",
    ),
    faulthandler: ("register", "unregister"),
}
_MODULES = frozenset({"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "curses", "_posixshmem"})


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """As Windows makes one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        return one, listening.accept()[0]


class _Missing(importlib.abc.MetaPathFinder):
    """Modules that are not there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _Absent:
    """An attribute that is not there."""

    def __get__(self, instance: object, owner: type) -> object:
        raise AttributeError("Windows' sockets have none")


for _place, _names in _GONE.items():
    for _name in _names:
        if hasattr(_place, _name):
            delattr(_place, _name)
for _name in ("sendmsg", "recvmsg", "recvmsg_into"):
    setattr(socket.socket, _name, _Absent())
socket.socketpair = _socketpair  # type: ignore[assignment]
selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[assignment,misc]
for _name in _MODULES:
    sys.modules.pop(_name, None)
sys.meta_path.insert(0, _Missing())
