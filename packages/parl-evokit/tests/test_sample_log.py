"""The log keeps every good record, counts it once, and never passes damage in silence."""

import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_evokit import LogWriter, read_log
from parl_evokit._records import Record, SamplingInfo
from parl_evokit.errors import LogError, RecordError
from parl_evokit.log import write_raw
from parl_evokit.log._frames import MANY, SYNC, Header, find_frames, frame, scan

PRINT = 0xDEADBEEF


def info(number: int, model: int = 3, fingerprint: int = PRINT) -> SamplingInfo:
    return SamplingInfo([2**30 + number, 2 * number], model, fingerprint)


def write(directory: Path, count: int, first: int = 0) -> Path:
    with LogWriter(directory) as log:
        for number in range(first, first + count):
            log.reward(info(number), float(number))
    return max(directory.glob("*.evl"), key=lambda path: path.stat().st_mtime_ns)


def numbers(infos: list[SamplingInfo]) -> list[int]:
    return [i.key[1] // 2 for i in infos]


def test_what_was_written_is_read_with_rewards_and_fingerprints(tmp_path: Path) -> None:
    write(tmp_path, 50)
    contents = read_log(tmp_path)
    assert contents.infos == [info(number) for number in range(50)]
    assert contents.rewards == [float(number) for number in range(50)]
    assert [(part.records, part.damage, part.unread) for part in contents.segments] == [(50, [], 0)]


def test_a_record_takes_at_most_30_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    before = path.stat().st_size
    path.unlink()
    assert (write(tmp_path, 101).stat().st_size - before) / 100 <= 30


def test_rewards_that_come_later_from_another_process_are_joined_by_sample(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as service, LogWriter(tmp_path) as clicks:
        for number in range(4):
            service.sampled(info(number))
        clicks.reward(info(2), 1.0)
        clicks.reward(info(0), 2.0)
        clicks.reward(info(2), 4.0)
    contents = read_log(tmp_path)
    assert numbers(contents.infos) == [0, 2]
    assert contents.rewards == [2.0, 2.5]
    assert contents.pending == 2
    assert len(list(tmp_path.glob("*.evl"))) == 2


def test_the_ledger_makes_each_record_count_once_also_when_the_log_grows(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    ledger: dict[str, int] = {}
    seen: list[int] = []
    for number in range(10):
        log.reward(info(number), 1.0)
        contents = read_log(tmp_path, ledger)
        ledger = contents.ledger
        seen += numbers(contents.infos)
        assert read_log(tmp_path, ledger).infos == []
    log.close()
    assert seen == list(range(10))


def test_a_copy_of_a_segment_counts_once_and_so_does_an_older_shorter_copy(tmp_path: Path) -> None:
    path = write(tmp_path, 20)
    (tmp_path / "copy.evl").write_bytes(path.read_bytes())
    (tmp_path / "a-shorter-copy.evl").write_bytes(path.read_bytes()[:-100])
    contents = read_log(tmp_path)
    assert sorted(numbers(contents.infos)) == list(range(20))
    assert len(contents.ledger) == 1
    assert read_log(tmp_path / "a-shorter-copy.evl", contents.ledger).infos == []


def test_a_half_written_record_at_the_end_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    contents = read_log(tmp_path)
    assert numbers(contents.infos) == [0, 1, 2, 3]
    assert contents.segments[0].unread > 0
    path.write_bytes(whole)
    assert numbers(read_log(tmp_path, contents.ledger).infos) == [4]


def test_a_segment_of_which_only_the_beginning_is_there_is_not_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:20])
    contents = read_log(tmp_path)
    assert contents.infos == []
    assert contents.ledger == {}


def test_twenty_flipped_bytes_cost_at_most_twenty_records_and_none_is_wrong(tmp_path: Path) -> None:
    path = write(tmp_path, 5000)
    draw = random.Random(1)
    data = bytearray(path.read_bytes())
    for place in draw.sample(range(400, len(data)), 20):
        data[place] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    contents = read_log(tmp_path)
    assert len(contents.infos) >= 4980
    assert contents.rewards == [float(number) for number in numbers(contents.infos)]
    report = contents.segments[0]
    assert 0 < report.damaged_bytes <= 20 * 40
    saved = report.save_damaged()
    assert saved is not None
    assert saved.stat().st_size == report.damaged_bytes


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damage_ever_changes_a_record_or_hides_a_good_one(tmp_path: Path, data: st.DataObject) -> None:
    frames = [frame(Record(info(number), float(number)).encode()) for number in range(12)]
    head = frame(Header("s" * 32, PRINT).encode())
    good = bytearray(head + head + b"".join(frames))
    starts = [2 * len(head) + sum(map(len, frames[:number])) for number in range(13)]
    flipped = data.draw(st.lists(st.integers(0, len(good) - 1), max_size=4, unique=True))
    for place in flipped:
        good[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(good)))
    path = tmp_path / "log.evl"
    path.write_bytes(good[:cut])
    untouched = [
        number
        for number in range(12)
        if starts[number + 1] <= cut and not any(starts[number] <= place < starts[number + 1] for place in flipped)
    ]
    if all(any(start <= place < start + len(head) for place in flipped) for start in (0, len(head))) and untouched:
        with pytest.raises(LogError, match="headers are damaged"):
            read_log(path, max_damage=1.0)
        return
    contents = read_log(path, max_damage=1.0)
    assert numbers(contents.infos) == untouched
    assert contents.rewards == [float(number) for number in untouched]
    touched = [place for place in flipped if place < cut]
    if touched and contents.infos:
        assert contents.segments[0].damage or contents.segments[0].unread


