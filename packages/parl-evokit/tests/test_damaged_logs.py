"""Logs shuffled, copied, cut off, with flipped bits: never another result in silence, no good record refused."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_evokit import LogWriter, mlp, off_policy, read_log
from parl_evokit._records import Record, SamplingInfo
from parl_evokit.agent import ESAgent
from parl_evokit.errors import LogError, NothingToUpdate
from parl_evokit.log import write_raw
from parl_evokit.log._frames import Header, frame
from parl_evokit.log._segments import prune

PRINT = 77
EXAMPLES = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def info(number: int) -> SamplingInfo:
    return SamplingInfo([2**30 + number, 2 * number], 3, PRINT)


def segment(name: str, numbers: range) -> tuple[bytes, list[tuple[int, int, int]]]:
    """A segment, and of each of its records number, begin and end."""
    head = frame(Header(name, PRINT).encode())
    data, places = head + head, []
    for number in numbers:
        record = frame(Record(info(number), float(number)).encode())
        places.append((number, len(data), len(data) + len(record)))
        data += record
    return data, places


@EXAMPLES
@given(data=st.data())
def test_every_record_that_is_whole_in_some_copy_counts_once(data: st.DataObject, tmp_path_factory: object) -> None:
    place = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    good: set[int] = set()
    for name in ("a" * 32, "b" * 32):
        first = 0 if name[0] == "a" else 100
        whole, places = segment(name, range(first, first + 8))
        header = places[0][1]
        for copy in range(data.draw(st.integers(1, 3), label="copies")):
            damaged = bytearray(whole)
            flips = data.draw(st.lists(st.integers(header, len(whole) - 1), max_size=3, unique=True), label="flips")
            for where in flips:
                damaged[where] ^= data.draw(st.integers(1, 255))
            cut = data.draw(st.integers(header, len(whole)), label="cut")
            (place / f"{data.draw(st.integers(0, 9))}-{name[0]}{copy}.evl").write_bytes(damaged[:cut])
            good |= {
                number
                for number, start, end in places
                if end <= cut and not any(start <= where < end for where in flips)
            }
    contents = read_log(place, max_damage=1.0)
    assert [one.key[1] // 2 for one in contents.infos] == sorted(good)
    assert contents.rewards == [float(number) for number in sorted(good)]
    again = read_log(place, contents.ledger, max_damage=1.0)
    assert again.infos == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str, int]:
    """A log of one segment, and the digest and number of samples of its update."""
    place = tmp_path_factory.mktemp("trained")
    agent = new_agent()
    clone = agent.clone()
    with LogWriter(place) as writer:
        for number in range(12):
            writer.reward(clone.add_noise(), float(number % 5))
    report, _ = agent.update_from_log(place)
    (path,) = place.glob("*.evl")
    return path.read_bytes(), report.parameters_sha256, report.used


def new_agent() -> ESAgent:
    return ESAgent({"keys": "COUNTER", "solver": {"optimizer": {"type": "ADAM"}}}, mlp([3, 2]))


@EXAMPLES
@given(data=st.data())
def test_an_update_of_a_damaged_log_says_so_or_gives_the_same_bits(
    data: st.DataObject, trained: tuple[bytes, str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole, digest, used = trained
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4, unique=True), label="flips"):
        damaged[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(whole)), label="cut")
    log = tmp_path_factory.mktemp("log")
    (log / "log.evl").write_bytes(damaged[:cut])
    try:
        report, contents = new_agent().update_from_log(log, max_damage=1.0)
    except (LogError, NothingToUpdate):
        assert bytes(damaged[:cut]) != whole
        return
    told = contents.damaged_bytes + sum(part.unread for part in contents.segments)
    if report.parameters_sha256 != digest or report.used != used:
        missing = len(whole) - cut
        assert told or missing, "records were lost in silence"
    assert report.used <= used


def test_the_order_of_files_and_records_does_not_change_a_bit(trained: tuple[bytes, str, int], tmp_path: Path) -> None:
    _, digest, _ = trained
    source = read_log_of(trained[0], tmp_path / "source")
    pairs = list(zip(source.infos, source.rewards, strict=True))
    for seed in range(5):
        random.Random(seed).shuffle(pairs)
        log = tmp_path / f"log{seed}"
        for part in (pairs[:5], pairs[5:7], pairs[7:]):
            with LogWriter(log) as writer:
                for one, reward in part:
                    writer.reward(one, reward)
        assert new_agent().update_from_log(log)[0].parameters_sha256 == digest


def read_log_of(data: bytes, directory: Path):  # type: ignore[no-untyped-def]
    directory.mkdir()
    (directory / "log.evl").write_bytes(data)
    return read_log(directory)


def test_a_damaged_copy_beside_a_whole_one_costs_nothing_and_is_reported(tmp_path: Path) -> None:
    whole, places = segment("c" * 32, range(30))
    damaged = bytearray(whole)
    for _, start, _ in places[:20]:
        damaged[start + 9] ^= 0xFF
    (tmp_path / "1.evl").write_bytes(damaged)
    with pytest.raises(LogError, match="are damaged, more than max_damage"):
        read_log(tmp_path)
    (tmp_path / "2.evl").write_bytes(whole)
    contents = read_log(tmp_path)
    assert len(contents.infos) == 30
    assert [(part.records, bool(part.damage)) for part in contents.segments] == [(10, True), (20, False)]


def test_an_update_that_has_moved_a_file_aside_is_replayed_with_it(tmp_path: Path) -> None:
    agent, log = new_agent(), tmp_path / "log"
    agent.save(tmp_path / "before")
    clone = agent.clone()
    for _ in range(30):
        with LogWriter(log) as writer:
            for number in range(10):
                writer.reward(clone.add_noise(), float(number % 5))
    bad = sorted(log.glob("*.evl"))[3]
    data = bytearray(bad.read_bytes())
    data[-30] ^= 0xFF
    bad.write_bytes(data)
    report, contents = agent.update_from_log(log)
    agent.save(tmp_path / "after")
    assert report.used == 299
    assert [segment.moved for segment in contents.quarantined] == [log / "quarantine" / bad.name]
    replayed, _ = new_agent().replay_log([log, log / "quarantine"], tmp_path / "after")
    assert (replayed.used, replayed.parameters_sha256) == (299, report.parameters_sha256)


def test_a_file_in_the_manuals_form_may_grow_and_its_beginning_counts_once(tmp_path: Path) -> None:
    path, longer = tmp_path / "raw", tmp_path / "longer"
    write_raw(path, [info(1), info(2)], [1.0, 2.0])
    write_raw(longer, [info(1), info(2), info(3)], [1.0, 2.0, 3.0])
    first = read_log(path)
    grown = read_log(longer, first.ledger)
    assert [one.key[1] // 2 for one in grown.infos] == [3]
    assert read_log([path, longer], grown.ledger).infos == []
    assert [one.key[1] // 2 for one in read_log([path, longer]).infos] == [1, 2, 3]


def test_a_segment_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    whole, _ = segment("d" * 32, range(3000))
    path = tmp_path / "1.evl"
    path.write_bytes(whole)
    ledger = read_log(path).ledger
    with path.open("r+b") as file:  # what the ledger has is not looked at: damage there is of no concern any more
        file.seek(len(whole) // 2)
        file.write(bytes(1000))
    contents = read_log(path, ledger)
    assert (contents.damaged_bytes, contents.infos) == (0, [])


def test_what_was_read_then_can_be_read_once_more(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        for number in range(5):
            writer.reward(info(number), 1.0)
        first = read_log(tmp_path)
        for number in range(5, 9):
            writer.reward(info(number), 1.0)
        second = read_log(tmp_path, first.ledger)
        writer.reward(info(9), 1.0)
    with LogWriter(tmp_path) as writer:
        writer.reward(info(10), 1.0)
    again = read_log(tmp_path, first.ledger, until=second.ledger)
    assert again.infos == second.infos == [info(number) for number in range(5, 9)]
    assert again.ledger == second.ledger


@pytest.mark.parametrize("copies", [1, 2])
def test_a_damaged_last_record_is_damage_once_its_writer_is_gone(tmp_path: Path, copies: int) -> None:
    with LogWriter(tmp_path) as log:
        for number in range(50):
            log.reward(SamplingInfo([5, number + 1], 1, 9), 1.0)
        (path,) = tmp_path.glob("*.evl")
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([whole[-1] ^ 0xFF]))
        first = read_log(tmp_path)
        assert (len(first.samples), first.damaged_bytes, first.segments[0].unread) == (49, 0, 21)
    for number in range(1, copies):
        (tmp_path / f"copy-{number}.evl").write_bytes(path.read_bytes())
    second = read_log(tmp_path, first.ledger, max_damage=1.0)
    assert [(part.damage, part.unread) for part in second.segments] == [([(len(whole) - 21, len(whole))], 0)] * copies
    third = read_log(tmp_path, second.ledger)
    assert (len(third.samples), third.damaged_bytes) == (0, 0)


def test_what_a_growing_copy_cuts_off_is_not_damage(tmp_path: Path) -> None:
    whole, places = segment("f" * 32, range(3))
    ledger: dict[str, int] = {}
    rewards = 0
    for size in range(places[0][1], len(whole) + 1):
        (tmp_path / "1.evl").write_bytes(whole[:size])
        contents = read_log(tmp_path, ledger)
        ledger, rewards = contents.ledger, rewards + len(contents.samples)
        assert contents.damaged_bytes == 0
    assert rewards == 3


def test_damaged_bytes_are_kept_once(tmp_path: Path) -> None:
    whole, places = segment("e" * 32, range(5))
    damaged = bytearray(whole)
    damaged[places[2][1] + 10] ^= 0xFF
    (tmp_path / "1.evl").write_bytes(damaged)
    for _ in range(2):
        kept = read_log(tmp_path, max_damage=1.0).segments[0].save_damaged()
    assert kept is not None
    assert kept.read_bytes() == bytes(damaged[places[2][1] : places[2][2]])
    assert sorted(os.listdir(tmp_path)) == ["1.evl", "1.evl.damaged"]


def test_a_file_that_cannot_be_read_waits_and_the_rest_is_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (10, 20):
        with LogWriter(tmp_path) as log:
            for number in range(3):
                log.reward(SamplingInfo([5, first + number], 1, 9), float(number))
    bad = sorted(tmp_path.glob("*.evl"))[0]
    real = os.open

    def refused(path: Any, *given: Any, **named: Any) -> int:
        if Path(path) == bad:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        contents = read_log(tmp_path)
        assert len(contents.samples) == 3
        assert [(report.path, report.problem) for report in contents.unreadable] == [
            (bad, "it cannot be read: Permission denied")
        ]
        assert contents.quarantined == []
        with pytest.raises(LogError, match="Permission denied"):
            read_log(tmp_path, contents.ledger)
    assert len(read_log(tmp_path, contents.ledger).samples) == 3


def test_a_link_that_leads_to_itself_or_nowhere_is_left_out(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as log:
        log.sampled(SamplingInfo([5, 6], 1, 7), action=1)
        log.reward(SamplingInfo([5, 6], 1, 7), 1.0)
    for name, target in (("loop.evl", "loop.evl"), ("long.evl", "x" * 1000), ("nowhere.evl", "none")):
        (tmp_path / name).symlink_to(target)
    contents = read_log(tmp_path)
    assert contents.rewards == [1.0]
    assert [report.path.name for report in contents.unreadable] == ["long.evl", "loop.evl"]
    assert all("cannot be read" in report.problem for report in contents.unreadable)
    assert off_policy.read_decisions(tmp_path).rewards.tolist() == [1.0]
    assert len(prune([tmp_path], contents.ledger, dry_run=True).segments) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.timeout(60)
def test_a_pipe_that_is_named_as_a_segment_is_left_out_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "good.evl").write_bytes(segment("a" * 32, range(5))[0])
    os.mkfifo(tmp_path / "pipe.evl")
    contents = read_log(tmp_path)
    assert len(contents.infos) == 5
    assert [report.path.name for report in contents.unreadable] == ["pipe.evl"]
