"""The public names of `parl_remote`, and the cost of importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import parl_remote
from parl_remote import _options


def test_every_public_name_is_there() -> None:
    for name in parl_remote.__all__:
        assert getattr(parl_remote, name) is not None
    assert dir(parl_remote) == sorted(parl_remote.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = parl_remote.conect


def test_importing_loads_nothing_heavy_and_starts_nothing() -> None:
    program = (
        "import sys, threading, parl_remote\n"
        "from parl_remote import connect, remote_class, submit, RemoteFuture, ActorLost\n"
        "heavy = {'zmq', 'asyncio', 'click', 'psutil', 'subprocess', 'numpy'} & set(sys.modules)\n"
        "print(sorted(heavy), threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "[] 1\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wiat": False}, r"no option 'wiat'; did you mean 'wait'\? It takes: wait, n_cpu, n_gpu, memory, max_memory"),
        ({"wait": 1}, "wait must be True or False"),
        ({"n_cpu": "two"}, "n_cpu must be a number"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parl_remote.remote_class(**given)  # type: ignore[call-overload]  # on purpose


@pytest.mark.parametrize(
    "given",
    [
        {"n_cpu": -1},
        {"n_gpu": 1.5},
        {"max_memory": 0},
        {"n_cpu": float("nan")},
        {"lease_timeout_s": -1},
        {"lease_timeout_s": 1e300},
        {"max_restarts": 2**63},
    ],
)
def test_an_option_out_of_range_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        _options.ActorOptions.of(given)


def test_only_classes_are_decorated() -> None:
    with pytest.raises(TypeError, match="decorates classes"):
        parl_remote.remote_class(lambda: None)  # type: ignore[call-overload]  # on purpose


def test_options_of_a_class_that_is_not_decorated_are_refused() -> None:
    with pytest.raises(TypeError, match="not decorated"):
        parl_remote.with_options(dict, wait=False)


def test_the_decorator_works_with_empty_parentheses() -> None:
    @parl_remote.remote_class()
    class Empty:
        pass

    with pytest.raises(TypeError, match="no option 'fast'"):
        parl_remote.with_options(Empty, fast=True)