def test_too_much_damage_is_refused_unless_told(tmp_path: Path) -> None:
    path = write(tmp_path, 50)
    data = bytearray(path.read_bytes())
    for place in range(600, 900, 10):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(LogError, match="are damaged, more than max_damage=0"):
        read_log(tmp_path)
    assert len(read_log(tmp_path, max_damage=0.5).infos) >= 35


def test_one_damaged_header_is_survived_and_two_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    data = bytearray(path.read_bytes())
    data[3] ^= 0xFF
    path.write_bytes(data)
    assert read_log(tmp_path, max_damage=1.0).infos == [info(number) for number in range(5)]
    second = data.index(b"\xe5\x4b", 2)
    data[second + 20] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(LogError, match="both headers are damaged"):
        read_log(tmp_path, max_damage=1.0)


def test_a_segment_ends_at_its_size_and_a_fork_begins_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LogWriter(tmp_path, max_bytes=600) as log:
        for number in range(40):
            log.reward(info(number), 1.0)
        segments = len(list(tmp_path.glob("*.evl")))
        assert segments > 2
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        log.reward(info(40), 1.0)
        assert len(list(tmp_path.glob("*.evl"))) == segments + 1
    assert sorted(numbers(read_log(tmp_path).infos)) == list(range(41))


def test_records_of_other_models_and_of_none_keep_what_they_are(tmp_path: Path) -> None:
    samples = [info(1, 3, 7), info(2, 3, 8), info(3, 3, 0), info(4, 3, 7)]
    with LogWriter(tmp_path) as log:
        for sample in samples:
            log.reward(sample, 1.0)
    assert sorted(map(str, read_log(tmp_path).infos)) == sorted(map(str, samples))


def test_the_manuals_form_is_read_and_counts_once(tmp_path: Path) -> None:
    samples, rewards = [info(number) for number in range(5)], [1.0, 2.0, 3.0, 4.0, 5.0]
    path = tmp_path / "sampling_log"
    write_raw(path, samples, rewards)
    # As the PARL 1.x manual's program writes it: float, int, bytes.
    assert path.read_bytes()[:8] == b"\x00\x00\x80\x3f" + bytes((len(samples[0].SerializeToString()), 0, 0, 0))
    contents = read_log(path)
    assert (contents.infos, contents.rewards) == (samples, rewards)
    assert read_log(path, contents.ledger).infos == []
    path.write_bytes(path.read_bytes() + b"\x00\x00")
    contents = read_log(path, contents.ledger)
    assert (contents.infos, contents.segments[0].unread) == ([], 2)
    write_raw(path, samples[:2], [9.0, 9.0])
    assert numbers(read_log(path, contents.ledger).infos) == [0, 1]


