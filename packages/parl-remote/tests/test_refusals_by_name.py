"""Values that cannot be sent are named by their place, however deep inside an argument or a result."""

from __future__ import annotations

import dataclasses
import functools
import logging
import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import parl_remote
from parl_remote import SerializationError


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Config:
    name: str
    extra: Any


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


@parl_remote.remote_class
class Taker:
    def take(self, config: Any) -> str:
        return type(config).__name__

    def give(self, path: str, kind: str) -> Any:
        makers: dict[str, Any] = {
            "file": functools.partial(open, path),
            "lock": threading.Lock,
            "generator": lambda: (number for number in range(3)),
            "pipe": lambda: multiprocessing.Pipe()[0],
        }
        return {"fine": 1, "bad": [0, makers[kind]()]}


def generated() -> Any:
    yield 1


WRAPPED = [
    (lambda bad: {"a": 1, "b": bad}, "config['b']"),
    (lambda bad: [1, [2, (3, bad)]], "config[1][1][1]"),
    (lambda bad: {"a": [Config("x", {"deep": bad})]}, "config['a'][0].extra['deep']"),
    (lambda bad: Pair(1, bad), "config.right"),
    (lambda bad: Slotted([bad]), "config.inner[0]"),
    (lambda bad: functools.partial(print, 1, file=bad), "config.keywords['file']"),
    (lambda bad: lambda: bad, "bad in config"),
]


@pytest.mark.parametrize(("wrap", "where"), WRAPPED, ids=[where for _, where in WRAPPED])
@pytest.mark.parametrize("kind", ["file", "binary file", "lock", "reentrant lock", "generator"])
def test_what_is_inside_an_argument_is_named(
    shared_cluster: None, tmp_path: Path, wrap: Any, where: str, kind: str
) -> None:
    path = tmp_path / "some.log"
    path.write_text("text")
    with open(path) as text, open(path, "rb") as binary:
        bad, said = {
            "file": (text, f"an open file ({str(path)!r})"),
            "binary file": (binary, f"an open file ({str(path)!r})"),
            "lock": (threading.Lock(), "a lock"),
            "reentrant lock": (threading.RLock(), "a lock"),
            "generator": (generated(), "a generator (generated)"),
        }[kind]
        with pytest.raises(SerializationError) as refused:
            Taker().take(wrap(bad))
    assert f"{where} is {said}; " in str(refused.value)
    assert "argument 'config' (a " in str(refused.value)


def test_a_file_that_is_the_argument_itself_is_refused(shared_cluster: None, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file, pytest.raises(SerializationError, match="config is an open file"):
        Taker().take(file)


@pytest.mark.parametrize("kind", ["file", "lock", "generator", "pipe"])
def test_what_is_inside_a_result_is_named(shared_cluster: None, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        SerializationError, match=r"it\['bad'\]\[1\] is (an open file|a lock|a generator|a Connection)"
    ) as refused:
        Taker().give(str(tmp_path / "file"), kind)
    assert "cannot be sent back" in str(refused.value)


def test_standard_streams_and_loggers_travel(shared_cluster: None) -> None:
    taker = Taker()
    assert taker.take({"logger": logging.getLogger("x")}) == "dict"
    if sys.stdout is sys.__stdout__:  # pytest may have put a file in its place
        assert taker.take([sys.stdout]) == "list"


def test_a_value_that_holds_itself_and_a_lock_is_refused(shared_cluster: None) -> None:
    own: dict[str, Any] = {"lock": threading.Lock()}
    own["own"] = own
    with pytest.raises(SerializationError, match=r"config\['lock'\] is a lock"):
        Taker().take(own)


def test_what_refuses_to_travel_is_named_and_not_what_it_holds(shared_cluster: None) -> None:
    with pytest.raises(SerializationError, match=r"config\.left is a Refuses; TypeError: this one stays here"):
        Taker().take(Pair(Refuses(), 1))


class Refuses:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("this one stays here")
