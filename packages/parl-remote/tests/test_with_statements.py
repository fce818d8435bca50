"""`with` and `for` over remote objects: the object itself stays in its actor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import parl_remote


@parl_remote.remote_class
class Session:
    """Cannot be sent anywhere, as it holds a lock; counts down when it is iterated over."""

    def __init__(self, forgive: type[BaseException] | None = None) -> None:
        self.lock = threading.Lock()
        self.forgive = forgive
        self.left_with: tuple[Any, ...] = ()
        self.open = False
        self.count = 3

    def __enter__(self) -> Session:
        self.open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        self.open = False
        self.left_with = (kind and kind.__name__, str(error), traceback)
        return self.forgive is not None and isinstance(error, self.forgive)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.count:
            raise StopIteration
        self.count -= 1
        return self.count


class _Stubborn(Exception):
    """Cannot be sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def test_what_with_gives_is_the_remote_object(anywhere: str) -> None:
    session = Session()
    with session as entered:
        assert entered is session
        assert entered.open
    assert not session.open
    assert session.left_with == (None, "None", None)


def test_an_exception_in_the_body_is_shown_to_the_object_and_raised(anywhere: str) -> None:
    session = Session()
    with pytest.raises(KeyError, match="lost") as raised, session:
        raise KeyError("lost")
    assert raised.value.__context__ is None
    assert session.left_with == ("KeyError", "'lost'", None)


def test_an_object_may_swallow_the_exception(anywhere: str) -> None:
    with Session(forgive=KeyError):
        raise KeyError("lost")


def test_an_exception_that_cannot_be_sent_is_shown_as_what_it_says(anywhere: str) -> None:
    session = Session()
    with pytest.raises(_Stubborn), session:
        raise _Stubborn("no way")
    assert session.left_with == ("RemoteError", "_Stubborn: no way", None)


def test_an_object_that_is_its_own_iterator_counts_in_its_actor(anywhere: str) -> None:
    session = Session()
    assert list(session) == [2, 1, 0]
    assert session.count == 0
