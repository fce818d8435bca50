"""What a master tells of its cluster, page by page, and which actor or node a person means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import click

from parl_remote.death import DeathRecord
from parl_remote.links.inquiry import Inquiry
from parl_remote.messages.overview import (
    ActorList,
    ActorStatus,
    Deaths,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeDetail,
    NodeList,
)

__all__ = ["actors_of", "begins", "deaths_of", "find_actor", "find_actor_or_death", "nodes_of", "short_id"]

_Actor = TypeVar("_Actor", ActorStatus, DeathRecord)

_SHOWN = 8  # of an id's 16 digits: enough among thousands, and prefixes need not be longer
_FEWEST = 4  # digits that stand for an id: an actor called "b" that has ended shall not become one with an id in b
_CANDIDATES = 10


def short_id(whole: str) -> str:
    """An actor's or node's id as tables show it; commands take it as well."""
    return whole.partition("-")[2][:_SHOWN] or whole


def begins(whole: str, text: str) -> bool:
    """Whether a text is an actor's or node's id, or enough of its beginning, with or without its kind."""
    kind, _, digits = whole.partition("-")
    given = text.removeprefix(f"{kind}-")
    return text == whole or (len(given) >= _FEWEST and digits.startswith(given))


def actors_of(master: Inquiry, *, node: str = "", client_id: str = "") -> Iterator[ActorStatus]:
    """All actors of a cluster, or of one node or client."""
    page = _page(master, 0, node, client_id)
    yield from page.actors
    while page.next is not None:
        page = _page(master, page.next, node, client_id)
        yield from page.actors


def _page(master: Inquiry, after: int, node: str, client_id: str) -> ActorList:
    return master.ask(lambda number: ListActors(number, after=after, node=node, client_id=client_id), ActorList)


def nodes_of(master: Inquiry) -> tuple[NodeDetail, ...]:
    """All workers."""
    return master.ask(ListNodes, NodeList).nodes


def deaths_of(master: Inquiry, limit: int, *, released: bool = False) -> Deaths:
    """The latest actors that were lost; with `released` also those that their programs let go of."""
    return master.ask(lambda number: ListDeaths(number, limit=limit, released=released), Deaths)


def find_actor(master: Inquiry, text: str) -> ActorStatus:
    """The running actor that a person means: by id, by the beginning of an id, by name or by a class with one actor.

    Raises:
        click.ClickException: There is none, or more than one.
    """
    found = _meant(list(actors_of(master)), text)
    if found is None:
        raise click.ClickException(f"there is no actor {text!r}{_rule(text)}; xparl list shows those that there are")
    return found


def find_actor_or_death(master: Inquiry, text: str) -> ActorStatus | DeathRecord:
    """The same, also among actors that have ended; the latest of those if none runs.

    Raises:
        click.ClickException: There is none, or more than one.
    """
    running = _meant(list(actors_of(master)), text)
    if running is not None:
        return running
    deaths = deaths_of(master, 1000, released=True).deaths
    by_name = next((death for death in deaths if death.name == text), None)
    ended = by_name or _meant(list(deaths), text)
    if ended is None:
        raise click.ClickException(
            f"there is no actor {text!r}, nor has one ended lately{_rule(text)}; "
            "xparl list and xparl list deaths show which"
        )
    return ended


def _rule(text: str) -> str:
    return f" (of an id at least {_FEWEST} digits are needed)" if len(text) < _FEWEST else ""


def _meant(actors: list[_Actor], text: str) -> _Actor | None:
    if not text:  # which is the name of all that have none
        return None
    for actor in actors:
        if text in {actor.lease_id, actor.name}:
            return actor
    found = [one for one in actors if begins(one.lease_id, text)]
    found = found or [one for one in actors if one.class_name == text]
    if len(found) > 1:
        shown = ", ".join(f"{short_id(one.lease_id)} ({one.class_name})" for one in found[:_CANDIDATES])
        more = f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
        raise click.ClickException(f"{text!r} may be any of {len(found)} actors: {shown}{more}; say more of the id")
    return found[0] if found else None
