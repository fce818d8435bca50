"""Samples on the wire: protobuf's bytes by hand, and nothing else accepted."""

import copy
import importlib.util
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parl_evokit._records import Record, SamplingInfo, varint
from parl_evokit._samples import Samples, decode
from parl_evokit.errors import InvalidKey, RecordError

PROTO = Path(str(importlib.util.find_spec("parl_evokit._records").origin)).with_name("evokit.proto")  # type: ignore[union-attr]  # it was imported above
halves = st.integers(0, 2**31 - 1)
infos = st.builds(SamplingInfo, st.lists(halves, max_size=3), halves, st.integers(0, 2**32 - 1))


def test_the_bytes_are_those_that_protobufs_encoding_documents() -> None:
    # Tags are number << 3 | kind; 300 is AC 02 as a varint; fixed32 has its low byte first.
    info = SamplingInfo([300, 5], 7, 0x01020304)
    assert info.SerializeToString() == bytes.fromhex("08 ac 02 08 05 10 07 1d 04 03 02 01")
    record = Record(info, 1.0, 150, 2)
    inner = info.SerializeToString()
    assert record.encode() == bytes((0x0A, len(inner))) + inner + bytes.fromhex("15 00 00 80 3f 18 96 01 20 02")


@pytest.mark.parametrize("bits", [1, 7, 14, 21, 28])
def test_numbers_of_every_length_are_written_in_groups_of_seven_bits(bits: int) -> None:
    for number in (2**bits - 1, 2**bits, 2**bits + 1):
        groups = [number >> shift & 127 for shift in range(0, max(1, number.bit_length()), 7)]
        expected = bytes([group | 128 for group in groups[:-1]] + [groups[-1]])
        assert varint(number) == expected
        for key in ([number, 2**30], [2**30, number], [number, number]):
            other = {number: expected, 2**30: bytes((128, 128, 128, 128, 4))}
            assert (
                SamplingInfo(key).SerializeToString() == b"".join(b"\x08" + other[half] for half in key) + b"\x10\x00"
            )


def test_the_manuals_calls_work_on_an_info() -> None:
    info = SamplingInfo([1, 2], 3, 4)
    text = info.SerializeToString()
    other = SamplingInfo([9, 9], 9, 9)
    assert other.ParseFromString(text) == len(text)
    assert other == info
    other.key = [5, 6]
    assert other != info
    assert repr(info) == "SamplingInfo(key=[1, 2], model_iter_id=3, fingerprint=0x00000004)"
    assert info != "something else"


def test_a_message_of_the_original_without_fingerprint_reads_too_and_so_does_the_packed_form() -> None:
    info = SamplingInfo([1])
    info.ParseFromString(bytes.fromhex("08 85 01 10 02"))
    assert info == SamplingInfo([133], 2, 0)
    info.ParseFromString(bytes.fromhex("0a 03 85 01 07"))
    assert info == SamplingInfo([133, 7], 0, 0)
    info.ParseFromString(b"")
    assert info == SamplingInfo()


def test_an_unknown_field_of_a_later_version_is_skipped() -> None:
    later = bytes.fromhex("08 05 2a 03 61 62 63 31 00 00 00 00 00 00 00 00 08 06 3d 00 00 00 00")
    info = SamplingInfo()
    info.ParseFromString(later)
    assert info.key == [5, 6]


def test_a_key_is_two_halves_and_no_key_is_no_noise() -> None:
    assert SamplingInfo([3, 4]).noise_key == 3 * 2**31 + 4
    assert SamplingInfo().noise_key == 0
    assert SamplingInfo([0, 0]).noise_key == 0
    with pytest.raises(InvalidKey, match="two integers"):
        assert SamplingInfo([3]).noise_key
    info = SamplingInfo([1, 2, 3], 5, 6)
    info.fill(2**31 + 7, 8, 9)
    assert info == SamplingInfo([1, 7], 8, 9)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda info: pickle.loads(pickle.dumps(info))])
