"""Display of handles, futures and clusters in notebooks; IPython itself asks where it is installed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import RemoteFuture, get_global_client, submit
from parl_remote._display import ConnectionDisplay
from parl_remote._messages import NodeStatus, Status
from parl_remote._resources import Resources
from parl_remote.cli import _show

PATIENCE_S = 60.0
HOOKS = (
    "_repr_html_",
    "_repr_mimebundle_",
    "_repr_png_",
    "_ipython_display_",
    "_ipython_canary_method_should_not_exist_",
)


@parl_remote.remote_class(n_cpu=0)
class Worker:
    """Has something to show."""

    def step(self, amount: int, /, *, fast: bool = False) -> np.ndarray[Any, Any]:
        return np.zeros((amount, 2), np.float32)

    def fail(self) -> None:
        raise ValueError("<b>no</b>")

    def hold(self, seconds: float) -> None:
        threading.Event().wait(seconds)


@parl_remote.remote_class(n_cpu=0)
class Shown:
    """Has a representation of its own."""

    def _repr_html_(self) -> str:
        return "<i>its own</i>"


def test_a_handle_shows_its_class_its_id_and_its_methods(anywhere: str) -> None:
    worker = Worker()
    html = worker._repr_html_()  # type: ignore[attr-defined]
    assert "remote Worker" in html
    assert "step(amount, fast)" in html
    bundle = worker._repr_mimebundle_()  # type: ignore[attr-defined]
    assert bundle["text/plain"] == repr(worker)
    assert bundle["text/html"] == html
    if anywhere == "process":
        assert repr(worker).split()[2].rstrip(">") in html, "the id that xparl list shows"


@pytest.mark.usefixtures("shared_cluster")
def test_a_busy_actor_is_not_asked_by_a_notebook() -> None:
    worker = Worker()
    busy = submit(worker.hold, 2 * PATIENCE_S)
    found: list[str] = []

    def look() -> None:
        found.extend(name for name in HOOKS if getattr(worker, name, None) is not None)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found == ["_repr_html_", "_repr_mimebundle_"]
    assert not busy.done()
    parl_remote.kill(worker)


@pytest.mark.usefixtures("shared_cluster")
def test_a_class_with_a_representation_of_its_own_keeps_it() -> None:
    one = Shown()
    assert one._repr_html_() == "<i>its own</i>"
    assert getattr(one, "_repr_mimebundle_", None) is None


@pytest.mark.usefixtures("shared_cluster")
def test_a_future_shows_its_call_and_what_came_of_it() -> None:
    worker = Worker()
    future: RemoteFuture[Any] = submit(worker.step, 3)
    future.result(PATIENCE_S)
    html = future._repr_html_()
    assert "step" in html
    assert "finished" in html
    assert "ndarray of float32, 3 x 2" in html
    failed = submit(worker.fail)
    assert failed.exception(PATIENCE_S) is not None
    assert "&lt;b&gt;no&lt;/b&gt;" in failed._repr_html_(), "what users write is text"
    waiting = submit(worker.hold, 2 * PATIENCE_S)
    assert "returned" not in waiting._repr_html_()
    parl_remote.kill(worker)


def test_a_connection_shows_the_cluster_s_nodes(connect: Callable[..., None]) -> None:
    connect(cpu_num=3)
    worker = Worker()
    cluster = get_global_client()
    assert repr(cluster) == "<connection to the cluster 'local', 1 actor of this program>"
    html = cluster._repr_html_()  # type: ignore[attr-defined]
    assert "0 of 3" in html
    assert "<th>node</th>" in html
    del worker


@pytest.mark.parametrize(
    ("is_draining", "leases", "state"), [(False, 0, "up"), (True, 1, "draining"), (True, 0, "drained")]
)
def test_a_node_s_state_is_that_which_xparl_tells(is_draining: bool, leases: int, state: str) -> None:
    class Cluster(ConnectionDisplay):
        address, actor_num = "host:8000", 0

        def _status(self) -> Status:
            two = Resources(2.0)
            node = NodeStatus("node-1", "one", (), two, two, leases, 0.0, 0, 0.0, is_draining)
            return Status(1, "cluster", 1.0, two, two, leases, 0, 1, 0, 0, (node,))

    assert f"<td>{state}</td>" in Cluster()._repr_html_()
    assert ("is drained" in _show._node(Cluster()._status().nodes[0])) == (state == "drained")


def test_ipython_shows_the_same(anywhere: str) -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    worker = Worker()
    shown, _ = formatters.DisplayFormatter().format(worker)
    assert shown["text/plain"] == repr(worker)
    assert "remote Worker" in shown["text/html"]


@pytest.mark.usefixtures("anywhere")
def test_what_the_client_of_parl_2_had_is_told_with_its_replacement() -> None:
    client: Any = get_global_client()
    with pytest.raises(AttributeError, match=r"'destroy', which the original PARL had: use parl.disconnect\(\)"):
        client.destroy()
    assert not hasattr(client, "executable_path")
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = client.other
