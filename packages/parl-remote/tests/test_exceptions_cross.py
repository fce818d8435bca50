"""Exceptions of users' methods at the caller."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.error import HTTPError

import pytest

import parl_remote
from parl_remote import RemoteCallError, SerializationError
from parl_remote._data.answers import combine, describe


class Peculiar(Exception):
    """Its constructor wants other arguments than it keeps."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(f"{place} has {number}")
        self.place = place
        self.number = number


class MadeByNew(Exception):
    """Its `__new__` wants other arguments than it keeps."""

    place: str

    def __new__(cls, _: int, place: str) -> MadeByNew:
        made = super().__new__(cls)
        made.place = place
        return made

    def __init__(self, number: int, place: str) -> None:
        super().__init__(number)


class Prepared(Exception):
    """Its `__new__` prepares what cannot be sent, and its constructor wants other arguments than it keeps."""

    _lock: Any

    def __new__(cls, *args: object) -> Prepared:
        made = super().__new__(cls, *args)
        made._lock = threading.Lock()
        return made

    def __init__(self, place: str, number: int) -> None:
        super().__init__(place)

    def __str__(self) -> str:
        return f"{self.args[0]}, locked: {self._lock.locked()}"


class Grouped(ExceptionGroup[Exception]):
    """A group with something more, as the standard library's documentation makes one."""

    code: int

    def __new__(cls, exceptions: list[Exception], code: int) -> Grouped:
        made = super().__new__(cls, "several", exceptions)
        made.code = code
        return made

    def derive(self, exceptions: Any) -> Any:
        return Grouped(exceptions, self.code)


class Slotted(Exception):
    __slots__ = ("__shelf", "place")

    def __init__(self, place: str) -> None:
        super().__init__(f"at {place}")
        self.place = place
        self.__shelf = f"shelf of {place}"

    @property
    def shelf(self) -> str:
        return self.__shelf


class Rebuilt(Exception):
    """Says itself how it is pickled."""

    def __init__(self, *, key: int) -> None:
        super().__init__(key)
        self.key = key

    def __reduce__(self) -> Any:
        return rebuilt, (self.key,)


def rebuilt(key: int) -> Rebuilt:
    return Rebuilt(key=key)


class Final(Exception):
    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("no subclasses")


class Detailed(OSError):
    """A built-in exception with a constructor of its own."""

    def __init__(self, place: str, *, number: int) -> None:
        super().__init__(number, "is missing", place)


class DetailedLater(OSError):
    """The same, whose constructor does not call the one of its base."""

    def __init__(self, place: str, number: int) -> None:
        self.filename = place
        self.number = number


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@parl_remote.remote_class
class Raiser:
    def __init__(self, make_error: Callable[[], Exception] | None = None) -> None:
        self.calls = 0
        if make_error is not None:
            raise make_error()

    def throw(self, make_error: Callable[[], BaseException]) -> None:
        self.calls += 1
        raise make_error()

    def divide(self, number: int) -> float:
        return self._inner(number)

    def _inner(self, number: int) -> float:
        return 1 / number

    def chained(self) -> None:
        try:
            self._inner(0)
        except ZeroDivisionError as error:
            raise ValueError("wrapped") from error

    def unpicklable(self) -> None:
        raise Unpicklable("holds a lock")

    def leave(self) -> None:
        sys.exit(3)

    def count(self) -> int:
        return self.calls


class Hidden(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)


class ExitsAsText(Exception):
    def __str__(self) -> str:
        sys.exit(3)


class ExitsWhenPickled:
    def __reduce__(self) -> Any:
        sys.exit(3)


