"""Filtering, sorting and paging of what the monitor lists: done here, so that a browser gets one page of 10,000 actors.

Pure functions over the dataclasses of `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["BadQuery", "Listing", "Page", "Wish", "wish_of"]

MOST_A_PAGE = 500  # more than anyone reads, few enough to be made in milliseconds

Row = TypeVar("Row")


class BadQuery(ValueError):
    """A query that asks for something that is not there; the message lists what is."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a query asks for.

    Attributes:
        text: Words that must all occur in a row's texts, in any case.
        sort: The field to sort by.
        descending: Whether the largest comes first.
        page: Which page, from 1.
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
    """One page of a listing; `total` rows match, `all` are there."""

    rows: list[Row]
    total: int
    all: int
    page: int
    pages: int


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """How one kind of row is searched and sorted.

    Attributes:
        texts: What words are looked for in.
        keys: Fields to sort by.
        exact: Fields that may be asked for exactly.
        default: Field and direction that a query without a wish gets.

    Rows that are equal stay in the order in which they came, so that pages do not overlap.
    """

    texts: Callable[[Row], Sequence[str]]
    keys: Mapping[str, Callable[[Row], Any]]
    exact: Mapping[str, Callable[[Row], str]]
    default: tuple[str, bool]

    def pick(self, rows: Sequence[Row], wish: Wish) -> Page[Row]:
        """The page that was asked for; one behind the last is the last.

        Raises:
            BadQuery: There is no such field.
        """
        name, descending = (wish.sort, wish.descending) if wish.sort else self.default
        if name not in self.keys:
            raise BadQuery(f"cannot sort by {name!r}; there are {', '.join(self.keys)}")
        matching = self._matching(rows, wish)
        values = list(map(self.keys[name], matching))
        known = [i for i, value in enumerate(values) if value is not None]
        known.sort(key=values.__getitem__, reverse=descending)
        unknown = [i for i, value in enumerate(values) if value is None]  # come last, whichever way is up
        ordered = [matching[i] for i in known + unknown]
        pages = max(1, -(-len(ordered) // wish.per_page))
        page = min(wish.page, pages)
        start = (page - 1) * wish.per_page
        return Page(ordered[start : start + wish.per_page], len(ordered), len(rows), page, pages)

    def _matching(self, rows: Sequence[Row], wish: Wish) -> list[Row]:
        matching = list(rows)
        for name, value in wish.exact.items():
            matching = [row for row in matching if self.exact[name](row) == value]
        for word in wish.text.casefold().split():
            matching = [row for row in matching if any(word in text.casefold() for text in self.texts(row))]
        return matching


def wish_of(arguments: Mapping[str, str], exact: Sequence[str]) -> Wish:
    """Read a query string.

    Args:
        arguments: `q`, `sort`, `order` ("asc" or "desc"), `page`, `per_page` and the fields of `exact`.
        exact: Names of fields that may be asked for exactly.

    Raises:
        BadQuery: A number or an order is none.
    """
    order = arguments.get("order", "asc")
    if order not in {"asc", "desc"}:
        raise BadQuery(f"order is 'asc' or 'desc', not {order[:40]!r}")
    return Wish(
        text=arguments.get("q", "")[:200],
        sort=arguments.get("sort", ""),
        descending=order == "desc",
        page=_number(arguments, "page", 1, 10**6),
        per_page=_number(arguments, "per_page", 50, MOST_A_PAGE),
        exact={name: arguments[name] for name in exact if arguments.get(name)},
    )


def _number(arguments: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = arguments.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise BadQuery(f"{name} is a whole number from 1 to {most}, not {text[:40]!r}")
    return int(text)
