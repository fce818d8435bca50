"""The file in which a master stores nodes, their drains and events for its successor after a kill.

    <run directory>/<host>-<port>/events.jsonl
        {"cluster": id, "since": time, "counts": {kind: number}}      of events that are no longer in the file
        {"event": ClusterEvent} | {"node": NodeRecord} | {"drain": DrainRecord} | {"gone": node id}

A line is appended in one step, and the file is written anew, atomically, when the master starts and whenever it has
become long. A line that a full disk or a kill has damaged is passed over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter, deque
from pathlib import Path
from typing import Any

from parl_remote._codec import from_json, to_json
from parl_remote._master.events import EVENTS_KEPT, DrainRecord, History, NodeRecord, PreviousHistory
from parl_remote._messages.overview import ClusterEvent
from parl_remote._security import read_private_file, write_private_file
from parl_remote.errors import AuthenticationFailed, RemoteProtocolError

__all__ = ["FILE_NAME", "HistoryFile"]

FILE_NAME = "events.jsonl"
_LONG = 4 * EVENTS_KEPT  # lines

_log = logging.getLogger("parl.remote")


class HistoryFile(History):
    """Keeps nodes and events in a file.

    Args:
        directory: The cluster's directory.
        cluster_id: The cluster; what another one has left there is dropped.
        since: The Unix time at which a cluster that has left nothing began.
    """

    def __init__(self, directory: Path, cluster_id: str, since: float) -> None:
        self._path = directory / FILE_NAME
        self._cluster_id = cluster_id
        self._since = since
        self._lines = 0
        self._has_failed = False
        self._is_torn = False  # the last line may be there in part

    def past(self) -> PreviousHistory:
        """Read the stored history, and write the file anew without outdated lines."""
        head, events, nodes, drains = self._read()
        self._write(head, events, nodes, drains)
        return PreviousHistory(
            head["since"],
            tuple(one for line in events if (one := _as(ClusterEvent, line)) is not None),
            head["counts"],
            tuple(one for line in nodes.values() if (one := _as(NodeRecord, line)) is not None),
            tuple(one for line in drains.values() if (one := _as(DrainRecord, line)) is not None),
        )

    def happened(self, event: ClusterEvent) -> None:
        """Append an event."""
        self._append({"event": to_json(event)})

    def noted(self, node: NodeRecord) -> None:
        """Append the record of a node, which replaces an earlier one."""
        self._append({"node": to_json(node)})

    def draining(self, drain: DrainRecord) -> None:
        """Append the drain of a node, which replaces an earlier one."""
        self._append({"drain": to_json(drain)})

    def gone(self, node_id: str) -> None:
        """Append a line that drops the records of a node."""
        self._append({"gone": node_id})

    def _append(self, line: object) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
            try:
                data = b"\n" * self._is_torn + json.dumps(line).encode() + b"\n"
                self._is_torn = True
                self._is_torn = os.write(descriptor, data) < len(data)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._tell(error)
            return
        self._lines += 1
        if self._lines > _LONG:
            self._write(*self._read())

    def _read(self) -> tuple[dict[str, Any], deque[Any], dict[str, Any], dict[str, Any]]:
        """Return the file's first line, events, nodes and drains; those of a new file if it is another cluster's."""
        head: dict[str, Any] = {"cluster": self._cluster_id, "since": self._since, "counts": {}}
        events: deque[Any] = deque()
        nodes: dict[str, Any] = {}
        drains: dict[str, Any] = {}
        try:
            lines = read_private_file(self._path, max_bytes=os.stat(self._path).st_size).splitlines()
        except (OSError, AuthenticationFailed):  # there is none
            return head, events, nodes, drains
        counts: Counter[str] = Counter()
        for number, text in enumerate(lines):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                line = json.loads(text)
                if not number:
                    if line["cluster"] != self._cluster_id:
                        return head, events, nodes, drains
                    counts.update({str(kind): int(times) for kind, times in line["counts"].items()})
                    head["since"] = float(line["since"])
                elif "event" in line:
                    events.append(line["event"])
                    if len(events) > EVENTS_KEPT:
                        counts[str(events.popleft()["kind"])] += 1
                elif "node" in line:
                    node_id = line["node"]["joined"]["node_id"]
                    nodes.pop(node_id, None)  # the latest last: lost nodes are read in the order of their losses
                    nodes[node_id] = line["node"]
                elif "drain" in line:
                    drains[line["drain"]["node_id"]] = line["drain"]
                else:
                    nodes.pop(line["gone"], None)
                    drains.pop(line["gone"], None)
        head["counts"] = dict(counts)
        return head, events, nodes, drains

    def _write(self, head: dict[str, Any], events: deque[Any], nodes: dict[str, Any], drains: dict[str, Any]) -> None:
        lines = [
            head,
            *({"event": one} for one in events),
            *({"node": one} for one in nodes.values()),
            *({"drain": one} for one in drains.values()),
        ]
        try:
            write_private_file(self._path, "".join(json.dumps(line) + "\n" for line in lines))
        except OSError as error:
            self._tell(error)
        self._lines = len(lines)

    def _tell(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.warning("events and lost nodes are not kept beyond the end of this process: %s", error)


def _as(kind: type[Any], line: object) -> Any:
    try:
        return from_json(kind, line, FILE_NAME)
    except RemoteProtocolError:  # of another version
        return None