@pytest.mark.parametrize("drawn", [True, False])
def test_copies_and_pickles_are_equal_and_independent(
    again: Callable[[SamplingInfo], SamplingInfo], drawn: bool
) -> None:
    info = SamplingInfo([1, 7], 8, 9, 10)
    if drawn:
        info.fill(2**31 + 7, 8, 9)
        info.identity = 10
    other = again(info)
    assert other == info == SamplingInfo([1, 7], 8, 9, 10)
    other.key[0] = 2
    other.fingerprint = 3
    assert info == SamplingInfo([1, 7], 8, 9, 10)
    assert again(SamplingInfo()) == SamplingInfo()


@pytest.mark.parametrize(
    "state",
    [
        {"fingerprint": 9, "identity": 10, "key": [1, 7], "model_iter_id": 8},
        {"_halves": [1, 7], "drawn_key": None, "identity": 10, "origin": (8, 9)},
        {"drawn_key": 2**31 + 7, "identity": 10, "origin": (8, 9)},
    ],
)
def test_pickles_that_hold_attributes_are_read(state: dict[str, Any]) -> None:
    class Written(SamplingInfo):
        def __reduce__(self) -> tuple[Any, ...]:
            return object.__new__, (SamplingInfo,), (None, state)

    info = pickle.loads(pickle.dumps(Written()))
    assert info == SamplingInfo([1, 7], 8, 9, 10)
    assert info.noise_key == 2**31 + 7


def test_a_drawn_key_is_the_same_whether_or_not_it_was_looked_at() -> None:
    info, other = SamplingInfo(), SamplingInfo([1, 7], 8, 9)
    info.fill(2**31 + 7, 8, 9)
    again = pickle.loads(pickle.dumps(info))
    assert info == again == other
    assert info.SerializeToString() == other.SerializeToString()
    assert info.key == [1, 7]
    assert info == again == other
    assert info.noise_key == again.noise_key == 2**31 + 7
    info.key[1] = 8
    assert info.noise_key == 2**31 + 8
    assert info != again
    info.fill(2**31 + 7, 8, 9)
    assert info == again
    info.model_iter_id, info.fingerprint = 3, 4
    assert info == SamplingInfo([1, 7], 3, 4)


@given(infos)
def test_every_info_reads_back(info: SamplingInfo) -> None:
    other = SamplingInfo()
    other.ParseFromString(info.SerializeToString())
    assert other == info


@given(infos, st.none() | st.floats(width=32), st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**32 - 1))
def test_every_record_reads_back(info: SamplingInfo, reward: float | None, time_us: int, count: int) -> None:
    again = Record.decode(Record(info, reward, time_us, count).encode())
    assert (again.info, again.time_us, again.count) == (info, time_us, count)
    if reward is None:
        assert again.reward is None
    else:
        assert again.reward is not None
        assert math.isnan(again.reward) if math.isnan(reward) else again.reward == reward


@st.composite
def encoded_records(draw: st.DrawFn) -> bytes:
    """Records as they are, with a byte changed, or cut off."""
    reward = draw(st.none() | st.floats(width=32))
    record = Record(draw(infos), reward, draw(st.sampled_from([0, 0, 5])), draw(st.sampled_from([1, 1, 7])))
    data = bytearray(record.encode())
    if draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.sampled_from([len(data), len(data), 3, 12]))])