def test_a_file_in_the_manuals_form_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sampling_log"
    write_raw(path, [info(1)], [1.0])
    before = path.read_bytes()
    with pytest.raises(RecordError, match="2\\*\\*31"):
        write_raw(path, [info(1), SamplingInfo([2**31, 1])], [1.0, 2.0])
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_a_file_in_the_manuals_form_may_hold_the_bytes_that_begin_a_frame(tmp_path: Path) -> None:
    samples = [SamplingInfo([0x65 | 0x4B << 7, 4], 3, PRINT)]
    path = tmp_path / "sampling_log"
    write_raw(path, samples, [1.0])
    assert b"\xe5\x4b" in path.read_bytes()
    assert read_log(path).infos == samples


def test_a_damaged_file_in_the_manuals_form_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "sampling_log"
    write_raw(path, [info(number) for number in range(5)], [1.0] * 5)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 // 29 * 29 + 7] = 0x7F
    path.write_bytes(data)
    contents = read_log(path)
    assert 0 < len(contents.infos) < 5
    assert contents.segments[0].unread > 0


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"neither a log's directory nor a file: it does not exist \(a service makes it"):
        read_log(tmp_path / "nowhere")
    (tmp_path / "text").write_text("something else entirely, longer than any header")
    with pytest.raises(LogError, match="neither a segment nor a log in the raw form"):
        read_log(tmp_path / "text")
    with pytest.raises(LogError, match="is a file; a log is a directory"):
        LogWriter(tmp_path / "text")
    with pytest.raises(LogError, match="fsync_every must be 0 or more"):
        LogWriter(tmp_path, fsync_every=-1)
    (tmp_path / "frames.evl").write_bytes(frame(Header("s", 1).encode()) * 2 + frame(b"\x0a\x05a"))
    with pytest.raises(LogError, match="a whole frame that is not a record"):
        read_log(tmp_path / "frames.evl")
    with pytest.raises(RecordError, match="format 1"):
        Header.decode(b"\x08\x02")
    with pytest.raises(RecordError, match="65535"):
        frame(bytes(70_000))


def test_a_full_disk_is_reported_to_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogWriter(tmp_path)
    log.reward(info(1), 1.0)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))
    with pytest.raises(LogError, match="only 5 of"):
        log.reward(info(2), 1.0)
    monkeypatch.undo()
    log.reward(info(3), 1.0)
    log.close()
    contents = read_log(tmp_path)
    assert numbers(contents.infos) == [1, 3]
    assert contents.damaged_bytes == 0  # the torn frame was taken back


@pytest.mark.parametrize("whole", [False, True], ids=["segment", "directory"])
def test_a_segment_that_is_removed_while_it_is_open_is_reported_and_a_new_one_begun(
    tmp_path: Path, whole: bool
) -> None:
    log = LogWriter(tmp_path / "log", fsync_every=2)
    log.reward(info(1), 1.0)
    shutil.rmtree(tmp_path / "log")
    if not whole:
        (tmp_path / "log").mkdir()
    with pytest.raises(LogError, match="was removed while it was written to"):
        log.reward(info(2), 1.0)
    log.reward(info(2), 1.0)
    log.close()
    assert numbers(read_log(tmp_path / "log").infos) == [2]


def test_a_segment_whose_header_cannot_be_written_takes_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))
    with pytest.raises(LogError, match="only 5 of"):
        log.reward(info(1), 1.0)
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    log.reward(info(2), 1.0)
    log.close()
    assert numbers(read_log(tmp_path).infos) == [2]


def test_a_scan_goes_on_where_the_last_one_ended() -> None:
    data = frame(b"one") + frame(b"two")
    first = scan(data[:-2])
    assert (first.payloads, first.damage) == ([b"one"], [])
    assert scan(data, first.end).payloads == [b"two"]


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_a_long_piece_are_found_although_payloads_hold_the_bytes_that_begin_a_frame(seed: int) -> None:
    draw = random.Random(seed)
    data, places = bytearray(), []
    while len(data) < 2 * MANY:
        payload = draw.randbytes(draw.randrange(40)) + draw.choice([b"", b"", SYNC, SYNC[:1], frame(b"x")])
        places.append(len(data))
        data += frame(payload)
    damaged = set(draw.sample(range(len(places)), 5) if seed % 2 else [])
    for number in damaged:
        data[places[number] + 4] ^= 1  # a byte of the checksum
    found = find_frames(bytes(data))
    inside = {place for start, end in found.damage for place in range(start, end)}  # a frame in a damaged one is found
    good = [place for number, place in enumerate(places) if number not in damaged]
    assert [place for place in found.places if place in set(places)] == good
    assert all(places[number] in inside for number in damaged)
