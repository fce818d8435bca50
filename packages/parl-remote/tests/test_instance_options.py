"""`Actor.options(...)` and `with_options(Actor, ...)`: other options for single objects."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import parl_remote
from parl_remote import NoResources, RemoteFuture, with_options


@parl_remote.remote_class
class Plain:
    """Says what it was given."""

    size = 3

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def told(self) -> int:
        return self.value

    def own_options(self) -> bool:
        return hasattr(self, "options")


@parl_remote.remote_class
class WithOwn:
    def options(self) -> str:
        return "mine"


@parl_remote.remote_class
class WithInstanceAttribute:
    def __init__(self) -> None:
        self.options = {"lr": 0.1}


class Undecorated(Plain):
    pass


def options_of(cls: Any) -> Any:
    """The attribute that type checkers know nothing of."""
    return cls.options


def test_one_object_gets_other_options_and_the_class_keeps_its_own(anywhere: str) -> None:
    quick = options_of(Plain)(wait=False)(7)
    assert isinstance(quick.told(), RemoteFuture)
    assert quick.told().result(60) == 7
    assert Plain(8).told() == 8


def test_none_stands_for_no_such_option() -> None:
    chosen = options_of(Plain)(labels={"license": 1}, node="first", name="the one", record="folder")
    assert repr(chosen.options(labels=None, node=None, name=None, record=None)) == repr(options_of(Plain)())


def test_options_can_be_chosen_step_by_step(anywhere: str) -> None:
    chosen = options_of(Plain)(n_cpu=0.5).options(wait=False)
    assert "n_cpu=0.5" in repr(chosen)
    assert "wait=False" in repr(chosen)
    assert isinstance(chosen(1).told(), RemoteFuture)


def test_the_function_and_the_attribute_do_the_same(anywhere: str) -> None:
    with pytest.raises(NoResources):
        options_of(Plain)(n_cpu=1000)()
    with pytest.raises(NoResources):
        with_options(Plain, n_cpu=1000)()


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"no option 'n_gpus'; did you mean 'n_gpu'\?"):
        options_of(Plain)(n_gpus=1)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("max_concurrency", 0, ValueError),
        ("max_concurrency", 1.5, TypeError),
        ("max_pending_calls", 0, ValueError),
        ("max_restarts", -2, ValueError),
        ("max_restarts", True, TypeError),
        ("when_full", "drop", ValueError),
        ("name", "", ValueError),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_value(option: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=option):
        options_of(Plain)(**{option: value})


@pytest.mark.parametrize("option", ["memory", "max_memory"])
def test_bytes_in_place_of_mebibytes_are_noticed(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} is in MiB, and no node has 524288000 of them$"):
        options_of(Plain)(**{option: 500 * 2**20})


def test_a_class_with_options_of_its_own_keeps_them(anywhere: str) -> None:
    assert WithOwn().options() == "mine"
    chosen: Any = with_options(WithOwn, wait=False)
    assert chosen().options().result(60) == "mine"


def test_an_attribute_of_that_name_is_read_as_any_other(anywhere: str) -> None:
    assert WithInstanceAttribute().options == {"lr": 0.1}


def test_objects_have_no_options(anywhere: str) -> None:
    remote = Plain()
    assert not hasattr(remote, "options")
    assert not remote.own_options()
    assert "options" not in dir(remote)


def test_a_subclass_that_is_not_decorated_has_none() -> None:
    assert not hasattr(Undecorated, "options")


def test_what_is_chosen_stands_for_the_class(anywhere: str) -> None:
    chosen = options_of(Plain)(n_cpu=0.5)
    assert chosen.__name__ == "Plain"
    assert chosen.size == 3
    assert isinstance(chosen(2), chosen)
    again = pickle.loads(pickle.dumps(chosen))
    assert again(5).told() == 5
