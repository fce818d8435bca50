"""The program behind `xparl start` and `xparl connect`: one node of a cluster, until it is told to end.

    xparl --settings as JSON, a pipe--> python -m parl_remote.node.daemon
          <--{"address": ...} or {"error": ...}--

The zygote is forked first, before anything is opened or any thread runs. What the node has to say goes to its log,
which is its stderr.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from parl_remote.codec import from_json
from parl_remote.config import environment
from parl_remote.errors import RemoteError
from parl_remote.links.identity import host_name
from parl_remote.node.cluster_node import ClusterNode, NodeSettings
from parl_remote.node.report_pipe import report_on
from parl_remote.node.run_files import ClusterRecord, ProcessRecord, WorkerRecord, forget, key_of, write_record
from parl_remote.system import processes
from parl_remote.transport.unix import private_directory, sweep_directories
from parl_remote.worker.zygote import start_zygote

__all__ = ["main", "run_node"]

_log = logging.getLogger("parl.remote")


def main(settings_json: str, pipe: int) -> int:
    """Be a node, detached from whoever started it.

    Args:
        settings_json: `NodeSettings`.
        pipe: Descriptor to say on, once, how it went.

    Returns:
        The exit status.
    """
    os.set_inheritable(pipe, False)
    processes.ignore_hang_up()

    def report(outcome: dict[str, str]) -> None:
        report_on(pipe, outcome)

    return run_node(from_json(NodeSettings, json.loads(settings_json), "settings"), report)


def run_node(settings: NodeSettings, report: Callable[[dict[str, str]], None]) -> int:
    """Run a node in this process until SIGTERM, SIGINT or the end of its cluster.

    Args:
        settings: What it is.
        report: Called once with `address`, or with `error` if the node cannot run.

    Returns:
        The exit status.
    """
    os.umask(0o077)
    processes.raise_descriptor_limit()
    found = environment()
    level = logging.DEBUG if settings.debug or found.debug else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    _log.debug("runs with %s", settings)
    directory = Path(settings.directory)
    with ExitStack() as undo:
        try:
            _clear(directory)
            sweep_directories(found.socket_parent)
            sockets = private_directory(found.socket_parent)
            undo.callback(shutil.rmtree, sockets, ignore_errors=True)
            zygote = start_zygote(sockets, clear=True) if settings.has_worker else None
            processes.set_name("parl:node")
            node = ClusterNode(settings, key_of(directory), sockets, zygote, limits=found.limits)
        except (OSError, RemoteError) as error:
            if settings.master:
                forget(directory)
            report({"error": str(error)})
            return 1
        undo.callback(node.close)

        def stop(number: int, _: FrameType | None) -> None:
            _log.info("ends because of %s", signal.Signals(number).name)
            node.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        undo.callback(forget, directory)
        write_record(directory, _record(settings))
        report({"address": node.address})
        node.run()
    return 0


def _clear(directory: Path) -> None:
    """Begin with an empty directory for logs of actors; those of the node before, which may have crashed, stay once."""
    logs, before = directory / "actors", directory / "actors.before"
    if logs.exists():
        shutil.rmtree(before, ignore_errors=True)
        logs.rename(before)
    logs.mkdir()


def _record(settings: NodeSettings) -> ClusterRecord | WorkerRecord:
    process = ProcessRecord.of(os.getpid())
    if settings.master:
        return WorkerRecord(settings.node_id, settings.master, process)
    return ClusterRecord(settings.cluster_id, settings.host, settings.port, host_name(), process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