@pytest.mark.parametrize(
    ("make_error", "expected"),
    [
        (lambda: Hidden("no attribute"), RemoteCallError),
        (lambda: ExitsAsText("text"), ExitsAsText),
        (lambda: ValueError(ExitsWhenPickled()), ValueError),
    ],
)
def test_an_exception_whose_own_code_fails_does_not_end_the_actor(
    shared_cluster: None, make_error: Callable[[], Exception], expected: type[Exception]
) -> None:
    raiser = Raiser()
    with pytest.raises(expected):
        raiser.throw(make_error)
    assert raiser.count() == 1


HIDDEN = ("__name__", "__qualname__", "__module__", "__mro__", "__dict__")


def hiding(*names: str) -> type[Exception]:
    """A class of exceptions whose metaclass raises for attributes of the class."""

    class Hiding(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in names:
                raise LookupError("it is hidden")
            return super().__getattribute__(name)

    made: Any = Hiding("Shy", (Exception,), {"__module__": "a_module"})
    return made


@parl_remote.remote_class
class Shy:
    """Raises exceptions of such classes wherever its code may raise."""

    def __init__(self, names: tuple[str, ...], in_constructor: bool = False) -> None:
        self.kind = hiding(*names)
        if in_constructor:
            raise self.kind("first")

    def throw(self) -> None:
        raise self.kind("no name")

    def throw_below_another(self) -> None:
        raise ValueError("named") from self.kind("no name")

    def unpicklable(self) -> Any:
        kind = self.kind

        class Refuses:
            def __reduce__(self) -> Any:
                raise kind("no pickle")

        return Refuses()

    def __parl_save__(self) -> None:
        raise self.kind("no state")

    def __parl_load__(self, state: object) -> None:
        """Do nothing: there is no state."""


@pytest.mark.parametrize("names", [*((name,) for name in HIDDEN), HIDDEN])
def test_a_metaclass_that_hides_attributes_does_not_end_the_actor(shared_cluster: None, names: tuple[str, ...]) -> None:
    shy = Shy(names)
    with pytest.raises(RemoteCallError, match=r"a_module\.Shy in the actor: no name"):
        shy.throw()
    with pytest.raises(ValueError, match="named"):
        shy.throw_below_another()
    with pytest.raises(RemoteCallError, match="Shy: no pickle"):
        shy.unpicklable()
    with pytest.raises(RemoteCallError, match="first"):
        Shy(names, in_constructor=True)
    with pytest.raises(RemoteCallError, match="no name"):
        shy.throw()


@pytest.mark.parametrize("name", [*HIDDEN, "__doc__"])
def test_an_exception_of_such_a_class_is_raised_as_itself_or_as_a_remote_call_error(name: str) -> None:
    failure = describe(hiding(name)("no name"), "Shy.throw")
    assert failure.type_name == "a_module.Shy"
    assert failure.text == "no name"
    error = combine(hiding(name)("no name"), RemoteCallError("", method="Shy.throw", remote_traceback="", type_name=""))
    assert str(error) == "no name"


def test_the_text_of_an_exception_with_many_values_is_short() -> None:
    inside: list[object] = []
    inside.append(inside)
    counted = 0

    class Counted:
        def __repr__(self) -> str:
            nonlocal counted
            counted += 1
            return "value"

    many = [Counted()] * 200_000
    for error in ValueError(*many), ValueError(many), ValueError({"values": many}), ValueError(inside, *many):
        described = describe(error, "Raiser.throw")
        assert len(described.text) + len(described.traceback) < 1000
        assert counted < 100  # else the whole text is made, and then cut
    assert describe(ValueError(*many), "Raiser.throw").text.endswith("value, ...")


@pytest.mark.parametrize(
    "make_error",
    [
        lambda: ValueError("bad value"),
        lambda: KeyError("key"),
        lambda: FileNotFoundError(2, "No such file", "/nowhere"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        lambda: Peculiar("the shelf", 3),
        lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
        lambda: Grouped([ValueError("one"), TypeError("two")], 3),
        lambda: json.JSONDecodeError("no value", "[", 1),
        lambda: subprocess.CalledProcessError(3, "false", b"out", b"err"),
        lambda: ImportError("none", name="nowhere", path="/nowhere"),
    ],
    ids=["value", "key", "file", "unicode", "peculiar", "group", "own group", "json", "process", "import"],
)
def test_an_exception_is_raised_as_its_own_type_with_what_it_holds(
    anywhere: str, make_error: Callable[[], Exception]
) -> None:
    raiser, error = Raiser(), make_error()
    with pytest.raises(type(error)) as raised:
        raiser.throw(make_error)
    for received in (raised.value, pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)):
        assert str(received) == str(error)
        assert type(received).__qualname__ == type(error).__qualname__
        assert received.__dict__.keys() >= error.__dict__.keys()
        if not isinstance(error, ExceptionGroup):  # its exceptions are others, which are not equal
            assert received.args == error.args
    assert raiser.count() == 1


class Named(Exception):
    def __init__(self) -> None:
        super().__init__("text")
        self.method, self.type_name, self.remote_traceback = "GET", "none", ["a", "list"]


class Informed(Exception):
    def __init__(self) -> None:
        super().__init__("text")
        self.error_info = "its own"


def test_error_info_has_method_message_and_traceback(anywhere: str) -> None:
    with pytest.raises(parl_remote.RemoteError) as raised:
        Raiser().divide(0)
    assert raised.value.error_info.startswith("Raiser.divide() raised ZeroDivisionError: division by zero\n")
    assert "in divide" in raised.value.error_info
    with pytest.raises(parl_remote.RemoteError) as raised:
        Raiser().nothing()  # type: ignore[attr-defined]
    assert raised.value.error_info == str(raised.value)


def test_error_info_of_the_exception_itself_is_kept(anywhere: str) -> None:
    with pytest.raises(parl_remote.RemoteError) as raised:
        Raiser().throw(Informed)
    assert raised.value.error_info == "its own"
    with pytest.raises(parl_remote.RemoteError) as raised:
        Raiser().throw(Named)
    assert raised.value.error_info.startswith("Raiser.throw() raised ")


def test_the_traceback_of_the_actor_is_shown_framed_inside_the_local_one(anywhere: str) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        Raiser().divide(0)
    cause = raised.value.__cause__
    assert isinstance(cause, RemoteCallError)
    assert cause.method == "Raiser.divide"
    assert cause.type_name == "ZeroDivisionError"
    shown = "".join(traceback.format_exception(raised.value))
    assert "+-- remote traceback" in shown
    assert "return 1 / number" in shown
    assert "in _inner" in shown
    assert "parl_remote/actor" not in cause.remote_traceback


def test_frames_between_the_caller_and_the_error_are_hidden_from_pytest(shared_cluster: None) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        Raiser().divide(0)
    _, *between = traceback.walk_tb(caught.value.__traceback__)
    assert between
    assert all(frame.f_locals.get("__tracebackhide__") for frame, _ in between)


def test_what_an_exception_was_caused_by_is_in_the_text(anywhere: str) -> None:
    with pytest.raises(ValueError, match="wrapped") as raised:
        Raiser().chained()
    assert isinstance(raised.value.__cause__, RemoteCallError)
    assert "ZeroDivisionError" in raised.value.__cause__.remote_traceback


class Unreduced(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("this is not to be pickled")


def with_a_lock() -> Exception:
    error = ValueError("has parts", threading.Lock())
    error.place, error.lock = "the shelf", threading.Lock()  # type: ignore[attr-defined]
    error.add_note("a note of the user's")
    return error


def test_parts_of_an_exception_that_cannot_be_pickled_are_left_out(anywhere: str) -> None:
    raiser = Raiser()
    with pytest.raises(ValueError, match="has parts") as raised:
        raiser.throw(with_a_lock)
    assert isinstance(raised.value, RemoteCallError)
    error: Any = raised.value
    assert (error.args[0], error.args[1][:17]) == ("has parts", "<unlocked _thread")
    assert (error.place, hasattr(error, "lock")) == ("the shelf", False)
    assert error.__notes__ == ["a note of the user's", "(without lock, which cannot be sent)"]
    with pytest.raises(Unpicklable, match="holds a lock"):
        raiser.unpicklable()
    with pytest.raises(Unreduced, match="as its own type"):
        raiser.throw(lambda: Unreduced("as its own type"))
    with pytest.raises(ExceptionGroup, match="several") as group:
        raiser.throw(lambda: ExceptionGroup("several", [with_a_lock(), KeyError("whole")]))
    assert [type(inner).__name__ for inner in group.value.exceptions] == ["ValueError", "KeyError"]
    assert raiser.count() == 3


def test_sys_exit_in_a_method_is_raised_as_itself_and_the_actor_lives_on(anywhere: str) -> None:
    raiser = Raiser()
    with pytest.raises(SystemExit) as raised:
        raiser.leave()
    assert isinstance(raised.value, RemoteCallError)
    assert raised.value.code == 3
    assert "sys.exit(3)" in raised.value.remote_traceback
    assert raiser.count() == 0


class Halt(BaseException):
    def __init__(self, where: str) -> None:
        super().__init__(f"halted at {where}")
        self.where = where


@pytest.mark.parametrize(
    "make_error",
    [lambda: KeyboardInterrupt("enough"), GeneratorExit, lambda: Halt("stop"), lambda: SystemExit("why")],
    ids=["interrupt", "generator", "own", "exit"],
)
def test_what_is_no_exception_is_raised_as_its_own_type_and_as_a_remote_call_error(
    anywhere: str, make_error: Callable[[], BaseException]
) -> None:
    raiser, error = Raiser(), make_error()
    for kind in (type(error), RemoteCallError):
        with pytest.raises(kind) as raised:
            raiser.throw(make_error)
        assert raised.value.args == error.args
        assert {**raised.value.__dict__, **error.__dict__} == raised.value.__dict__
    copied = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(copied, type(error))
    assert isinstance(copied, RemoteCallError)
    assert isinstance(parl_remote.submit(raiser.throw, make_error).exception(), type(error))
    assert raiser.count() == 3


class Stopped(BaseExceptionGroup[BaseException]):
    pass


@pytest.mark.parametrize("kind", [BaseExceptionGroup, Stopped])
def test_a_group_with_exits_is_raised_as_its_own_type(anywhere: str, kind: type[BaseExceptionGroup[Any]]) -> None:
    def make_group() -> BaseException:
        group = kind("all", [KeyboardInterrupt(), kind("inner", [SystemExit(3), KeyError("lost")])])
        group.add_note("a note")
        return group

    with pytest.raises(kind, match="all") as raised:
        Raiser().throw(make_group)
    received: Any = raised.value
    for group in (received, pickle.loads(pickle.dumps(received)), copy.copy(received)):
        assert RemoteCallError in type(group).__mro__
        assert type(group).__qualname__ == kind.__qualname__
        assert "KeyboardInterrupt" in group.remote_traceback
        assert group.__notes__ == ["a note"]
        interrupt, inner = group.exceptions
        assert type(interrupt) is KeyboardInterrupt
        assert type(inner) is kind
        assert repr(inner.exceptions) == "(SystemExit(3), KeyError('lost'))"
        matching, rest = group.split(KeyError)
        assert [type(one.exceptions[0]) for one in (matching, rest)] == [ExceptionGroup, KeyboardInterrupt]


def test_an_exception_of_the_constructor_is_raised_where_the_object_is_made(anywhere: str) -> None:
    with pytest.raises(Peculiar, match="the shelf has 3"):
        Raiser(lambda: Peculiar("the shelf", 3))


def test_an_abstract_class_cannot_be_made(anywhere: str) -> None:
    import abc

    @parl_remote.remote_class
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def work(self) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # type: ignore[abstract]  # on purpose


def test_an_exception_class_made_by_the_actor_alone_is_still_recognised(shared_cluster: None) -> None:
    @parl_remote.remote_class
    class Maker:
        def throw(self) -> None:
            class Local(ValueError):
                pass

            raise Local("from inside")

    with pytest.raises(ValueError, match="from inside"):
        Maker().throw()


def test_the_same_exception_can_be_raised_twice(anywhere: str) -> None:
    raiser: Any = Raiser()
    for _ in range(2):
        with pytest.raises(ValueError, match="again"):
            raiser.throw(lambda: ValueError("again"))


def test_an_argument_that_the_actor_cannot_read_is_reported_as_such(anywhere: str) -> None:
    raiser: Any = Raiser()
    with pytest.raises(SerializationError, match=r"the arguments of Raiser.throw\(\) cannot be read in the actor"):
        raiser.throw(Peculiar("the shelf", 3))
    assert raiser.count() == 0


def test_a_group_crosses_with_each_of_its_exceptions(anywhere: str) -> None:
    def make_group() -> Exception:
        return ExceptionGroup("both", [Peculiar("the shelf", 3), ExceptionGroup("inner", [KeyError("lost")])])

    raiser = Raiser()
    with pytest.raises(ExceptionGroup, match="both") as raised:
        raiser.throw(make_group)
    peculiar, inner = raised.value.exceptions
    assert isinstance(peculiar, Peculiar)
    assert (peculiar.place, peculiar.number) == ("the shelf", 3)
    assert isinstance(inner, ExceptionGroup)
    assert repr(inner.exceptions) == "(KeyError('lost'),)"


def open_nothing() -> Exception:
    try:
        open("/nothing/there")  # noqa: SIM115  # it fails
    except OSError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("make", "attributes"),
    [
        (lambda: KeyError(3), {}),
        (lambda: Peculiar("here", 3), {"place": "here", "number": 3}),
        (lambda: MadeByNew(3, "here"), {"place": "here"}),
        (lambda: Slotted("there"), {"place": "there", "shelf": "shelf of there"}),
        (lambda: Rebuilt(key=4), {"key": 4}),
        (lambda: Final("last"), {}),
        (open_nothing, {"filename": "/nothing/there"}),
        (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), {"reason": "why"}),
        (lambda: ImportError("no", name="module"), {"name": "module"}),
        (lambda: StopIteration(5), {"value": 5}),
        (lambda: Detailed("there", number=5), {"filename": "there", "errno": 5, "strerror": "is missing"}),
        (lambda: DetailedLater("there", 5), {"filename": "there", "number": 5, "errno": None}),
        (lambda: BlockingIOError(11, "full", 5), {"characters_written": 5, "filename": None}),
        (lambda: BlockingIOError(11, "empty"), {"filename": None}),
        (lambda: parl_remote.NameTaken("it is"), {}),
    ],
)
def test_an_exception_is_its_own_type_and_a_remote_one(
    anywhere: str, make: Callable[[], Exception], attributes: dict[str, Any]
) -> None:
    expected = make()
    with pytest.raises(type(expected)) as caught:
        Raiser().throw(make)
    error: Any = caught.value
    assert isinstance(error, RemoteCallError)
    assert isinstance(error, parl_remote.RemoteError)
    assert isinstance(error.__cause__, RemoteCallError)
    for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(one) is type(error)
        assert type(one).__qualname__ == type(expected).__qualname__
        assert (str(one), repr(one), one.args) == (str(expected), repr(expected), expected.args)
        assert {name: getattr(one, name) for name in attributes} == attributes
        assert (one.method, "Traceback" in one.remote_traceback) == ("Raiser.throw", True)
    with pytest.raises(RemoteCallError):
        Raiser().throw(make)


