"""`connect` and `disconnect` open and close a program's connection; `get_actor` and `kill` find actors by name.

If connecting fails, `doctor.reach` looks for the cause, and the error's message contains the remedy. What a program
needs once it connects or serves an object is imported in the functions here, and the client while the node of a private
cluster starts; see docs/decisions/0032.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parl_remote import _current
from parl_remote._config import Environment, Limits, environment
from parl_remote._future import program_ends
from parl_remote._links.call_messages import ClusterReach
from parl_remote._options import check_count, check_flag, check_number, seconds_of
from parl_remote._program.proxy import RemoteMethod, make_proxy, reference_of, unpacked
from parl_remote._system.facilities import cpu_count
from parl_remote._system.interrupts import uninterrupted
from parl_remote._transport.addresses import Address
from parl_remote._version import __version__
from parl_remote.errors import RemoteError

if TYPE_CHECKING:
    from parl_remote._links.handshake import Cluster
    from parl_remote._program.client import Client
    from parl_remote._serving import Serving

__all__ = [
    "connect",
    "connected",
    "disconnect",
    "get_actor",
    "get_global_client",
    "kill",
    "register_fork_handler",
    "serve",
]


@functools.cache
def write_debug_log() -> None:
    """Write debug logs from now on; a second call does nothing."""
    log = logging.getLogger("parl.remote")
    try:
        handler = logging.FileHandler("parl_debug.log")
    except OSError as error:
        log.warning("cannot write parl_debug.log, which DEBUG asks for: %s", error)
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.debug("parl-remote %s, connects", __version__)


PRIVATE = "local"  # the address of a private cluster


def open_private(
    slots: int,
    preload: tuple[str, ...],
    lease_timeout_s: float | None,
    log_dir: str | os.PathLike[str] | None,
    files: Sequence[str],
) -> tuple[Client, Path]:
    """Start a private cluster and connect to it; the arguments are those of `connect`.

    Returns:
        The connection, and the directory by which processes of this host join the cluster.

    Raises:
        ClusterUnreachable: The private cluster did not start.
    """
    from parl_remote._program.private_cluster import PrivateCluster

    found = environment()
    logs = None if log_dir is None else Path(log_dir)
    with _explaining(PRIVATE, found):
        cluster = PrivateCluster(found, slots=slots, preload=preload, log_dir=logs)
        try:
            client = _new_client(PRIVATE, cluster, found.limits, files, lease_timeout_s)
            cluster.connected()
        except BaseException:
            cluster.kill()
            raise
    return client, cluster.directory


def join_private(directory: Path, lease_timeout_s: float | None, files: Sequence[str]) -> Client:
    """Connect a child to the private cluster of its parent, with which the cluster ends.

    Raises:
        ClusterUnreachable: The parent has ended.
    """
    from parl_remote._program.private_cluster import ParentCluster

    return _new_client(PRIVATE, ParentCluster(directory), environment().limits, files, lease_timeout_s)


def open_cluster(
    address: str, key_file: str | os.PathLike[str] | None, lease_timeout_s: float | None, files: Sequence[str]
) -> Client:
    """Connect to the cluster at an address; the arguments are those of `connect`.

    Raises:
        RemoteError: The cluster cannot be reached, has another key or uses another protocol version.
    """
    from parl_remote._program.rendezvous import ClusterAddress, RealCluster

    found = environment()
    with _explaining(address, found):
        cluster = RealCluster(ClusterAddress(address, found, key_file))
        shortcut = found.same_host_shortcut
        return _new_client(address, cluster, found.limits, files, lease_timeout_s, same_host_shortcut=shortcut)


def open_in_actor(reach: Sequence[object], lease_id: str, class_name: str) -> Client:
    """Connect an actor to its cluster, when it first makes or receives another actor.

    Its worker has sent the settings when it started. Actors made through this connection end with the actor.

    Args:
        reach: A `ClusterReach`, decoded from JSON.
        lease_id: The actor's own lease; empty in a process that the actor has started, whose actors end with it.
        class_name: Its class, for display.
    """
    from parl_remote._program.rendezvous import ActorCluster

    found = environment()
    cluster = ClusterReach(*reach)  # type: ignore[arg-type]  # the worker of the same version wrote it
    register_fork_handler()
    if lease_id:
        join = functools.partial(open_in_actor, reach, "", class_name)
        _current.set_child_connector(functools.partial(_connect_child, join))
    return _new_client(
        cluster.address,
        ActorCluster(cluster, found),
        found.limits,
        (),
        _LEASE_TIMEOUT_S,
        same_host_shortcut=found.same_host_shortcut,
        inside_actor=lease_id,
        name=f"actor {class_name}",
    )


def _new_client(
    address: str,
    cluster: Cluster,
    limits: Limits,
    files: Sequence[str],
    lease_timeout_s: float | None,
    *,
    same_host_shortcut: bool = True,
    **inside: str,
) -> Client:
    from parl_remote._files.upload import ActorDirectories
    from parl_remote._program.client import Client

    return Client(
        address,
        cluster,
        limits=limits,
        lease_timeout_s=lease_timeout_s,
        places=ActorDirectories(files, same_host_shortcut=same_host_shortcut),
        same_host_shortcut=same_host_shortcut,
        **inside,
    )


def serve(obj: object, *args: Any, **kwargs: Any) -> Serving:
    """Serve an object to the `RemoteManager` at an address; see `parl_remote.as_remote`."""
    from parl_remote._serving import as_remote

    return as_remote(obj, *args, **kwargs)


@contextlib.contextmanager
def _explaining(address: str, found: Environment) -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        from parl_remote._doctor.reach import explained

        explained(error, address, found)
        raise


_DEBUG = "debug"
_RAY = "ray"
# How long creating an object waits for a free slot by default: a program that frees slots does so in seconds, and one
# that never does should fail while its user is still watching.
_LEASE_TIMEOUT_S = 30.0

_changing = threading.RLock()


def connect(
    master_address: str | None = None,
    distributed_files: Sequence[str] = (),
    *,
    cpu_num: int | None = None,
    preload: Sequence[str] = (),
    debug: bool = False,
    lease_timeout_s: float | None = _LEASE_TIMEOUT_S,
    key_file: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    logs: bool = False,
) -> None:
    """Connect this program to a cluster, or to a private cluster that ends with the program.

    If the program is connected already, a call with the same address and options does nothing; options that are left
    out are not compared. If the cluster has ended, the call connects again.

    Args:
        master_address: "host:port" of a cluster that `xparl start` made. None or "local" starts a private cluster of
            this machine, without any daemon. "ray" starts Ray on this machine until the program ends, and
            "ray://host:port" uses a running Ray cluster (both need `parl-remote[ray]`).
        distributed_files: Patterns of files that actors find at the same relative paths, for example
            `["data/*.csv", "configs", "!*.log"]`. Patterns are relative to the current directory; a directory includes
            its whole content; `!` removes matches. Actors then run in a separate directory with copies of these files
            as they are now. The program's own modules need not be listed. Only the call that connects takes this
            argument.
        cpu_num: CPUs that a private cluster gives to actors, 1 or more (default: those that this process may use). The
            number may exceed the CPUs of the machine.
        preload: Modules that a private cluster imports once for all actors, for example `["torch"]`.
        debug: Whether to make actors within this process, so that breakpoints work; everything else is the same.
        lease_timeout_s: Seconds that making an object waits for free resources, 0 or more; None waits without limit.
        key_file: The file with the cluster's key. By default the key comes from `PARL_KEY_FILE`, `PARL_KEY` or the key
            file of this user's own `xparl start` on this machine.
        log_dir: A folder for the output of a private cluster's actors, one file per actor. By default the files are
            removed when the program ends.
        logs: Whether to show the actors' output, stdout and stderr, in this program's output. Each line begins with the
            actor's class, name and process. Without it, the output is only in files (`xparl logs`).

    Raises:
        RemoteError: This program is connected to another cluster or with other options, or `distributed_files` is given
            again; call `disconnect` first. Also in an actor, which is connected already.
        ClusterUnreachable: Nothing answers at the address, or the private cluster did not start.
        AuthenticationFailed: The key is missing or wrong.
        VersionMismatch: The cluster uses another version of the protocol or another minor version of Python.
        ModuleNotFoundError: A module of `preload` does not exist.
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range, or does not go with the address; a pattern in `distributed_files`
            is absolute, leads upwards or matches nothing.
        OSError: A file that `distributed_files` names cannot be read.
    """
    if not isinstance(master_address, str | None):
        raise TypeError(f"master_address must be text such as 'localhost:8037', not {master_address!r}")
    if lease_timeout_s is not None:
        lease_timeout_s = check_number("lease_timeout_s", lease_timeout_s)
    if cpu_num is not None:
        cpu_num = check_count("cpu_num", cpu_num, 1)
    if isinstance(preload, str):
        raise TypeError(f"preload is a list of names; did you mean {[preload]}?")
    if unnamed := [name for name in preload if not isinstance(name, str)]:
        raise TypeError(f"preload is a list of names of modules, not of {unnamed[0]!r}")
    for name, path in (("key_file", key_file), ("log_dir", log_dir)):
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"{name} must be a path, not {path!r}")
    check_flag("debug", debug)
    check_flag("logs", logs)
    address = _normalized(master_address, debug)
    if environment().debug:
        write_debug_log()
    if _is_ray(address):
        _refuse_on_ray(address, cpu_num=cpu_num, preload=preload or None, log_dir=log_dir, key_file=key_file)
    elif address not in {PRIVATE, _DEBUG}:
        _refuse_private_options(address, cpu_num=cpu_num, preload=preload or None, log_dir=log_dir)
    elif key_file is not None:
        raise ValueError("a private cluster needs no key_file; leave it out")
    for name in preload:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"preload names {name!r}, which this program cannot import either", name=name)
    slots = cpu_num or cpu_count()
    options = {
        "cpu_num": cpu_num,
        "preload": tuple(preload),
        "lease_timeout_s": lease_timeout_s,
        "log_dir": None if log_dir is None else os.fspath(log_dir),
        "logs": logs,
    }
    running = options | {"cpu_num": slots}
    register_fork_handler()  # the process may be forked while the lock is held
    with _changing, contextlib.ExitStack() as steps:
        if _current.inside_actor():
            raise RemoteError(
                "an actor is connected already, to its own cluster. If this parl.connect() is in a module of the "
                "program that actors import, put it under if __name__ == '__main__'"
            )
        open_now = _current.peek()
        if open_now is not None and open_now.is_gone:
            disconnect()
        elif open_now is not None:
            _refuse_other(open_now.address, address, distributed_files, options)
            return
        if address == _DEBUG:
            from parl_remote._debug_client import DebugClient
            from parl_remote._files.upload import ActorDirectories

            # Actors in this process see the files themselves; mistakes show all the same.
            ActorDirectories(distributed_files)
            _current.install(DebugClient(slots), functools.partial(DebugClient, slots), running)
        elif _is_ray(address):
            from parl_remote._ray.client import open_ray

            _current.install(open_ray(address, cpu_num, distributed_files, lease_timeout_s, logs=logs), None, running)
        else:
            join: Callable[[], Client]
            if address == PRIVATE:
                steps.enter_context(uninterrupted)  # but for its waits: who is interrupted ends the node it has started
                client, place = open_private(slots, tuple(preload), lease_timeout_s, log_dir, distributed_files)
                join = functools.partial(join_private, place, lease_timeout_s, tuple(distributed_files))
            else:
                join = functools.partial(open_cluster, address, key_file, lease_timeout_s, distributed_files)
                client = join()
            if logs:
                client.forward_logs()
            _current.install(client, functools.partial(_connect_child, join, logs=logs), running)
        _register_end()


_DEFAULTS: dict[str, object] = {
    "cpu_num": None,
    "preload": (),
    "lease_timeout_s": _LEASE_TIMEOUT_S,
    "log_dir": None,
    "logs": False,
}


def _refuse_other(running: str, address: str, files: Sequence[str], options: dict[str, Any]) -> None:
    """Check that a program that is connected connects to the same address, with no other options."""
    if running != address:
        raise RemoteError(
            f"this program is connected to {running!r}; call parl.disconnect() before connecting to {address!r}"
        )
    if files:
        raise RemoteError(
            "this program is connected already, and only the call that connects takes distributed_files; "
            "call parl.disconnect() first"
        )
    known = _current.options()
    other = [name for name, value in options.items() if value not in (_DEFAULTS[name], known.get(name, value))]
    if other:
        asked, there = (", ".join(f"{name}={given.get(name)!r}" for name in other) for given in (options, known))
        raise RemoteError(
            f"this program is connected to {running!r} already, with {there}: call parl.disconnect() before connecting "
            f"with {asked}. If the call of a remote function made the connection, call parl.connect() before it"
        )


def connected() -> _current.ActorMaker:
    """Return the connection of this process or of its parent's cluster; without any, start a private cluster."""
    if _current.client_if_any() is None and not _current.inside_actor():
        connect()
    return _current.client()


