"""System calls of one process that fail on demand: the n-th open, socket, accept, mmap or fork, with the error wanted.

    test --Switch.fail(pid, Call.OPEN, nth)--> a file that all processes map <-- a preloaded library (LD_PRELOAD)

The library is compiled from the text below and counts in the one process that is meant; others pass unchanged. What is
opened in /proc is counted by itself: workers look at their actors there every second, so that on a slow machine there
would be no end to the opens of one round. Of
mappings it counts those of files and shared memory, and by itself the memory of large frames: `threading.Thread.start`
of CPython waits for ever if the interpreter, which takes 1 MiB at a time, gets no memory for the first step of the new
thread.
"""

from __future__ import annotations

import enum
import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path

__all__ = ["Call", "Shortages", "Switch"]

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct control { int pid; int kind; int left; int error; int hits; };
static volatile struct control *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SHORTAGES");
    if (!path) return;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *page = (void *)syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page != MAP_FAILED) control = page;
}

static int fails(int kind)
{
    if (!control || control->kind != kind || control->pid != (int)syscall(SYS_getpid)) return 0;
    if (__sync_sub_and_fetch(&control->left, 1) != 0) return 0;
    __sync_add_and_fetch(&control->hits, 1);
    errno = control->error;
    return 1;
}

static int maps(size_t size, int fd) { return fd < 0 ? size > 1 << 20 && fails(7) : fails(4); }
static int opens(const char *path) { return fails(strncmp(path, "/proc/", 6) ? 1 : 6); }

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE REAL(open); return opens(path) ? -1 : real(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE REAL(open64); return opens(path) ? -1 : real(path, flags, mode); }
int openat(int at, const char *path, int flags, ...)
{ MODE REAL(openat); return opens(path) ? -1 : real(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...)
{ MODE REAL(openat64); return opens(path) ? -1 : real(at, path, flags, mode); }
int memfd_create(const char *name, unsigned flags) { REAL(memfd_create); return fails(1) ? -1 : real(name, flags); }
int pipe2(int ends[2], int flags) { REAL(pipe2); return fails(1) ? -1 : real(ends, flags); }
int epoll_create1(int flags) { REAL(epoll_create1); return fails(1) ? -1 : real(flags); }
int eventfd(unsigned count, int flags)
{
    static int (*real)(unsigned, int);
    if (!real) real = (int (*)(unsigned, int))dlsym(RTLD_NEXT, "eventfd");
    return fails(1) ? -1 : real(count, flags);
}
int socket(int domain, int type, int protocol) { REAL(socket); return fails(2) ? -1 : real(domain, type, protocol); }
int socketpair(int domain, int type, int protocol, int ends[2])
{ REAL(socketpair); return fails(2) ? -1 : real(domain, type, protocol, ends); }
int accept4(int fd, struct sockaddr *peer, socklen_t *size, int flags)
{ REAL(accept4); return fails(3) ? -1 : real(fd, peer, size, flags); }
int accept(int fd, struct sockaddr *peer, socklen_t *size)
{ REAL(accept); return fails(3) ? -1 : real(fd, peer, size); }
void *mmap(void *at, size_t size, int access, int flags, int fd, off_t from)
{ REAL(mmap); return maps(size, fd) ? MAP_FAILED : real(at, size, access, flags, fd, from); }
void *mmap64(void *at, size_t size, int access, int flags, int fd, off64_t from)
{ REAL(mmap64); return maps(size, fd) ? MAP_FAILED : real(at, size, access, flags, fd, from); }
pid_t fork(void) { REAL(fork); return fails(5) ? -1 : real(); }
"""

_CONTROL = struct.Struct("=5i")


class Call(enum.Enum):
    """A kind of system call, with the error that it fails with.

    `OPEN` is whatever makes a descriptor and no socket, but for files in /proc, which are `PROC`. `FRAME` maps memory
    of more than 1 MiB that belongs to no file, as a node does for a large frame.
    """

    OPEN = 1, errno.EMFILE
    SOCKET = 2, errno.ENFILE
    ACCEPT = 3, errno.EMFILE
    MMAP = 4, errno.ENOMEM
    FORK = 5, errno.ENOMEM
    DISK = 1, errno.ENOSPC
    PROC = 6, errno.EMFILE
    FRAME = 7, errno.ENOMEM


class Switch:
    """The switch of the library, which all processes share; one failure at a time.

    Args:
        path: The file that they map.
    """

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def fail(self, pid: int, call: Call, nth: int) -> None:
        """Make the `nth` call of that kind of a process fail, counted from now on."""
        self.stop()
        kind, error = call.value
        self._page[: _CONTROL.size] = _CONTROL.pack(pid, kind, nth, error, 0)

    def stop(self) -> bool:
        """Let all calls pass again; return whether one has failed."""
        hits = _CONTROL.unpack_from(self._page)[4]
        self._page[: _CONTROL.size] = bytes(_CONTROL.size)
        return bool(hits)


class Shortages:
    """The library, compiled, and the file of its switch.

    Args:
        directory: Where both are made.

    Attributes:
        environment: The variables of processes that are to have it.

    Raises:
        FileNotFoundError: There is no C compiler.
    """

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise FileNotFoundError("there is no C compiler (cc, gcc)")
        library, page, source = (directory / f"shortages.{kind}" for kind in ("so", "page", "c"))
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        page.write_bytes(bytes(mmap.PAGESIZE))
        self.environment = {"LD_PRELOAD": str(library), "SHORTAGES": str(page)}
