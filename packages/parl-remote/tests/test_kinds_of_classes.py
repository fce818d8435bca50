"""Classes of every kind reach an actor although their module, which was loaded from a path, can be imported nowhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import parl_remote
from parl_remote._data import serialize

KINDS = """
import abc, collections, dataclasses, enum, typing
from typing import Generic, NamedTuple, NewType, Protocol, Required, TypedDict, TypeVar, runtime_checkable

T = TypeVar("T")

class Point(NamedTuple):
    x: int
    y: int = 3
    def norm(self): return self.x**2 + self.y**2

class Farther(Point):
    def more(self): return self.norm() + 1

class Pair(NamedTuple, Generic[T]):
    left: T
    right: T

Old = collections.namedtuple("Old", "a b")

class OldChild(Old):
    __slots__ = ()
    def total(self): return self.a + self.b

@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    b: list = dataclasses.field(default_factory=list)
    def total(self): return self.a + len(self.b)

@dataclasses.dataclass(slots=True)
class SlottedChild(Slotted):
    c: int = 5
    def total(self): return Slotted.total(self) + self.c

@dataclasses.dataclass(frozen=True, order=True, kw_only=True)
class Frozen:
    a: int = 1

class Colour(enum.Enum):
    RED = 1
    BLUE = "b"
    def low(self): return self.name.lower()

class Bits(enum.IntFlag):
    A = enum.auto()
    B = enum.auto()

class Box(Generic[T]):
    __slots__ = ("value",)
    def __init__(self, value: T): self.value = value

class IntBox(Box[int]):
    pass

class Some(TypedDict, total=False):
    a: int

class More(Some):
    b: Required[str]

class Typed(TypedDict, Generic[T]):
    a: T

@runtime_checkable
class Goes(Protocol[T]):
    def go(self) -> T: ...

class Abstract(abc.ABC):
    __slots__ = ("q",)
    @property
    @abc.abstractmethod
    def p(self): ...

class Concrete(Abstract, Goes[int]):
    def __init__(self): self.q = 4
    @property
    def p(self): return self.q
    def go(self): return 8

class Meta(type):
    def __new__(meta, name, bases, content, tag=None):
        made = super().__new__(meta, name, bases, content)
        made.tag = tag
        return made
    def __init__(cls, name, bases, content, tag=None): super().__init__(name, bases, content)

class Tagged(metaclass=Meta, tag="t"):
    pass

UserId = NewType("UserId", int)

class Around:
    class Inner(NamedTuple):
        z: int
"""

# name: how to make one, and what is asked of it (`o`) and of its class (`C`)
CASES = {
    "Point": ("C(1, 2)", "(o.norm(), o.x, tuple(o), C(5).y, o._replace(x=9), C._fields, o == (1, 2), C.__slots__)"),
    "Farther": ("C(1, 2)", "(o.more(), o)"),
    "Pair": ("C('a', 'b')", "(o.right, C[int])"),
    "Old": ("C(1, 2)", "o._asdict()"),
    "OldChild": ("C(1, 2)", "(o.total(), hasattr(o, '__dict__'))"),
    "Slotted": ("C(1, [2])", "(o.total(), hasattr(o, '__dict__'), dataclasses.asdict(o), dataclasses.replace(o, a=7))"),
    "SlottedChild": ("C(1, [2])", "(o.total(), hasattr(o, '__dict__'), [f.name for f in dataclasses.fields(o)])"),
    "Frozen": ("C(a=3)", "(o < C(a=4), hash(o) == hash(C(a=3)))"),
    "Colour": ("C.RED", "(o.low(), o is C.RED, C('b'), C['BLUE'], list(C))"),
    "Bits": ("C.A | C.B", "(o, C.A in o, ~C.A, int(o))"),
    "Box": ("C(3)", "(o.value, C[int](4).value, hasattr(o, '__dict__'))"),
    "IntBox": ("C(3)", "(o.value, C.__orig_bases__)"),
    "Some": ("C(a=1)", "(o, C.__total__, C.__optional_keys__)"),
    "More": ("C(a=1, b='x')", "(o, C.__required_keys__, C.__optional_keys__, sorted(typing.get_type_hints(C)))"),
    "Typed": ("C(a=1)", "(o, C[int])"),
    "Goes": ("here.Concrete()", "(isinstance(o, C), isinstance(3, C), C[int])"),
    "Abstract": ("here.Concrete()", "(isinstance(o, C), C.__abstractmethods__, o.p)"),
    "Concrete": ("C()", "(o.p, o.go())"),
    "Tagged": ("C()", "(C.tag, type(C).__name__)"),
    "UserId": ("C(3)", "(o, C.__name__, C.__supertype__)"),
    "Around.Inner": ("C(3)", "(o.z, C._fields)"),
}

USER = """
class Actor:
    def ask(self):
        return here.Point(1, 2).norm(), here.Colour.BLUE.low(), here.Slotted(1).total(), here.More(b="x")
    def point(self):
        return here.Point(7)