def test_an_exception_has_what_its_new_prepares(anywhere: str) -> None:
    with pytest.raises(Prepared, match="here, locked: False"):
        Raiser().throw(lambda: Prepared("here", 3))


def test_an_exception_whose_attributes_are_fixed_is_both_as_well(anywhere: str) -> None:
    for _ in range(2):
        with pytest.raises(Frozen, match="3") as caught:
            Raiser().throw(lambda: Frozen(3))
        for one in (caught.value, pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
            assert (one.code, one.args) == (3, (3,))
            assert isinstance(one, RemoteCallError)
            assert one.method == "Raiser.throw"
        assert isinstance(caught.value.__cause__, RemoteCallError)


def http_error(body: Any) -> HTTPError:
    headers = Message()
    headers["Retry-After"] = "9"
    return HTTPError("http://there", 503, "Busy", headers, body)


# From Python 3.14 on, an error that ends without close() warns, and so do those that this test cannot close.
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize("make_body", [lambda: open(__file__, "rb"), lambda: None])  # noqa: SIM115
def test_an_http_error_arrives_without_its_file(anywhere: str, make_body: Callable[[], Any]) -> None:
    with pytest.raises(HTTPError, match="503: Busy") as caught:
        Raiser().throw(lambda: http_error(make_body()))
    assert isinstance(caught.value, RemoteCallError)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert (error.code, error.reason, error.url, error.filename) == (503, "Busy", "http://there", "http://there")
        assert (error.headers["Retry-After"], error.read(), hasattr(error, "other")) == ("9", b"", False)
    del caught, error
    gc.collect()


def test_an_exception_group_is_split_as_any_other(anywhere: str) -> None:
    caught: list[BaseException] = []
    try:
        Raiser().throw(lambda: ExceptionGroup("two", [ValueError(1), KeyError(2)]))
    except* KeyError as group:
        caught += group.exceptions
    except* ValueError as group:
        caught += group.exceptions
    assert sorted(map(repr, caught)) == ["KeyError(2)", "ValueError(1)"]


def test_a_missing_attribute_is_both_as_well(anywhere: str) -> None:
    raiser: Any = Raiser()
    for kind in (AttributeError, parl_remote.RemoteAttributeError):
        with pytest.raises(kind, match="nothing_like_it") as caught:
            raiser.nothing_like_it()
        assert caught.value.name == "nothing_like_it"
    with pytest.raises(parl_remote.RemoteAttributeError):
        raiser.throw(lambda: AttributeError("inside"))


@parl_remote.remote_class
class Between:
    def throw(self, make_error: Callable[[], Exception]) -> None:
        Raiser().throw(make_error)


def test_it_is_both_through_several_actors(shared_cluster: None) -> None:
    with pytest.raises(Peculiar) as caught:
        Between().throw(lambda: Peculiar("far", 1))
    assert isinstance(caught.value, RemoteCallError)
    assert caught.value.place == "far"


@parl_remote.remote_class
class Sorry:
    def give_up(self, text: str) -> None:
        raise parl_remote.ActorLost(text)

    def works(self) -> bool:
        return True


def test_an_actor_lost_that_the_user_raises_is_his_own(anywhere: str) -> None:
    sorry = Sorry()
    with pytest.raises(parl_remote.ActorLost) as caught:
        sorry.give_up("my own reason")
    assert str(caught.value) == "my own reason"
    assert isinstance(caught.value, RemoteCallError)  # which tells it from the loss of the actor
    assert sorry.works()
    again = pickle.loads(pickle.dumps(parl_remote.ActorLost("text")))
    assert (str(again), again.from_outside) == ("text", False)


def test_exception_classes_that_programs_make_are_not_kept_for_ever() -> None:
    made = []
    for _ in range(600):
        kind = type("Own", (Exception,), {})
        made.append(weakref.ref(kind))
        assert isinstance(combine(kind(), RemoteCallError("", method="", remote_traceback="", type_name="")), kind)
    del kind
    gc.collect()
    assert made[0]() is None
