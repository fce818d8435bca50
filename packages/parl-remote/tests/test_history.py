"""The file of nodes and events that a master reads when it is restarted."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from parl_remote._master.events import EVENTS_KEPT, DrainRecord, NodeRecord, PreviousHistory
from parl_remote._messages import NodeJoin
from parl_remote._messages.overview import ClusterEvent, DrainNode, EventKind
from parl_remote._node.history import FILE_NAME, HistoryFile
from parl_remote._resources import Resources


def event(number: int) -> ClusterEvent:
    return ClusterEvent(number, 1000.0 + number, EventKind.NODE_JOINED, "a node \u2028 \x1b joined", "n")


def node(name: str, lost_at: float | None = None) -> NodeRecord:
    joined = NodeJoin(name, "host", ("host:1",), "/run", Resources(cpu=2, labels={"fast": 1}), name=f"the {name}")
    return NodeRecord(joined, 3.0, 77, {"python": "3.11"}, lost_at, "gone" if lost_at else "", 2)


def opened(folder: Path, cluster: str = "it", since: float = 5.0) -> tuple[HistoryFile, PreviousHistory]:
    history = HistoryFile(folder, cluster, since)
    return history, history.past()


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    history, past = opened(tmp_path)
    assert past == PreviousHistory(5.0)
    for one in (node("a"), node("b"), node("c"), node("b", lost_at=9.0)):
        history.noted(one)
    history.happened(event(1))
    history.gone("c")
    history.gone("never there")
    history.happened(event(2))
    for since in (6.0, 7.0):  # read and written anew twice
        _, past = opened(tmp_path, since=since)
        assert past == PreviousHistory(5.0, (event(1), event(2)), {}, (node("a"), node("b", lost_at=9.0)))
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_drains_are_kept_until_their_node_has_left(tmp_path: Path) -> None:
    history, _ = opened(tmp_path)
    endless, timed, gone = DrainRecord("a", DrainNode(4, "a"), None), DrainRecord("a", DrainNode(5, "a"), 70.0), "b"
    for one in (endless, timed, DrainRecord(gone, DrainNode(6, gone), 80.0)):
        history.draining(one)
    history.gone(gone)
    for _ in range(2):
        assert opened(tmp_path)[1].drains == (timed,)


def test_nodes_are_read_in_the_order_of_their_losses(tmp_path: Path) -> None:
    history, _ = opened(tmp_path)
    for one in (node("a"), node("b"), node("b", lost_at=8.0), node("a", lost_at=9.0)):
        history.noted(one)
    for _ in range(2):
        assert opened(tmp_path)[1].nodes == (node("b", lost_at=8.0), node("a", lost_at=9.0))


def test_what_another_cluster_has_left_is_dropped(tmp_path: Path) -> None:
    opened(tmp_path)[0].happened(event(1))
    assert opened(tmp_path, "another", 8.0)[1] == PreviousHistory(8.0)
    assert opened(tmp_path)[1] == PreviousHistory(5.0)


def test_the_latest_events_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    history, _ = opened(tmp_path)
    many = 4 * EVENTS_KEPT + 10
    for number in range(1, many + 1):
        history.happened(event(number))
    assert len((tmp_path / FILE_NAME).read_bytes().splitlines()) < 2 * EVENTS_KEPT, "it is written anew now and then"
    _, past = opened(tmp_path)
    assert [past.events[0].number, past.events[-1].number] == [many - EVENTS_KEPT + 1, many]
    assert past.counts == {"node_joined": many - EVENTS_KEPT}


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"null\n",
        b'{"event": 3}\n',
        b'{"node": {"joined": 1}}\n',
        b"[1]\n",
        b"\xff\xfe\n",
        b'{"gone": []}\n',
        b'{"drain": 4}\n',
        b'{"drain": {"node_id": "a"}}\n',
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    history, _ = opened(tmp_path)
    history.noted(node("a"))
    history.happened(event(1))
    with open(tmp_path / FILE_NAME, "ab") as file:
        file.write(damage)
    history, past = opened(tmp_path)
    assert (past.events, past.nodes) == ((event(1),), (node("a"),))
    history.happened(event(2))
    assert opened(tmp_path)[1].events == (event(1), event(2))


def test_a_file_without_a_head_is_begun_anew(tmp_path: Path) -> None:
    for text in ("", "\n", "{}\n", '{"cluster": "it"}\n', "not json\n" + json.dumps({"gone": "a"})):
        (tmp_path / FILE_NAME).write_text(text)
        os.chmod(tmp_path / FILE_NAME, 0o600)
        assert opened(tmp_path)[1] == PreviousHistory(5.0)


def test_a_full_disk_costs_what_did_not_fit_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, _ = opened(tmp_path)
    history.happened(event(1))
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        history.happened(event(2))
    history.happened(event(3))
    assert opened(tmp_path)[1].events == (event(1), event(3))