"""


def load(path: Path, name: str, source: str) -> ModuleType:
    """A module of which no directory on `sys.path` knows."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load(tmp_path_factory.mktemp("kinds") / "kinds.py", "kinds_off_the_path", KINDS)


@parl_remote.remote_class
class Prober:
    def ask(self, found: Any, value: Any, question: str) -> str:
        import dataclasses
        import typing

        return repr(eval(question, {"C": found, "o": value, "dataclasses": dataclasses, "typing": typing}))

    def echo(self, value: Any) -> Any:
        return value

    def call(self, function: Callable[[], Any]) -> Any:
        return function()


@pytest.fixture(scope="module")
def prober() -> Any:
    parl_remote.connect(cpu_num=2)
    yield Prober()
    parl_remote.disconnect()


@pytest.mark.usefixtures("unconnected")
@pytest.mark.parametrize("name", CASES)
def test_a_class_that_travels_only_as_an_argument_is_there_what_it_is_here(
    name: str, kinds: ModuleType, prober: Any
) -> None:
    make, question = CASES[name]
    found: Any = kinds
    for part in name.split("."):
        found = getattr(found, part)
    value = eval(make, {"C": found, "here": kinds})
    expected = repr(eval(question, {**vars(kinds), "C": found, "o": value}))
    assert prober.ask(found, value, question) == expected
    back = prober.echo(value)
    assert type(back) is type(value)
    assert prober.echo(found) is found or name == "UserId"


@pytest.mark.usefixtures("unconnected")
def test_functions_and_closures_of_such_a_module_travel_too(tmp_path: Path, prober: Any) -> None:
    source = "BASE = 3\ndef deep(): return BASE + 1\ndef outer():\n    return lambda: deep() * 2\n"
    module = load(tmp_path / "functions.py", "functions_off_the_path", source)
    assert prober.call(module.deep) == 4
    assert prober.call(module.outer()) == 8


@pytest.mark.usefixtures("unconnected")
def test_an_actor_s_own_class_may_use_another_such_module(kinds: ModuleType, tmp_path: Path, prober: Any) -> None:
    del prober  # which is connected
    user = load(tmp_path / "user.py", "user_off_the_path", "import kinds_off_the_path as here\n" + USER)
    actor = parl_remote.remote_class(user.Actor)()
    assert actor.ask() == (5, "blue", 1, {"b": "x"})
    assert actor.point() == kinds.Point(7)


def test_modules_that_can_be_imported_go_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "on_the_path.py").write_text("class Thing: pass\n")
    (tmp_path / "in_a_package").mkdir()
    (tmp_path / "in_a_package" / "__init__.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("on_the_path", "in_a_package"):
        module = __import__(name)
        (frame,) = serialize.dumps_arguments((module.Thing(),), {}, "Actor.run", list)
        assert len(bytes(frame)) < 80  # a name, no code


def test_looking_for_new_modules_costs_a_call_next_to_nothing(run_program: Any) -> None:
    program = """
import timeit, numpy, parl_remote, json
from parl_remote._data import serialize
args = (1, "a")
serialize.dumps_arguments(args, {}, "Actor.run", list)
looks = min(timeit.repeat(serialize.look_at_new_modules, number=1000, repeat=50))
dumps = min(timeit.repeat(lambda: serialize.dumps(args), number=1000, repeat=50))
print(looks / dumps)
"""
    done: subprocess.CompletedProcess[str] = run_program(program=program)
    assert float(done.stdout) < 0.5, done.stderr
