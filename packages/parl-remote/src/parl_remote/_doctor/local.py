"""Checks of this host and of the requirements of a program: disk, limits, keys, leftovers of crashes, imports.

Every check of the doctor yields `Finding`s, which are defined here.
"""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from parl_remote._config import Environment
from parl_remote._links.identity import host_name
from parl_remote._run_files import RunFiles
from parl_remote._security import ClusterKey, make_private_dir
from parl_remote._system.facilities import is_portable, missing
from parl_remote._system.host import shared_memory_free, write_error
from parl_remote.errors import AuthenticationFailed

__all__ = ["Finding", "Severity", "check_here", "fine", "imports_of", "note", "problem"]


class Severity(Enum):
    """The severity of a finding.

    FINE: as it should be. NOTE: worth knowing, without effect on running programs. PROBLEM: something does not work.
    """

    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check, and its remedy.

    Attributes:
        check: The check, one word.
        severity: Its severity.
        what: The finding in one line.
        remedy: The remedy in one line; empty if there is none.
    """

    check: str
    severity: Severity
    what: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON."""
        return {"check": self.check, "severity": self.severity.value, "what": self.what, "remedy": self.remedy}


def fine(check: str, what: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, Severity.FINE, what)


def note(check: str, what: str, remedy: str) -> Finding:
    """Return a finding that has no effect on running programs."""
    return Finding(check, Severity.NOTE, what, remedy)


def problem(check: str, what: str, remedy: str) -> Finding:
    """Return a finding of a problem."""
    return Finding(check, Severity.PROBLEM, what, remedy)


with contextlib.suppress(ImportError):  # not on Windows
    import resource


_MIB = 2**20
_LITTLE_DISK = 200 * _MIB  # enough for a few logs; with less, the output of one actor may fill the disk
_LITTLE_SHARED = 128 * _MIB  # containers get 64 MiB unless told otherwise
_FEW_DESCRIPTORS = 4096  # a node needs several for each actor and each peer
_FEW_PROCESSES = 256


def check_here(found: Environment) -> Iterator[Finding]:
    """Check this host.

    Args:
        found: The directories and keys in use.
    """
    yield from _disks(found)
    yield from _shared_memory()
    yield from _system()
    yield from _limits()
    yield from _given_key(found)
    yield from _run_files(found)


def _disks(found: Environment) -> Iterator[Finding]:
    seen = []
    for name, directory in (("run files", _existing(found.run_dir)), ("sockets", _existing(found.socket_parent))):
        if directory in seen:
            continue
        seen.append(directory)
        variable = "PARL_RUN_DIR" if name == "run files" else "TMPDIR"
        if error := write_error(directory):
            yield problem(
                "disk",
                f"{directory}, where {name} go, cannot be written to: {error}",
                f"free space there or mend its rights, or set {variable} to another directory",
            )
            continue
        free = shutil.disk_usage(directory).free
        if free < _LITTLE_DISK:
            yield problem(
                "disk",
                f"{directory}, where {name} go, has only {free / _MIB:.0f} MiB free",
                f"free space there, or set {variable} to a directory on another disk",
            )
        else:
            yield fine("disk", f"{directory} ({name}) has {free / 2**30:.1f} GiB free")


