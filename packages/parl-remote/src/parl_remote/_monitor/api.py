"""The JSON API, version 1, with all the data of the pages. `docs/how-to/monitor.md` describes it.

    GET  /api/v1/                             what there is
    GET  /api/v1/session                      who asks, and the token that changes need
    GET  /api/v1/cluster [/history]           totals, what waits for resources and why
    GET  /api/v1/nodes [/<id> [/history]]     one page of nodes; /nodes/map: all of them, short
    POST /api/v1/nodes/<id>/acknowledge       take a lost node off the list
    GET  /api/v1/actors [/<id> [/history, /log]]
    POST /api/v1/actors/<id>/stack, /kill
    GET  /api/v1/drivers
    GET  /api/v1/deaths [/<id>]
    GET  /api/v1/events                       one page of events, the latest first; ?after=<number>: those since then

A failed request is answered by `{"error": reason}` with a matching status. Unknown numbers are null.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flask import Blueprint, abort, g, jsonify, request
from flask.typing import ResponseReturnValue

from parl_remote._monitor.model import (
    ActorInfo,
    DeathInfo,
    DriverInfo,
    EventInfo,
    NodeInfo,
    Snapshot,
    Source,
    SourceError,
    Unknown,
    Unreachable,
)
from parl_remote._monitor.store import Store, View

__all__ = ["BadQuery", "Listing", "RowQuery", "make_api", "query_of"]

Row = TypeVar("Row")

_MOST_A_PAGE = 500  # more than a page shows well, few enough to be made in milliseconds


class BadQuery(ValueError):
    """A query names an unknown field or an invalid value; the message lists the valid ones."""


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A parsed query.

    Attributes:
        text: Words that must all occur in a row's texts, in any case.
        sort: The field to sort by.
        descending: Whether the largest comes first.
        page: The number of the page, from 1.
        per_page: Rows on a page.
        exact: Fields and the value that each must have.
    """

    text: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 1
    per_page: int = 50
    exact: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of a listing; `total` is the number of matching rows, `all` that of all rows."""

    rows: list[Row]
    total: int
    all: int
    page: int
    pages: int


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """The search and sort keys of one kind of row.

    Attributes:
        texts: Returns the texts in which words are searched.
        keys: Fields to sort by.
        exact: Fields that can be matched exactly.
        default: Field and direction of a query without sort order.

    Equal rows keep their order, so that pages do not overlap.
    """

    texts: Callable[[Row], Sequence[str]]
    keys: Mapping[str, Callable[[Row], Any]]
    exact: Mapping[str, Callable[[Row], str]]
    default: tuple[str, bool]

    def pick(self, rows: Sequence[Row], query: RowQuery) -> Page[Row]:
        """Return the requested page; the last one if it is beyond the end.

        Raises:
            BadQuery: There is no such field.
        """
        name, descending = (query.sort, query.descending) if query.sort else self.default
        if name not in self.keys:
            raise BadQuery(f"cannot sort by {name!r}; there are {', '.join(self.keys)}")
        matching = self._matching(rows, query)
        values = list(map(self.keys[name], matching))
        known = [i for i, value in enumerate(values) if value is not None]
        known.sort(key=values.__getitem__, reverse=descending)
        unknown = [i for i, value in enumerate(values) if value is None]  # come last in either order
        ordered = [matching[i] for i in known + unknown]
        pages = max(1, -(-len(ordered) // query.per_page))
        page = min(query.page, pages)
        start = (page - 1) * query.per_page
        return Page(ordered[start : start + query.per_page], len(ordered), len(rows), page, pages)

    def _matching(self, rows: Sequence[Row], query: RowQuery) -> list[Row]:
        matching = list(rows)
        for name, value in query.exact.items():
            matching = [row for row in matching if self.exact[name](row) == value]
        for word in query.text.casefold().split():
            matching = [row for row in matching if any(word in text.casefold() for text in self.texts(row))]
        return matching


def query_of(arguments: Mapping[str, str], exact: Sequence[str]) -> RowQuery:
    """Return the parsed query string.

    Args:
        arguments: `q`, `sort`, `order` ("asc" or "desc"), `page`, `per_page` and the fields of `exact`.
        exact: Names of fields that can be matched exactly.

    Raises:
        BadQuery: A number or an order is invalid.
    """
    order = arguments.get("order", "asc")
    if order not in {"asc", "desc"}:
        raise BadQuery(f"order is 'asc' or 'desc', not {order[:40]!r}")
    return RowQuery(
        text=arguments.get("q", "")[:200],
        sort=arguments.get("sort", ""),
        descending=order == "desc",
        page=_number(arguments, "page", 1, 10**6),
        per_page=_number(arguments, "per_page", 50, _MOST_A_PAGE),
        exact={name: arguments[name] for name in exact if arguments.get(name)},
    )


def _number(arguments: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = arguments.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise BadQuery(f"{name} is a whole number from 1 to {most}, not {text[:40]!r}")
    return int(text)


NODES: Listing[NodeInfo] = Listing(
    texts=lambda row: (row.name, row.label, row.node_id, row.address, row.state, row.cause, *row.labels),
    keys={
        "name": lambda row: row.name,
        "state": lambda row: row.state,
        "cpu": lambda row: row.cpu_busy,
        "cpus_used": lambda row: row.cpus_used,
        "memory": lambda row: row.memory_used,
        "gpu": lambda row: row.gpu_busy,
        "gpus_used": lambda row: row.gpus_used,
        "actors": lambda row: row.actors,
        "load": lambda row: row.load,
        "silent": lambda row: row.silent_s,
    },
    exact={"state": lambda row: row.state},
    default=("name", False),
)

ACTORS: Listing[ActorInfo] = Listing(
    texts=lambda row: (row.class_name, row.name, row.actor_id, row.owner_name, row.node_name, row.running),
    keys={
        "state": lambda row: row.state,
        "class": lambda row: row.class_name.casefold(),
        "name": lambda row: row.name.casefold() or None,
        "owner": lambda row: row.owner_name.casefold() or None,
        "node": lambda row: row.node_name,
        "calls": lambda row: row.calls_per_s,
        "busy": lambda row: row.busy,
        "queued": lambda row: row.queued,
        "cpu": lambda row: row.cpu,
        "memory": lambda row: row.memory,
        "age": lambda row: -row.started_at,
        "errors": lambda row: row.errors,
    },
    exact={
        "state": lambda row: row.state,
        "node": lambda row: row.node_id,
        "owner": lambda row: row.owner_id,
        "class": lambda row: row.class_name,
    },
    default=("age", False),
)

DRIVERS: Listing[DriverInfo] = Listing(
    texts=lambda row: (row.name, row.client_id, row.host),
    keys={
        "name": lambda row: row.name.casefold(),
        "pid": lambda row: row.pid,
        "host": lambda row: row.host,
        "actors": lambda row: row.actors,
        "waiting": lambda row: row.waiting,
        "since": lambda row: row.since,
    },
    exact={},
    default=("name", False),
)

DEATHS: Listing[DeathInfo] = Listing(
    texts=lambda row: (row.class_name, row.name, row.actor_id, row.owner_name, row.node_name, row.text),
    keys={
        "at": lambda row: row.at,
        "class": lambda row: row.class_name.casefold(),
        "kind": lambda row: row.kind,
        "node": lambda row: row.node_name,
        "owner": lambda row: row.owner_name.casefold() or None,
    },
    exact={
        "kind": lambda row: row.kind,
        "node": lambda row: row.node_id,
        "expected": lambda row: "yes" if row.expected else "no",
    },
    default=("at", True),
)


EVENTS: Listing[EventInfo] = Listing(
    texts=lambda row: (row.text, row.kind, row.node_name, row.node_id, row.actor_id, row.owner_name),
    keys={
        "at": lambda row: (row.at, row.number),
        "kind": lambda row: row.kind,
        "node": lambda row: row.node_name or None,
    },
    exact={
        "kind": lambda row: row.kind,
        "node": lambda row: row.node_id,
        "actor": lambda row: row.actor_id,
    },
    default=("at", True),
)


_WINDOW_S = (10.0, 900.0, 24 * 3600.0)  # least, default, most
_LOG_BYTES = 64 * 1024  # bytes; a screen is some kilobytes, and a following page asks every second or two
_SPARK_POINTS = 40


def make_api(store: Store, source: Source) -> Blueprint:
    """Return the API as a blueprint.

    Args:
        store: The data of the cluster.
        source: The source of logs and stacks, and the target of kills.
    """
    api = Blueprint("api", __name__, url_prefix="/api/v1")

    def view() -> View:
        found = store.view()
        if found is None:
            abort(503, f"nothing is known of the cluster yet: {store.health().reason}")
        return found

    def snapshot() -> Snapshot:
        return view().snapshot

    @api.get("/")
    def index() -> ResponseReturnValue:
        lines = [line.split(None, 2) for line in (__doc__ or "").splitlines() if "/api/v1/" in line]
        return jsonify(endpoints=[" ".join(parts) for parts in lines])

    @api.get("/session")
    def session() -> ResponseReturnValue:
        visitor = g.visitor
        csrf = visitor.session.csrf if visitor.session is not None else None
        return jsonify(signed_in=visitor.known, csrf=csrf, open=visitor.is_owner)

    @api.get("/cluster")
    def cluster() -> ResponseReturnValue:
        found, health = view(), store.health()
        return jsonify(
            at=found.snapshot.at,
            healthy=health.ok,
            age_s=health.age_s,
            reason=health.reason,
            cluster=found.snapshot.cluster,
            totals=found.totals,
            waiting=found.snapshot.waiting[:100],
            deaths=[_short(death) for death in store.deaths()[:-9:-1]],
            lost=[_fields(node) for node in found.snapshot.nodes if node.is_lost][:-9:-1],
        )

    @api.get("/cluster/history")
    def cluster_history() -> ResponseReturnValue:
        return jsonify(store.cluster_history(_window()))

    @api.get("/nodes")
    def nodes() -> ResponseReturnValue:
        page = _pick(NODES, snapshot().nodes)
        rows = [_fields(node) | {"gpu_busy": node.gpu_busy} for node in page.rows]
        if request.args.get("spark"):
            for row in rows:
                history = store.node_history(row["node_id"], _window(), _SPARK_POINTS) or {}
                row["spark"] = {name: history.get(name, []) for name in ("cpu", "memory")}
        return _listing(page, rows)

    @api.get("/nodes/map")
    def node_map() -> ResponseReturnValue:
        return jsonify(
            columns=["node_id", "name", "state", "cpu", "memory", "gpu", "actors", "cpus_used", "cpus"],
            nodes=[
                (
                    node.node_id,
                    node.label or node.name,
                    node.state,
                    _rounded(node.cpu_busy),
                    _rounded(node.memory_used / node.memory_total if node.memory_used and node.memory_total else None),
                    _rounded(node.gpu_busy),
                    node.actors,
                    node.cpus_used,
                    node.cpus,
                )
                for node in snapshot().nodes
            ],
        )

    @api.get("/nodes/<node_id>")
    def node(node_id: str) -> ResponseReturnValue:
        found = view().nodes.get(node_id) or abort(404, f"there is no node {node_id}")
        return jsonify(_fields(found) | {"gpu_busy": found.gpu_busy})

    @api.get("/nodes/<node_id>/history")
    def node_history(node_id: str) -> ResponseReturnValue:
        history = store.node_history(node_id, _window())
        return jsonify(history if history is not None else abort(404, f"there never was a node {node_id}"))

    @api.post("/nodes/<node_id>/acknowledge")
    def acknowledge(node_id: str) -> ResponseReturnValue:
        _do(lambda: source.acknowledge(node_id))
        return jsonify(acknowledged=node_id)

    @api.get("/actors")
    def actors() -> ResponseReturnValue:
        found = view()
        page = _pick(ACTORS, found.snapshot.actors)
        rows = [_with_age(actor, found.snapshot.at) for actor in page.rows]
        return _listing(page, rows, states=found.totals.states)

    @api.get("/actors/<actor_id>")
    def actor(actor_id: str) -> ResponseReturnValue:
        found = view()
        one = found.actors.get(actor_id)
        if one is None:
            death = store.death(actor_id)
            abort(410 if death else 404, f"actor {actor_id} has ended" if death else f"there is no actor {actor_id}")
        return jsonify(_with_age(one, found.snapshot.at))

    @api.get("/actors/<actor_id>/history")
    def actor_history(actor_id: str) -> ResponseReturnValue:
        history = store.actor_history(actor_id, _window())
        return jsonify(history if history is not None else abort(404, f"nothing is known of actor {actor_id}"))

    @api.get("/actors/<actor_id>/log")
    def actor_log(actor_id: str) -> ResponseReturnValue:
        position = request.args.get("position", "")
        if position and not (position.isascii() and position.isdigit() and len(position) < 16):
            abort(400, "position is the number that the answer before had")
        chunk = _do(lambda: source.read_log(actor_id, int(position) if position else None, _LOG_BYTES))
        return jsonify(chunk)

    @api.post("/actors/<actor_id>/stack")
    def stack(actor_id: str) -> ResponseReturnValue:
        return jsonify(text=_do(lambda: source.dump_stack(actor_id)))

    @api.post("/actors/<actor_id>/kill")
    def kill(actor_id: str) -> ResponseReturnValue:
        body = request.get_json(silent=True)
        reason = body.get("reason", "") if isinstance(body, dict) else ""
        text = " ".join(str(reason).split())[:200]
        _do(lambda: source.kill(actor_id, f"in the monitor: {text}" if text else "in the monitor"))
        return jsonify(killed=actor_id)

    @api.get("/drivers")
    def drivers() -> ResponseReturnValue:
        page = _pick(DRIVERS, snapshot().drivers)
        return _listing(page, [_fields(driver) for driver in page.rows])

    @api.get("/deaths")
    def deaths() -> ResponseReturnValue:
        page = _pick(DEATHS, store.deaths())
        return _listing(page, [_short(death) for death in page.rows])

    @api.get("/events")
    def events() -> ResponseReturnValue:
        page = _pick(EVENTS, [event for event in store.events() if event.number > _after()])
        return _listing(page, [_fields(event) for event in page.rows])

    @api.get("/deaths/<actor_id>")
    def death(actor_id: str) -> ResponseReturnValue:
        found = store.death(actor_id)
        return jsonify(found if found is not None else abort(404, f"no death of an actor {actor_id} is on record"))

    return api


def _pick(listing: Listing[Row], rows: Any) -> Page[Row]:
    try:
        return listing.pick(rows, query_of(request.args, tuple(listing.exact)))
    except BadQuery as error:
        abort(400, str(error))


def _listing(page: Page[Any], rows: list[dict[str, Any]], **more: Any) -> ResponseReturnValue:
    return jsonify(rows=rows, total=page.total, all=page.all, page=page.page, pages=page.pages, **more)


def _do(action: Callable[[], Row]) -> Row:
    try:
        return action()
    except Unknown as error:
        abort(404, str(error))
    except Unreachable as error:
        abort(504, str(error))
    except SourceError as error:
        abort(409, str(error))


def _window() -> float:
    least, default, most = _WINDOW_S
    text = request.args.get("window", "")
    try:
        window_s = float(text) if text else default
    except ValueError:
        window_s = -1.0
    if not least <= window_s <= most:
        abort(400, f"window is a number of seconds from {least:g} to {most:g}, not {text[:40]!r}")
    return window_s


def _after() -> int:
    text = request.args.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        abort(400, "after is the number of an event")
    return int(text)


def _fields(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def _with_age(actor: ActorInfo, at: float) -> dict[str, Any]:
    return _fields(actor) | {"age_s": max(0.0, at - actor.started_at)}


def _short(death: Any) -> dict[str, Any]:
    fields = _fields(death)
    del fields["log_tail"], fields["memory_curve"]
    return fields


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