@given(st.lists(encoded_records() | st.binary(max_size=40), max_size=8), st.integers(0, 2**32 - 1))
@example([b"\n\x02\x10\x00\x15\x00\x00\x00\x80"], 0)  # a reward of -0.0
@example([b"2\x02\x10\x00"], 0)  # no refused tokens, of no known reason
def test_columns_hold_what_one_record_after_the_other_gives(payloads: list[bytes], fingerprint: int) -> None:
    try:
        records = [Record.decode(payload) for payload in payloads]
    except RecordError:
        with pytest.raises(RecordError):
            decode(payloads, fingerprint)
        return
    for record in records:
        record.info.fingerprint = record.info.fingerprint or fingerprint
    columns = decode(payloads, fingerprint)

    def rows(samples: Samples) -> list[tuple[object, ...]]:
        rewards = samples.rewards.astype(np.float32).view(np.uint32)  # as logs hold them, with all bits
        lists = (samples.keys, samples.models, samples.fingerprints, rewards, samples.counts)
        return sorted(zip(*(column.tolist() for column in lists), strict=True))

    for part, has_reward in ((columns.rewarded, True), (columns.served, False)):
        samples = [record for record in records if not record.refused]
        chosen = [record for record in samples if (record.reward is not None) is has_reward]
        rewards = [0.0 if record.reward is None else record.reward for record in chosen]
        expected = Samples.of([record.info for record in chosen], rewards)
        counts = np.array([record.count for record in chosen], np.uint32)
        if has_reward:
            assert rows(part) == rows(replace(expected, counts=counts))
        else:
            assert [row[:3] for row in rows(part)] == [row[:3] for row in rows(expected)]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_never_anything_else(data: bytes) -> None:
    info = SamplingInfo([1], 2, 3)
    for read in (info.ParseFromString, Record.decode):
        try:
            read(data)
        except RecordError:
            assert read != info.ParseFromString or info == SamplingInfo([1], 2, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("08", "does not end"),
        ("08 ff ff ff ff ff ff ff ff ff ff 01", "does not end"),
        ("0b", "field kind 3"),
        ("0a 05 61", "a field of 5 bytes begins at byte 2, but there are only 3"),
        ("1d 01 02", "a field of 4 bytes"),
        ("08 80 80 80 80 08", "outside of 0 to"),
        ("10 ff ff ff ff ff ff ff ff ff 01", "outside of 0 to"),
    ],
)
def test_damaged_bytes_are_refused_with_the_place(data: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        SamplingInfo().ParseFromString(bytes.fromhex(data))


@pytest.mark.parametrize(
    "info", [SamplingInfo([-1]), SamplingInfo([2**31]), SamplingInfo([], -1), SamplingInfo([], 0, 2**32)]
)
def test_numbers_that_do_not_fit_are_refused_when_written(info: SamplingInfo) -> None:
    with pytest.raises(RecordError, match="not"):
        info.SerializeToString()


def test_a_reward_beyond_32_bits_and_a_count_of_zero_are_refused() -> None:
    with pytest.raises(RecordError, match="1e\\+39"):
        Record(SamplingInfo(), 1e39).encode()
    with pytest.raises(RecordError, match="not 0"):
        Record(SamplingInfo(), 1.0, count=0).encode()
    with pytest.raises(RecordError, match="not 0"):
        Record.decode(bytes.fromhex("20 00"))


def test_protobuf_reads_our_bytes_and_we_read_protobufs() -> None:
    descriptor_pb2, descriptor_pool, message_factory = (
        pytest.importorskip(f"google.protobuf.{name}", reason="protobuf is not installed")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(name="evokit_test.proto", package="evokit", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    sampling = file.message_type.add(name="SamplingInfo")
    sampling.field.add(name="key", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_REPEATED)
    sampling.field.add(name="model_iter_id", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    sampling.field.add(name="fingerprint", number=3, type=kinds.TYPE_FIXED32, label=kinds.LABEL_OPTIONAL)
    sampling.field.add(name="identity", number=4, type=kinds.TYPE_FIXED64, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    theirs = message_factory.GetMessageClass(pool.FindMessageTypeByName("evokit.SamplingInfo"))()
    ours = SamplingInfo([2**31 - 1, 12], 77, 0xDEADBEEF, identity=2**61 + 3)
    theirs.ParseFromString(ours.SerializeToString())
    assert (list(theirs.key), theirs.model_iter_id, theirs.fingerprint) == (ours.key, 77, 0xDEADBEEF)
    assert theirs.identity == ours.identity
    assert theirs.SerializeToString() == ours.SerializeToString()
    assert PROTO.read_text().count("optional") == 13
