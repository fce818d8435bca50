"""The control plane's messages: what is written can be read, and nothing else can."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_remote import errors
from parl_remote._messages import (
    ActorDied,
    Heartbeat,
    Hello,
    LeaseGranted,
    LeaseRequest,
    Message,
    NodeJoin,
    Refused,
    Role,
    RunningLease,
    StartActor,
)
from parl_remote._messages.wire import all_kinds, decode, encode
from parl_remote._resources import Resources
from parl_remote.errors import DeathCause, DeathKind, LocalProtocolError, RemoteProtocolError

amounts = st.integers(0, 10_000).map(lambda thousandths: round(thousandths / 1000, 3))
resources = st.builds(
    Resources,
    cpu=amounts,
    gpu=amounts,
    memory=st.integers(0, 2**40),
    labels=st.dictionaries(st.sampled_from(["license", "fpga"]), amounts),
)
causes = st.builds(
    DeathCause,
    kind=st.sampled_from(DeathKind),
    exit_code=st.none() | st.integers(0, 255),
    log_tail=st.lists(st.text(), max_size=3).map(tuple),
)
some_messages = st.one_of(
    st.builds(LeaseRequest, st.integers(0, 2**60), resources, st.none() | st.floats(0, 1e6), st.text()),
    st.builds(LeaseGranted, *[st.integers(0, 9)], *[st.text()] * 2, st.lists(st.text()).map(tuple), *[st.text()] * 2),
    st.builds(ActorDied, st.text(), causes),
    st.builds(StartActor, st.text(), environment=st.dictionaries(st.text(), st.text())),
    st.builds(
        NodeJoin,
        node_id=st.text(),
        host_id=st.text(),
        addresses=st.lists(st.text()).map(tuple),
        socket_dir=st.text(),
        resources=resources,
        leases=st.lists(st.builds(RunningLease, st.text(), st.text(), resources), max_size=2).map(tuple),
    ),
)


@given(some_messages)
def test_what_is_encoded_decodes_to_the_same(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_garbage_is_an_error_of_the_peer_and_nothing_else(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
kinds = all_kinds()


@given(st.sampled_from(list(kinds)), st.data())
def test_any_json_in_any_field_decodes_or_is_an_error_of_the_peer(name: str, data: st.DataObject) -> None:
    kind: Any = kinds[name]
    fields = {field.name: data.draw(json_values) for field in dataclasses.fields(kind) if data.draw(st.booleans())}
    try:
        message = decode(json.dumps({"is": name, **fields}).encode())
    except RemoteProtocolError:
        return
    assert isinstance(message, kind)
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"[]", "must be an object, not a list"),
        (b"{}", "unknown message 'None'"),
        (b'{"is": "Message"}', "unknown message 'Message'"),
        (b'{"is": ["Heartbeat"]}', "unknown message"),
        (b'{"is": "Heartbeat"}', "Heartbeat lacks the field 'seq'"),
        (b'{"is": "Heartbeat", "seq": "x"}', r"Heartbeat\.seq must be a whole number, not 'x'"),
        (b'{"is": "Heartbeat", "seq": true}', r"Heartbeat\.seq must be a whole number, not True"),
        (b'{"is": "Heartbeat", "seq": 1, "load": NaN}', "NaN is not a number"),
        (b'{"is": "Heartbeat", "seq": 1, "load": 1e999}', r"Heartbeat\.load must be a number"),
        (b'{"is": "Heartbeat", "seq": 1, "mood": 1}', "Heartbeat has an unknown field 'mood'"),
        (b'{"is": "LeaseRequest", "request_id": 1, "resources": {"cpu": -1}}', "cpu must be a finite amount"),
        (b'{"is": "LeaseLost", "lease_id": "x", "cause": {"kind": "boredom"}}', r"cause\.kind must be one of exit,"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_errors_name_the_field_and_the_value(text: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode(text)


def test_long_values_are_shortened_in_errors() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(json.dumps({"is": "Bye", "reason": ["x" * 10_000]}).encode())
    assert len(str(caught.value)) < 200


def test_a_greeting_of_a_later_version_can_be_read_by_this_one() -> None:
    hello = json.loads(encode(Hello(Role.CLIENT, Role.MASTER, "me", 7, 9, "host", 1)))
    hello["what_comes_later"] = {"x": 1}
    greeting = decode(json.dumps(hello).encode())
    assert isinstance(greeting, Hello)
    assert (greeting.protocol_min, greeting.protocol_max) == (7, 9)
    refusal = b'{"is": "Refused", "code": "version", "reason": "r", "protocol_min": 7, "protocol_max": 9, "new": 1}'
    assert isinstance(decode(refusal), Refused)


def test_what_is_no_message_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="DeathCause is not a message"):
        encode(DeathCause(DeathKind.EXIT))  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(Heartbeat(1, load=float("nan")))


def test_reading_a_message_runs_no_code_of_the_peer() -> None:
    with pytest.raises(RemoteProtocolError):
        decode(pickle.dumps(Heartbeat(1)))


def test_every_error_survives_pickling_with_its_attributes() -> None:
    cause = DeathCause(DeathKind.SIGNAL, signal=9, log_tail=("bye",), last_call="run")
    for error in (
        errors.ActorLost(cause, class_name="Env"),
        errors.ClusterUnreachable("m", address="h:1"),
        errors.VersionMismatch("m", ours=(1, 2), theirs=(3, 4)),
        errors.NoResources("m", asked="a", available="b"),
        errors.RemoteCallError("m", method="f", remote_traceback="t", type_name="x.Y"),
        errors.SerializationError("m", what="argument 'lock'"),
        errors.ResultTimeout("m"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)


def test_the_names_of_parl_are_aliases() -> None:
    assert errors.RemoteSerializeError is errors.RemoteDeserializeError is errors.SerializationError
    assert errors.ResourceError is errors.NoResources
    assert errors.FutureFunctionError is errors.RemoteCallError
    assert issubclass(errors.RemoteAttributeError, AttributeError)
    assert issubclass(errors.ResultTimeout, TimeoutError)
    assert issubclass(errors.ClusterUnreachable, ConnectionError)


def test_a_lost_actor_says_why_and_shows_its_last_lines() -> None:
    cause = DeathCause(DeathKind.SIGNAL, signal=9, log_tail=("loading", "step 7"), last_call="learn")
    assert str(errors.ActorLost(cause, class_name="Learner")) == (
        "Learner is lost: its process was killed by a signal (SIGKILL); its last call was learn()\n"
        "last lines of its log:\n  | loading\n  | step 7"
    )