def _existing(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent."""
    return next((path for path in (directory, *directory.parents) if path.is_dir()), Path("/"))


def _shared_memory() -> Iterator[Finding]:
    free = shared_memory_free()
    if free < 0:
        yield note(
            "shared memory",
            "there is no /dev/shm; PARL needs none, but torch's data loaders and others do",
            "mount -t tmpfs -o size=2g tmpfs /dev/shm (in a container: --shm-size=2g)",
        )
    elif free < _LITTLE_SHARED:
        yield note(
            "shared memory",
            f"/dev/shm has only {free / _MIB:.0f} MiB free; PARL does not use it, but torch's data loaders do",
            "mount -o remount,size=2g /dev/shm (in a container: --shm-size=2g)",
        )
    elif error := write_error(Path("/dev/shm")):
        yield note("shared memory", f"/dev/shm cannot be written to: {error}", "chmod 1777 /dev/shm")
    else:
        yield fine("shared memory", f"/dev/shm has {free / 2**30:.1f} GiB free")


def _system() -> Iterator[Finding]:
    if is_portable():
        why = f"this system has no {', '.join(missing())}" if missing() else "PARL_PORTABLE asks for that"
        yield note(
            "system",
            f"calls go over TCP on loopback, and large arrays are copied, because {why}",
            "nothing to do; on Linux calls are several times faster",
        )


def _limits() -> Iterator[Finding]:
    if "resource" in missing():  # Windows has no such limits
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < _FEW_DESCRIPTORS:
        yield note(
            "descriptors",
            f"a process may have {hard} files open here; a node needs about four for each actor",
            f"ulimit -Hn {2**16} before xparl start (or LimitNOFILE= in the systemd unit)",
        )
    else:
        yield fine("descriptors", f"a process may have {hard} files open")
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY and most < _FEW_PROCESSES:
        yield note(
            "processes",
            f"this user may have {most} processes at once; each actor is one",
            f"ulimit -u {2**14} before xparl start (or LimitNPROC= in the systemd unit)",
        )
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != resource.RLIM_INFINITY:
        yield note(
            "file size",
            f"a file may be {size / _MIB:.0f} MiB long; larger arrays cannot be shared, and longer logs end a process",
            "ulimit -f unlimited",
        )


def _given_key(found: Environment) -> Iterator[Finding]:
    try:
        if found.key_file is not None:
            ClusterKey.from_file(found.key_file)
            yield fine("key", f"PARL_KEY_FILE names a key that only you can read ({found.key_file})")
        elif found.key is not None:
            ClusterKey.from_text(found.key, source="PARL_KEY")
            yield fine("key", "PARL_KEY holds a key")
    except AuthenticationFailed as error:
        yield problem("key", str(error), _key_remedy(error, found.key_file))


def _key_remedy(error: AuthenticationFailed, path: Path | None) -> str:
    if "mode" in str(error) and path is not None:
        return f"chmod 600 {path}"
    return "copy the key file that `xparl start` names to this host, mode 0600, and let PARL_KEY_FILE name it"


def _run_files(found: Environment) -> Iterator[Finding]:
    directory = found.run_dir
    if directory.exists():
        try:
            make_private_dir(directory)
        except (AuthenticationFailed, OSError) as error:
            is_open = " has mode " in str(error)  # else it is another user's, or no directory
            remedy = f"chmod 700 {directory}" if is_open else "set PARL_RUN_DIR to a directory of your own"
            yield problem("run files", str(error), remedy)
    files = RunFiles(found.run_dir)
    for where, cluster in files.clusters():
        if cluster.host_name == host_name() and not cluster.process.alive():
            yield note(
                "run files",
                f"the cluster on port {cluster.port} of this host crashed or was killed; {where} is left of it",
                f"xparl start --port {cluster.port} takes it up again, xparl stop --port {cluster.port} clears it away",
            )
    for where, worker in files.workers():
        if where.name.startswith(f"{host_name()}-") and not worker.process.alive():
            yield note(
                "run files",
                f"a worker of {worker.master} on this host crashed or was killed; {where} is left of it",
                f"xparl connect --address {worker.master} starts another one; the next xparl stop clears it away",
            )


def imports_of(script: Path) -> tuple[str, ...]:
    """Return the modules that workers must have installed for a program or a notebook to run there.

    Excluded are Python's own, those beside the program (which are sent along), and optional ones: imported within
    `try`, or only for type checkers.

    Raises:
        OSError: The file cannot be read.
        SyntaxError: It is not Python.
        ValueError: It is not a notebook, despite its name.
    """
    folder = script.absolute().parent
    text = _code_of(script.read_text()) if script.suffix == ".ipynb" else script.read_bytes()
    names = set(_imported(ast.parse(text, str(script)).body))
    return tuple(sorted(name for name in names if name not in sys.stdlib_module_names and not _beside(folder, name)))


def _code_of(notebook: str) -> str:
    """Return the code of a notebook without IPython's own syntax."""
    try:
        sources = [cell["source"] for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("it is not a notebook") from error
    lines = "\n".join("".join(source) for source in sources).splitlines()
    return "\n".join("pass" if line.startswith(("%", "!", "?")) else line for line in lines)


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Try(handlers=handlers) if handlers:
                yield from _imported(node.finalbody)
            case ast.If(test=test) if _only_for_types(test):
                yield from _imported(node.orelse)
            case _:
                for field in ("body", "orelse", "finalbody"):
                    inner = getattr(node, field, None)
                    if isinstance(inner, list):
                        yield from _imported(inner)


def _only_for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _beside(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").exists() or (folder / name).is_dir()
