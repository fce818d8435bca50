"""A report on a late call: threads, state and sockets of its program, and the stack of its actor.

It is written to the program's log when a call has no result after `LATE_S`, long before it counts as hung, so that a
fault that occurs once an hour can be diagnosed at its first occurrence.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parl_remote import _current
from parl_remote._program.proxy import reference_of

LATE_S = 20.0
_LONGEST = 200


def report(actor: Any, future: Any) -> None:
    """Print the state of a call and its actor."""
    print(f"{time.strftime('%H:%M:%S')} LATE {future!r}, load {os.getloadavg()[0]:.1f}", flush=True)
    faulthandler.dump_traceback(sys.stdout, all_threads=True)
    for line in _state(actor, future):
        print("   ", line)
    print(f"    LATE ends: {'settled' if future._settled else 'not settled'}", flush=True)


def _state(actor: Any, future: Any) -> Iterator[str]:
    ref = reference_of(actor)
    outbox = None if ref is None else ref.outbox
    path = None if outbox is None else outbox.path
    yield f"call {future._call_id} of {future.method}, carried by {type(future._carrier).__name__}"
    for what in (future, outbox, outbox and outbox._machine, path, path and getattr(path, "channel", None)):
        yield from _fields(what)
    client: Any = _current.client()
    for lease, record in list(client.own.records.items()):
        is_it = record.outbox is outbox
        yield f"{'THE ACTOR' if is_it else 'actor'} {lease}: {record.pid} of {record.node_id}, {record.cause}"
        if is_it:
            yield from _fields(record)
            yield from _fields(record.restarts)
            yield from _fields(record.channel)
            yield from _process(record.pid)
    yield from Path("/proc/net/tcp").read_text().splitlines()


def _fields(what: object) -> Iterator[str]:
    if what is None:
        return
    yield f"{type(what).__name__}:"
    names = [*getattr(what, "__dict__", {}), *getattr(type(what), "__slots__", ())]
    for name in names:
        yield f"    {name} = {repr(getattr(what, name, None))[:_LONGEST]}"


def _process(pid: int) -> Iterator[str]:
    for name in ("status", "wchan", "schedstat"):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text()
        except OSError as error:
            text = str(error)
        yield from (f"    {name}: {line}" for line in text.splitlines() if not line.startswith(("Cpus", "Mems", "Sig")))
    spy = shutil.which("py-spy")
    if spy is not None:
        done = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False, timeout=60)
        yield from (f"    {line}" for line in (done.stdout + done.stderr).splitlines())
