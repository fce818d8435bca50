"""Calls of a process whose actor another process restarts: they may arrive before the new constructor's arguments."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote import ActorLost, DeathCause, DeathKind, with_options
from parl_remote._program.creation import CreationRequest
from parl_remote._program.known_actors import Borrowing

AHEAD_S = 0.5  # long enough for a call to overtake; where it does not, the test has nothing to see and passes


@parl_remote.remote_class
class Member:
    def __init__(self) -> None:
        self.other: Any = None

    def keep(self, other: Any) -> None:
        self.other = other

    def make(self) -> Any:
        self.other = with_options(Member, max_restarts=1)()
        return self.other

    def process(self) -> int:
        return os.getpid()

    def process_of_other(self) -> int:
        return int(self.other.process())


@parl_remote.remote_class(max_restarts=3)
class Fragile:
    def __init__(self, obstacle: Path) -> None:
        if obstacle.exists():
            raise OSError("something is in the way")

    def process(self) -> int:
        return os.getpid()


def test_calls_that_overtake_the_constructor_s_arguments_wait_for_them(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, user = with_options(Member, max_restarts=1)(), Member()
    user.keep(member)
    before = user.process_of_other()
    message = CreationRequest.message

    def late(self: CreationRequest, *arguments: Any) -> Any:
        threading.Event().wait(AHEAD_S)
        return message(self, *arguments)

    monkeypatch.setattr(CreationRequest, "message", late)
    os.kill(before, signal.SIGKILL)
    with contextlib.suppress(ActorLost):  # it may not have noticed yet
        user.process_of_other()
    after = user.process_of_other()
    assert after != before
    assert member.process() == after


def test_an_attempt_to_find_the_new_actor_that_fails_is_repeated_and_no_news(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Member()
    member = owner.make()
    before = member.process()
    reach = Borrowing.reach
    failed: list[Any] = []

    def fail_once(self: Borrowing, place: Any, record: Any) -> Any:
        if failed:
            return reach(self, place, record)
        failed.append(place)
        record.end(DeathCause(DeathKind.EXIT, detail="it ended long ago"))
        return None

    monkeypatch.setattr(Borrowing, "reach", fail_once)
    os.kill(before, signal.SIGKILL)
    with contextlib.suppress(ActorLost):  # it may not have noticed yet
        member.process()
    assert member.process() != before
    assert failed
    assert "could not be made again" not in caplog.text


def test_a_holder_waits_for_an_actor_whose_first_restart_fails(
    shared_cluster: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = tmp_path / "obstacle"
    fragile, holder = Fragile(obstacle), Member()
    holder.keep(fragile)
    before = holder.process_of_other()
    obstacle.touch()
    os.kill(before, signal.SIGKILL)
    while "could not be made again" not in caplog.text:
        time.sleep(0.01)
    threading.Timer(0.3, obstacle.unlink).start()
    found = None
    while found is None:
        try:
            found = holder.process_of_other()
        except ActorLost as error:  # it may not have noticed yet, or the call has met an attempt that failed
            if not error.is_restarting:
                raise
    assert found == fragile.process() != before