def disconnect() -> None:
    """End this program's actors, except detached ones, and close its connection; without a connection do nothing."""
    with _changing:
        old = _current.clear()
        if old is not None:
            atexit.unregister(_disconnect_at_end)
            old.close()


def get_global_client() -> _current.ActorMaker:
    """Return the connection, as in PARL: `actor_num` is the number of this program's actors.

    Raises:
        NotConnected: There is no connection.
    """
    return _current.client()


def _normalized(address: str | None, debug: bool) -> str:
    if debug:
        return _DEBUG
    if address is None or address == PRIVATE:
        return PRIVATE
    if _is_ray(address):
        return address
    return str(Address.parse(address))


def _refuse_private_options(address: str, **options: object) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{' and '.join(given)} only makes sense for a private cluster, not for the one at {address}")


def _is_ray(address: str) -> bool:
    return address == _RAY or address.startswith(f"{_RAY}://")


def _refuse_on_ray(address: str, cpu_num: int | None, **options: object) -> None:
    given = [name for name, value in options.items() if value is not None]
    if cpu_num is not None and address != _RAY:
        given.append("cpu_num")
    if given:
        raise ValueError(f"{' and '.join(given)} makes no sense for Ray at {address}")


@functools.cache
def register_fork_handler() -> None:
    """Register the fork handler, before the first connection; importing alone registers nothing."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _connect_child(join: Callable[[], Client], *, logs: bool = False) -> Client:
    """Return the connection of a child, which needs one for the first time."""
    register_fork_handler()
    client = join()
    if logs:
        client.forward_logs()
    _register_end()
    return client


_LAST = -100  # the queues of `multiprocessing`, which are flushed before, have -5


def _disconnect_at_end() -> None:
    """Disconnect because the interpreter ends."""
    program_ends.set()
    with contextlib.suppress(KeyboardInterrupt):  # the program ends anyway; `disconnect` ends the actors all the same
        disconnect()


def _register_end() -> None:
    """Register the disconnection at this process's end, after `multiprocessing` has joined children that may use it.

    `atexit` runs functions in reverse order, so those that the package registers at its first use run before. Its own
    children run only what is registered with it.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        atexit.register(_disconnect_at_end)
    else:
        util.Finalize(None, _disconnect_at_end, exitpriority=_LAST)


