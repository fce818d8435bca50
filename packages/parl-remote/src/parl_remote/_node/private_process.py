"""The process of a private cluster: master and worker on one loop, for one program.

    driver --unix socket it made itself--> PeerAcceptor --> Master, Worker --> zygote --> actors

It ends with the program: at once when the program's connection breaks, after a moment for actors to finish when the
program sends Bye. The zygote is forked first, before anything is opened, and imports modules meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from parl_remote._system import processes
from parl_remote._worker.zygote import start_zygote

__all__ = ["main"]


class PrivateNodeSettings(NamedTuple):
    """The settings that the driver gives its node.

    Attributes:
        directory: The node's private directory, which exists.
        log_directory: The directory of actors' log files.
        listening: Descriptor of the listening socket that the driver has made; -1 if it cannot be passed.
        driver: Descriptor of a socket that the driver closes when it has connected or ended; -1 if it cannot be passed.
        slots: CPUs to give to actors.
        preload: Modules to import once for all actors.
    """

    directory: str
    log_directory: str
    listening: int
    driver: int
    slots: int
    preload: tuple[str, ...]


def main(settings_json: str) -> None:
    """Run a private cluster until its program is gone."""
    settings = PrivateNodeSettings(**json.loads(settings_json))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.set_name("parl:node")
    processes.raise_descriptor_limit()
    zygote = start_zygote(settings.directory, tuple(settings.preload), clear=True)

    from parl_remote._node.private_node import PrivateNode  # 30 ms, while the zygote warms up

    listening, driver = map(_passed, (settings.listening, settings.driver))
    node = PrivateNode(
        Path(settings.directory),
        Path(settings.log_directory),
        slots=settings.slots,
        preload=settings.preload,
        listening=listening,
        driver=driver,
        zygote=zygote,
    )
    signal.signal(signal.SIGTERM, lambda *_: node.stop())
    try:
        node.run()
    finally:
        node.close()
        shutil.rmtree(Path(settings.directory), ignore_errors=True)
        sys.stdout.flush()
    os._exit(0)


def _passed(descriptor: int) -> socket.socket | None:
    return None if descriptor < 0 else socket.socket(fileno=descriptor)
