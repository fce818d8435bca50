"""All timeouts and limits of parl-remote with their reasons, and the only module that reads the environment.

Nothing is read at import: `environment()` reads when it is called, so that a program may set variables first.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FORCE_TCP",
    "BadVariable",
    "Environment",
    "Limits",
    "busy_poll_wanted",
    "environment",
    "portable_wanted",
    "same_host_shortcut",
]

FORCE_TCP = "PARL_FORCE_TCP"


class BadVariable(ValueError):
    """An environment variable has an invalid value."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds and sizes in bytes; every process of a cluster uses the same defaults.

    Attributes:
        connect_timeout_s: A TCP and CURVE handshake takes milliseconds, a second over a bad line; after five the
            address is wrong or the host is down, and a person is waiting.
        hello_timeout_s: A connection that has not sent Hello by then is closed.
        liveness_limit_s: The time for which a node may be silent before it counts as lost. Long enough for a swapping
            host or a paused virtual machine, short enough that a training run does not stand still (PARL's was 30).
        heartbeat_interval_s: Three beats within the limit, so that a late one does not matter.
        start_timeout_s: Time for a started daemon to answer; its end is noticed at once. Imports take most of it, on a
            cold network disk or a busy machine.
        shutdown_grace_s: Time between the request to end and SIGKILL; `xparl stop` promises three seconds.
        linger_s: The time that a closing connection may take to deliver the messages sent last.
        rejoin_interval_s: The interval at which a worker tries to reach a master that went away.
        rejoin_timeout_s: The time for which it tries before it gives up and ends; long enough for a restart by hand or
            systemd.
        log_tail_lines: Lines of an actor's log in its death report.
        max_control_bytes: A control message is some hundred bytes; status of a thousand nodes less than this.
        max_frame_bytes: Largest single frame that is accepted from a peer that holds the key.
        max_pending_hellos: Connections without a Hello at once; more are closed, oldest first.
    """

    connect_timeout_s: float = 5.0
    hello_timeout_s: float = 5.0
    liveness_limit_s: float = 15.0
    heartbeat_interval_s: float = 5.0
    start_timeout_s: float = 60.0
    shutdown_grace_s: float = 1.5
    linger_s: float = 1.0
    rejoin_interval_s: float = 0.5
    rejoin_timeout_s: float = 30.0
    log_tail_lines: int = 50
    max_control_bytes: int = 4 * 2**20
    max_frame_bytes: int = 16 * 2**30
    max_pending_hellos: int = 1024


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings that parl-remote takes from environment variables.

    Attributes:
        run_dir: The directory of run files: `PARL_RUN_DIR`, else `.parl` in the user's home as the system's list of
            users has it, whatever `HOME` says, so that `cron` and services find what a terminal has started.
        socket_parent: The directory below which nodes make their private directory of unix sockets (the temporary
            directory).
        key: The cluster's key as text, from `PARL_KEY`.
        key_file: A file with the cluster's key, from `PARL_KEY_FILE`.
        same_host_shortcut: Whether peers on one host use unix sockets and shared memory; `PARL_FORCE_TCP=1` turns
            that off for tests, except in private clusters, which have nothing else.
        inside_actor: Whether this process is an actor, as `XPARL=True` states.
        launcher: The command that `xparl` starts nodes with instead of its own Python, from `XPARL_PYTHON`.
        data_port: The port of a node's sealed connections, from `PARL_DATA_PORT`; 0 for a free one.
        monitor: Whether `xparl start` starts a web monitor by default; `PARL_MONITOR=0` disables that.
        monitor_token_file: A file with the monitor's token, from `PARL_MONITOR_TOKEN_FILE`.
        debug: Whether nodes and programs log more; set by `DEBUG` unless it is empty, 0 or false.
        limits: Defaults, with `PARL_CONNECT_TIMEOUT`, `PARL_LIVENESS_LIMIT` and `PARL_SHUTDOWN_GRACE`
            (seconds) applied.
    """

    run_dir: Path
    socket_parent: Path
    key: str | None
    key_file: Path | None
    same_host_shortcut: bool
    inside_actor: bool
    limits: Limits
    launcher: tuple[str, ...] = ()
    debug: bool = False
    monitor: bool = True
    monitor_token_file: Path | None = None
    data_port: int = 0


def same_host_shortcut(variables: Mapping[str, str] | None = None) -> bool:
    """Return whether peers on one host use unix sockets and shared memory; see `Environment`."""
    return (os.environ if variables is None else variables).get(FORCE_TCP, "") not in {"1", "true", "True"}


def environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read the environment.

    Args:
        variables: The variables to read instead of `os.environ`.

    Raises:
        BadVariable: A variable is not a number of seconds above zero, not a port, or not a command.
    """
    read = os.environ if variables is None else variables
    defaults = Limits()
    liveness_s = _seconds(read, "PARL_LIVENESS_LIMIT", defaults.liveness_limit_s)
    return Environment(
        run_dir=_run_dir(read),
        socket_parent=Path(read.get("TMPDIR") or tempfile.gettempdir()),
        key=read.get("PARL_KEY") or None,
        key_file=Path(read["PARL_KEY_FILE"]).expanduser() if read.get("PARL_KEY_FILE") else None,
        same_host_shortcut=same_host_shortcut(read),
        inside_actor=read.get("XPARL") == "True",
        limits=Limits(
            connect_timeout_s=_seconds(read, "PARL_CONNECT_TIMEOUT", defaults.connect_timeout_s),
            liveness_limit_s=liveness_s,
            heartbeat_interval_s=min(defaults.heartbeat_interval_s, liveness_s / 3),
            shutdown_grace_s=_seconds(read, "PARL_SHUTDOWN_GRACE", defaults.shutdown_grace_s),
        ),
        launcher=_command(read, "XPARL_PYTHON"),
        debug=read.get("DEBUG", "").lower() not in {"", "0", "false", "no", "off"},
        monitor=read.get("PARL_MONITOR", "").lower() not in {"0", "false", "no", "off"},
        monitor_token_file=Path(read["PARL_MONITOR_TOKEN_FILE"]).expanduser()
        if read.get("PARL_MONITOR_TOKEN_FILE")
        else None,
        data_port=_port(read, "PARL_DATA_PORT"),
    )


def portable_wanted(variables: Mapping[str, str] | None = None) -> bool:
    """Return whether `PARL_PORTABLE=1` disables the facilities that exist on Linux only, see `facilities`."""
    read = os.environ if variables is None else variables
    return read.get("PARL_PORTABLE", "").lower() not in {"", "0", "false", "no", "off"}


def busy_poll_wanted(variables: Mapping[str, str] | None = None) -> bool:
    """Return whether threads may poll before they wait, unless `PARL_BUSY_POLL=0`; see `facilities.BusyPoll`."""
    read = os.environ if variables is None else variables
    return read.get("PARL_BUSY_POLL", "").lower() not in {"0", "false", "no", "off"}


def _port(read: Mapping[str, str], name: str) -> int:
    text = read.get(name) or "0"
    if not text.isascii() or not text.isdigit() or int(text) >= 2**16:
        raise BadVariable(f"{name} must be the number of a port, not {text!r}")
    return int(text)


def _run_dir(read: Mapping[str, str]) -> Path:
    if read.get("PARL_RUN_DIR"):
        return Path(read["PARL_RUN_DIR"]).expanduser().absolute()  # nodes run in a directory of their own
    try:
        import pwd
    except ImportError:  # Windows
        return Path.home() / ".parl"
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".parl"
    except KeyError:  # a container's user that no list knows
        return Path(f"/tmp/parl-of-user-{os.getuid()}")


def _command(read: Mapping[str, str], name: str) -> tuple[str, ...]:
    if not read.get(name):
        return ()
    try:
        return tuple(shlex.split(read[name]))
    except ValueError as error:
        raise BadVariable(f"{name} must be a command as a shell reads it, it is {read[name]!r}: {error}") from error


def _seconds(read: Mapping[str, str], name: str, default: float) -> float:
    text = read.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise BadVariable(f"{name} must be a number of seconds above 0, it is {text!r}")
    return seconds