def _after_fork() -> None:
    """Leave the parent's connection to the parent in a forked child, which connects when it first needs to."""
    global _changing
    _changing = threading.RLock()  # the thread that held it was not copied
    old = _current.leave_to_parent()
    if old is not None:
        atexit.unregister(_disconnect_at_end)
        old.abandon()


_LOOK_UP_S = 30.0  # as long as making an actor may wait for a slot: one that is still being made is waited for


def get_actor(name: str, *, timeout_s: float | None = _LOOK_UP_S) -> Any:
    """Return a handle of the actor with this name, made by this program or another one of the cluster.

    Args:
        name: The name.
        timeout_s: Seconds to wait for an actor that is being made (default 30); None waits without limit.

    Raises:
        NoSuchActor: No actor has the name; the message suggests a similar one.
        ActorLost: The actor ended during the look-up.
        ResultTimeout: The actor was not made before the timeout.
        NotConnected: There is no connection.
        TypeError: The name is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"get_actor takes the name of an actor, not {name!r}")
    timeout_s = seconds_of("timeout_s", timeout_s)
    client = _current.client()
    with uninterrupted:  # but for its waits: the actor's worker keeps a found actor until there is a connection to it
        found = client.find(name, timeout_s)
        spec, proxies = unpacked(found.shipped)
        return make_proxy(proxies, client.borrow(found.place, spec, None), wait=found.wait)


def kill(actor: object) -> None:
    """End an actor at once, regardless of its state and owner; it is not restarted.

    Args:
        actor: A handle of the actor, or its name.

    Raises:
        NoSuchActor: No actor has the name.
        NotConnected: There is no connection.
        TypeError: The argument is neither a handle nor a name.
    """
    if isinstance(actor, str):
        _current.client().kill(actor)
        return
    ref = reference_of(actor)
    if ref is None:
        hint = "; kill takes the object, not a method of it" if isinstance(actor, RemoteMethod) else ""
        raise TypeError(f"kill takes a remote object or the name of one, not {actor!r}{hint}")
    ref.destroy()
