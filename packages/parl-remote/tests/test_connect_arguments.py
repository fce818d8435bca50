"""`connect` and `disconnect`: what they refuse and what they leave alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import NotConnected, RemoteError, _current

PATIENCE_S = 60.0


@parl_remote.remote_class
class Actor:
    def work(self) -> int:
        return 1

    def connect_again(self) -> None:
        parl_remote.connect()


def test_connecting_twice_to_the_same_cluster_keeps_the_connection(connect: Callable[..., None]) -> None:
    connect()
    first = _current.client()
    parl_remote.connect("local")
    assert _current.client() is first


@pytest.mark.parametrize("asked", [{"cpu_num": 3}, {"logs": True}, {"lease_timeout_s": None}, {"preload": ["json"]}])
def test_other_options_than_those_of_the_connection_are_refused(
    connect: Callable[..., None], asked: dict[str, Any]
) -> None:
    connect(cpu_num=2, lease_timeout_s=20)
    there = rf"connected to 'local' already, with {next(iter(asked))}=.*: call parl.disconnect\(\) before connecting"
    with pytest.raises(RemoteError, match=there):
        parl_remote.connect(**asked)
    parl_remote.connect(cpu_num=2, lease_timeout_s=20)
    parl_remote.connect(cpu_num=2)


def test_connecting_again_when_the_cluster_has_ended_makes_another_one(connect: Callable[..., None]) -> None:
    connect()
    first: Any = _current.client()
    os.kill(first._cluster.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while not first.is_gone:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nothing tells when the news has come
    parl_remote.connect()
    assert _current.client() is not first
    assert Actor().work() == 1


def test_connecting_to_another_cluster_is_refused_until_disconnected(connect: Callable[..., None]) -> None:
    connect()
    with pytest.raises(RemoteError, match=r"connected to 'local'; call parl.disconnect\(\) before"):
        parl_remote.connect("localhost:6006")
    with pytest.raises(RemoteError, match="connected to 'local'"):
        parl_remote.connect(debug=True)
    assert Actor().work() == 1


def test_an_unknown_name_is_reported_with_those_there_are_with_debug(connect: Callable[..., None]) -> None:
    connect(debug=True)
    with pytest.raises(parl_remote.NoSuchActor, match=r"no actor called 'b'; there are none$"):
        parl_remote.get_actor("b")
    actors = [parl_remote.with_options(Actor, name=name)() for name in ("d", "c")]
    with pytest.raises(parl_remote.NoSuchActor, match=r"no actor called 'b'; there are c, d$"):
        parl_remote.get_actor("b")
    assert all(one.work() == 1 for one in actors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cpu_num": 0}, "cpu_num must be a whole number of 1 or more"),
        ({"lease_timeout_s": -1}, "lease_timeout_s must be a finite number of 0 or more, not -1"),
        ({"master_address": "nowhere"}, "host:port"),
        ({"master_address": "localhost:6006", "cpu_num": 2}, "cpu_num only makes sense for a private cluster"),
        ({"master_address": "localhost:6006", "preload": ["torch"]}, "preload only makes sense"),
        ({"distributed_files": ["no such file"]}, "nothing matches 'no such file' in "),
        ({"distributed_files": ["/etc/hosts"]}, "'/etc/hosts' is absolute"),
        ({"distributed_files": ["data/../../x"]}, "leads out of the directory"),
        ({"key_file": "key"}, "needs no key_file"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parl_remote.connect(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"master_address": 6006}, "master_address must be text such as 'localhost:8037', not 6006"),
        ({"cpu_num": 1.5}, "cpu_num must be a whole number, not 1.5"),
        ({"cpu_num": True}, "cpu_num must be a whole number, not True"),
        ({"cpu_num": "2"}, "cpu_num must be a whole number, not '2'"),
        ({"lease_timeout_s": "5"}, "lease_timeout_s must be a number, not '5'"),
        ({"preload": [3]}, "preload is a list of names of modules, not of 3"),
        ({"log_dir": 3}, "log_dir must be a path, not 3"),
        ({"debug": "x"}, "debug must be True or False, not 'x'"),
        ({"preload": "torch"}, r"preload is a list of names; did you mean \['torch'\]?"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parl_remote.connect(**arguments)


def test_a_module_to_preload_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"preload names 'no_such_module\.part'"):
        parl_remote.connect(preload=["no_such_module.part"])


def test_disconnecting_without_a_connection_does_nothing(connect: Callable[..., None]) -> None:
    connect()
    parl_remote.disconnect()
    parl_remote.disconnect()


def test_making_an_object_without_a_connection_says_what_to_call(connect: Callable[..., None]) -> None:
    connect()
    parl_remote.disconnect()
    with pytest.raises(NotConnected, match=r"call parl.connect\(\) before"):
        Actor().process()  # type: ignore[attr-defined]
    with pytest.raises(NotConnected):
        parl_remote.get_global_client()


def test_the_client_counts_its_actors(connect: Callable[..., None]) -> None:
    connect()
    actors = [Actor(), Actor()]
    assert parl_remote.get_global_client().actor_num == 2
    assert actors[0].work() == 1


def test_an_actor_cannot_connect(anywhere: str) -> None:
    with pytest.raises(RemoteError, match="an actor is connected already"):
        Actor().connect_again()


def test_several_threads_may_connect_at_once(connect: Callable[..., None]) -> None:
    connect()
    parl_remote.disconnect()
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            parl_remote.connect(cpu_num=4)
            assert Actor().work() == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures


def test_more_slots_than_cpus_are_allowed(connect: Callable[..., None]) -> None:
    connect(cpu_num=np.int64(12))
    assert [actor.work() for actor in [Actor() for _ in range(12)]] == [1] * 12
