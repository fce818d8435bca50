"""The actor's table: every move that it allows, and that nothing else is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_remote._actor.state import TABLE, ActorEvent, ActorMachine, ActorState, Effect
from parl_remote.errors import LocalProtocolError, RemoteProtocolError

E, S = ActorEvent, ActorState
WORK = (E.CALL, E.GET_ATTR, E.SET_ATTR)
ENDINGS = (E.CLOSE, E.LEASE_EXPIRED, E.MEMORY_EXCEEDED)


def machine(*events: ActorEvent) -> ActorMachine:
    one = ActorMachine()
    for event in events:
        one.on(event)
    return one


def test_an_actor_lives_from_lease_to_close() -> None:
    one = ActorMachine()
    story = [
        (E.LEASE, S.LEASED, Effect.PREPARE),
        (E.CREATE, S.CREATING, Effect.CONSTRUCT),
        (E.FINISHED, S.READY, Effect.REPLY_CREATED),
        (E.CALL, S.BUSY, Effect.QUEUE),
        (E.FAILED, S.READY, Effect.REPLY_ERROR),
        (E.GET_ATTR, S.BUSY, Effect.QUEUE),
        (E.FINISHED, S.READY, Effect.REPLY_VALUE),
        (E.CLOSE, S.CLOSED, Effect.EXIT),
    ]
    for event, state, effect in story:
        assert one.on(event) is effect
        assert one.state is state


def test_an_actor_is_ready_again_when_the_last_of_its_calls_is_answered() -> None:
    one = machine(E.LEASE, E.CREATE, E.FINISHED, E.CALL, E.SET_ATTR, E.CALL)
    for left in (2, 1):
        one.on(E.FINISHED)
        assert (one.state, one.outstanding) == (S.BUSY, left)
    one.on(E.FAILED)
    assert (one.state, one.outstanding) == (S.READY, 0)


def test_only_a_failing_constructor_ends_an_actor() -> None:
    one = machine(E.LEASE, E.CREATE)
    assert one.on(E.FAILED) is Effect.REPLY_CREATE_FAILED
    assert one.state is S.CLOSED
    two = machine(E.LEASE, E.CREATE, E.FINISHED, E.CALL)
    two.on(E.FAILED)
    assert two.state is S.READY


def test_a_cancel_that_crosses_the_reply_does_no_harm() -> None:
    one = machine(E.LEASE, E.CREATE, E.FINISHED, E.CALL, E.FINISHED)
    assert one.on(E.CANCEL) is Effect.DROP_IF_QUEUED
    assert one.state is S.READY


@pytest.mark.parametrize("state", [state for state in ActorState if state is not S.CLOSED])
@pytest.mark.parametrize("event", ENDINGS)
def test_every_living_actor_can_be_ended(state: ActorState, event: ActorEvent) -> None:
    one = ActorMachine(state)
    assert one.on(event) is Effect.EXIT
    assert one.state is S.CLOSED


@pytest.mark.parametrize(("state", "event"), [(s, e) for s, e in itertools.product(S, E) if e not in TABLE[s]])
def test_what_the_table_does_not_have_closes_the_actor_and_says_what_happened(
    state: ActorState, event: ActorEvent
) -> None:
    one = ActorMachine(state)
    with pytest.raises(RemoteProtocolError, match=f"state {state.name} cannot take {event.name}"):
        one.on(event)
    assert one.state is S.CLOSED


def test_the_side_that_broke_the_protocol_decides_the_error() -> None:
    with pytest.raises(LocalProtocolError):
        ActorMachine().on(E.CALL, error=LocalProtocolError)


def test_nothing_happens_to_a_closed_actor() -> None:
    assert not TABLE[S.CLOSED]


@given(st.lists(st.sampled_from([*WORK, E.FINISHED, E.FAILED, E.CANCEL])))
def test_an_actor_is_busy_exactly_while_something_is_outstanding(events: list[ActorEvent]) -> None:
    one = machine(E.LEASE, E.CREATE, E.FINISHED)
    expected = 0
    for event in events:
        if event in {E.FINISHED, E.FAILED} and not expected:
            continue
        one.on(event)
        expected += (event in WORK) - (event in {E.FINISHED, E.FAILED})
        assert one.outstanding == expected
        assert one.state is (S.BUSY if expected else S.READY)
