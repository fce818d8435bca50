"""Classes on their way to actors: what cannot be sent is named, whoever uses it."""

from __future__ import annotations

import functools
import importlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parl_remote._data import ownership
from parl_remote._data.class_spec import dumps_class
from parl_remote._data.ownership import importable_elsewhere
from parl_remote.errors import SerializationError

HEAD = """
import functools, threading, json
lock = threading.Lock()
table = {"inner": lock}
def helper():
    return deeper()
def deeper():
    return lock
def around():
    handle = threading.Lock()
    class Actor:
        def run(self):
            return handle
    return Actor
class Base:
    guard = lock
"""


def made(body: str, name: str = "Actor") -> type[Any]:
    """A class of a module that no other process can import, so that it is sent by value."""
    module = types.ModuleType("made for a test")
    sys.modules[module.__name__] = module
    exec(HEAD + body, module.__dict__)
    found: type[Any] = getattr(module, name)
    return found


@pytest.mark.parametrize(
    ("body", "culprit"),
    [
        (
            "class Actor:\n def run(self): return lock",
            r"'lock' of made for a test, which Actor\.run uses \(a lock\)",
        ),
        (
            "class Actor:\n def run(self): return [lambda: table]",
            r"global 'table' .* Actor\.run uses \(a dict\)",
        ),
        ("class Actor:\n def run(self): return helper()", r"the global 'lock' of made for a test, which deeper uses"),
        ("class Actor:\n @property\n def run(self): return lock", r"the global 'lock' .* which Actor\.run uses"),
        ("class Actor:\n @staticmethod\n def run(): return lock", r"the global 'lock' .* which Actor\.run uses"),
        ("class Actor:\n @functools.cached_property\n def run(self): return lock", r"global 'lock' .* Actor\.run uses"),
        ("class Actor:\n shared = lock", r"the attribute 'shared' of Actor \(a lock\)"),
        ("class Actor(Base): pass", r"the attribute 'guard' of Base \(a lock\)"),
        ("class Actor:\n def run(self, wait=lock): pass", r"the default of 'wait' of Actor\.run \(a lock\)"),
        ("class Actor:\n def run(self): return Base", r"the attribute 'guard' of Base \(a lock\)"),
        ("Actor = around()", r"the variable 'handle' around around\.<locals>\.Actor\.run \(a lock\)"),
    ],
)
def test_what_keeps_a_class_from_being_sent_is_named(body: str, culprit: str) -> None:
    with pytest.raises(SerializationError, match=culprit) as refused:
        dumps_class(made(body))
    assert "cannot be sent to an actor: TypeError: cannot pickle" in str(refused.value)
    assert "make it inside the actor" in str(refused.value)
    assert refused.value.what


def test_a_class_that_can_be_sent_is(connect: Callable[..., None]) -> None:
    assert dumps_class(made("class Actor:\n def run(self): return json.dumps(1)"))


def test_a_module_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every actor's creation asks."""
    assert importable_elsewhere(functools)
    monkeypatch.setattr(ownership, "_find", None)
    assert importable_elsewhere(functools)


def test_a_finalizer_that_runs_when_the_interpreter_ends_finds_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", None)
    found = ownership.new_unshared_modules()
    monkeypatch.undo()
    assert found == []


def test_a_module_is_looked_for_again_once_the_path_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_later.py").touch()
    module = types.ModuleType("found_later")
    module.__file__ = str(tmp_path / "found_later.py")
    assert not importable_elsewhere(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importable_elsewhere(module)


def test_a_module_below_a_path_with_dots_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_tests.py").touch()
    (tmp_path / "tests").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "tests" / ".."))
    module = importlib.import_module("beside_the_tests")
    monkeypatch.delitem(sys.modules, "beside_the_tests")
    assert importable_elsewhere(module)


def test_a_module_without_a_file_is_found_if_its_package_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("json.made")
    monkeypatch.setitem(sys.modules, "json.made", module)
    assert not importable_elsewhere(module)
    monkeypatch.setattr(json, "made", module, raising=False)
    assert importable_elsewhere(module)
    assert not importable_elsewhere(types.ModuleType("this.json"))  # which is on the path, but not there


def test_what_a_process_expects_elsewhere_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_looked_at", set())
    before, after = (types.ModuleType(name) for name in ("not importable: before", "not importable: after"))
    before.__file__ = after.__file__ = "/nowhere/of_a_test_runner.py"
    monkeypatch.setitem(sys.modules, before.__name__, before)
    ownership.expect_elsewhere()
    monkeypatch.setitem(sys.modules, after.__name__, after)
    assert ownership.new_unshared_modules() == [after]
    assert ownership.new_unshared_modules() == []
