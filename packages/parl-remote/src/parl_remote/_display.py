"""The representation of handles, futures and clusters in notebooks, made without asking actors; progress bars.

A notebook looks up `_repr_mimebundle_`, `_repr_html_` and a dozen names like them. A handle answers these
itself: they never reach the actor, which may be busy, unless its class has a method of that name.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from parl_core._deprecation import REMOVED_CLIENT_ATTRIBUTES, found_or_successor

if TYPE_CHECKING:
    from parl_remote._messages import NodeStatus, Status

__all__ = [
    "Bar",
    "ConnectionDisplay",
    "NoBar",
    "actor_hook",
    "future_html",
    "is_hook",
    "length_of",
    "progress_bar",
    "short_id",
]

_log = logging.getLogger("parl.remote")

_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_MOST_METHODS = 30
_MOST_NODES = 50
_LONGEST = 300
_MIB = 2**20


def is_hook(name: str) -> bool:
    """Return whether notebooks look up such a name on every object that they show."""
    return name.startswith(("_repr_", "_ipython_"))


def actor_hook(name: str, *, class_name: str, place: Any, cls: type, methods: Iterable[str]) -> Callable[..., Any]:
    """Return a handle's attribute that a notebook looks up.

    Args:
        name: The name that is looked up.
        class_name: The actor's class.
        place: The actor's address, an `ActorPlace`; anything else for an actor in this process.
        cls: The class itself.
        methods: Its methods.

    Raises:
        AttributeError: A handle has no such representation.
    """
    names = list(methods)

    def text() -> str:
        lease = short_id(place)
        return f"<remote {class_name}{f' {lease}' if lease else ''}>"

    def html() -> str:
        addresses = getattr(place, "node_addresses", ())
        rows = [
            ("actor", short_id(place) or "in this process"),
            ("node", ", ".join(addresses) or ("of a private cluster" if short_id(place) else "")),
            ("restarts", "yes" if getattr(place, "may_return", False) else ""),
            ("methods", _methods(cls, names)),
        ]
        return _table(f"remote {class_name}", rows)

    def bundle(include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG001 - a notebook's call
        return {"text/plain": text(), "text/html": html()}

    if name == "_repr_html_":
        return html
    if name == "_repr_mimebundle_" and not any(map(is_hook, names)):
        return bundle
    raise AttributeError(name)


def short_id(place: Any) -> str:
    """Return the beginning of an actor's id, as `xparl list` shows it; empty for one in this process."""
    return str(getattr(place, "lease_id", "")).partition("-")[2][:8]


def future_html(method: str, state: str, value: object, error: BaseException | None) -> str:
    """Return the table of a future.

    Args:
        method: The method that was called.
        state: The state as one word.
        value: The result, where there is one; it is described, not shown.
        error: The exception that the call raised.
    """
    outcome = ""
    if error is not None:
        outcome = _clip(f"{type(error).__name__}: {error}")
    elif state == "finished":
        outcome = _described(value)
    label = "raised" if error is not None else "returned"
    return _table("RemoteFuture", [("call", method), ("state", state), (label, outcome)])


class ConnectionDisplay:
    """The representation of a connection to a cluster."""

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            return found_or_successor(self, name, REMOVED_CLIENT_ATTRIBUTES)

    @property
    def address(self) -> str:
        """The address given to `connect`, in its normal form."""
        raise NotImplementedError

    @property
    def actor_num(self) -> int:
        """The number of actors that this program has now."""
        raise NotImplementedError

    def _status(self) -> Status | None:
        """Return the cluster's status; None if there is none to be had."""
        return None

    @property
    def cpu_num(self) -> int | None:
        """The number of CPUs that the cluster has now; None if that is not known."""
        status = self._status()
        return None if status is None else int(status.total.cpu)

    def __repr__(self) -> str:
        count = self.actor_num
        return f"<connection to the cluster {self.address!r}, {count} actor{'s' * (count != 1)} of this program>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str]] = [("actors of this program", str(self.actor_num))]
        status = self._status()
        if status is None:
            return _table(f"cluster {self.address}", rows)
        used = status.total - status.free
        rows += [
            ("CPUs in use", f"{used.cpu:g} of {status.total.cpu:g}"),
            ("GPUs in use", f"{used.gpu:g} of {status.total.gpu:g}" if status.total.gpu else ""),
            ("actors", f"{status.leases}, {status.waiting} waiting for resources"),
            ("nodes", f"{status.node_count}" + (f", {len(status.lost)} lost" if status.lost else "")),
        ]
        nodes = [
            (
                node.name or node.node_id,
                ", ".join(node.addresses),
                f"lost: {node.cause}" if node.lost_at is not None else _state(node),
                f"{node.total.cpu - node.free.cpu:g} of {node.total.cpu:g}",
                str(node.leases),
                f"{node.memory_free / _MIB:.0f} MiB",
            )
            for node in (*status.nodes, *status.lost)
        ]
        heads = ("node", "address", "state", "CPUs", "actors", "memory free")
        return _table(f"cluster {self.address}", rows) + _grid(heads, nodes[:_MOST_NODES])


class Bar(Protocol):
    """A progress bar, as of tqdm."""

    def update(self, n: int, /) -> object:
        """Count further results."""

    def close(self) -> object:
        """Show the last count and end; a second call does nothing."""


class NoBar:
    """A progress bar that displays nothing."""

    def update(self, n: int, /) -> None:
        """Count nothing."""

    def close(self) -> None:
        """Show nothing."""


def length_of(items: Any) -> int | None:
    """Return the number of items of an iterable; None if it is not known."""
    try:
        return len(items)
    except Exception:  # it has none, as an iterator, or tqdm's around one; or it is longer than `len` can tell
        return None


def progress_bar(progress: bool | str, total: int | None) -> Bar:
    """Return the progress bar of a map over `total` items; None if their number is not known."""
    if not progress:
        return NoBar()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        _log.warning("progress is not shown: it needs tqdm; pip install tqdm")
        return NoBar()
    bar: Bar = tqdm(total=total, desc=progress if isinstance(progress, str) else None)
    return bar


def _state(node: NodeStatus) -> str:
    """Return the state of a node of the cluster; a drained one that is still there is the master's own."""
    if not node.is_draining:
        return "up"
    return "draining" if node.leases else "drained"


def _methods(cls: type, names: Sequence[str]) -> str:
    shown = []
    for name in [one for one in names if not one.startswith("_")][:_MOST_METHODS]:
        try:
            parameters = list(inspect.signature(getattr(cls, name)).parameters.values())[1:]
        except (TypeError, ValueError, AttributeError):
            parameters = []
        shown.append(f"{name}({', '.join(parameter.name for parameter in parameters)})")
    return ", ".join(shown)


def _described(value: object) -> str:
    """Return the type of a value, and the shape of an array; its `repr` may be anything, and take any time."""
    kind = type(value).__name__
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{kind} of {dtype}, {' x '.join(map(str, shape)) or 'no dimensions'}"
    if isinstance(value, (bool, int, float, type(None))):
        return repr(value)
    if isinstance(value, str):
        return _clip(repr(value))
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return f"{kind} of {len(value)}"
    return kind


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{_escaped(name)}</th><td style="text-align:left">{_escaped(text)}</td></tr>'
        for name, text in rows
        if text
    )
    return f"<table><thead><tr><th colspan=2>{_escaped(title)}</th></tr></thead><tbody>{cells}</tbody></table>"


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escaped(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPED)
