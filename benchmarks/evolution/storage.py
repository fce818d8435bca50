"""The log: bytes, speeds and the cost of damage, compared with the raw form and a bare `write`."""

import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timing import Table, clock, in_turns

from parl_evokit import ESAgent, LogWriter, NothingToUpdate, RandomKeys, Record, SamplingInfo, mlp, read_log
from parl_evokit._records import sampling_infos

REWARD = 1.5
HERE = Path(__file__).parent


def records(count: int) -> list[SamplingInfo]:
    """Return records with keys as clones draw them: 62 random bits, of which most take ten bytes."""
    return sampling_infos(RandomKeys().draw_many(count).tolist(), (300, 77))


def speeds(table: Table, quick: bool) -> None:
    """Measure appending with and without fsync, reading, and bytes per record."""
    count = 5_000 if quick else 50_000
    infos = records(count)
    folder = Path(tempfile.mkdtemp())
    number = [0]

    def append(every: int) -> Callable[[], None]:
        def call() -> None:
            number[0] += 1
            with LogWriter(folder / f"log{number[0]}", fsync_every=every) as writer:
                for info in infos:
                    writer.reward(info, REWARD)

        return call

    def bare(every: int) -> Callable[[], None]:
        lines = [b"x" * 29] * count  # a record with its frame

        def call() -> None:
            number[0] += 1
            descriptor = os.open(folder / f"bare{number[0]}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            for i, line in enumerate(lines, 1):
                os.write(descriptor, line)
                if every and i % every == 0:
                    os.fsync(descriptor)
            os.close(descriptor)

        return call

    def encode() -> None:
        for info in infos:
            Record(info, REWARD).encode()

    try:
        calls = {"append": append(0), "fsync": append(100), "bare": bare(0), "bare fsync": bare(100), "encode": encode}
        found = {name: 1e6 * s / count for name, s in in_turns(calls, turns=3, seconds=1.0).items()}
        table.row("log append", "us a record", found["append"], {"bare write": found["bare"]}, "<= 3.5 us")
        encoded = {"encode + bare write + fsync": found["bare fsync"] + found["encode"]}
        table.row("log append, fsync every 100", "us a record", found["fsync"], encoded, "<= 1.15")
        log = folder / "log1"
        seconds = in_turns({"read": lambda: read_log(log)}, turns=3)["read"]
        table.row("log read", "us a record", 1e6 * seconds / count, None, "<= 2.5 us")
        size = sum(path.stat().st_size for path in log.iterdir()) / count
        raw = len(raw_bytes(infos[:1000])) / 1000
        table.row("log size", "bytes a record", size, {"raw form": raw}, "<= 30")
    finally:
        shutil.rmtree(folder)


def raw_bytes(infos: list[SamplingInfo]) -> bytes:
    """Return records in the raw form: float32 reward, int32 size, message."""
    out = bytearray()
    for info in infos:
        message = SamplingInfo(info.key, info.model_iter_id).SerializeToString()
        out += struct.pack("<fi", REWARD, len(message)) + message
    return bytes(out)


def damage(table: Table, quick: bool) -> None:
    """Measure the intact records that are lost to 20 flipped bytes, or to five cuts of 1000 bytes."""
    count = 20_000 if quick else 200_000
    infos = records(count)
    known = {tuple(info.key) for info in infos}
    folder = Path(tempfile.mkdtemp())
    dice = random.Random(1)
    try:
        with LogWriter(folder / "log", fsync_every=0) as writer:
            for info in infos:
                writer.reward(info, REWARD)
        [segment] = (folder / "log").glob("*.evl")
        framed, raw = segment.read_bytes(), raw_bytes(infos)
        for what in ("20 flipped bytes", "5 cuts of 1000 bytes"):
            lost = {}
            for name, whole in (("framed", framed), ("raw form", raw)):
                data = bytearray(whole)
                for place in sorted(dice.sample(range(200, len(data) - 2000), 20 if "flip" in what else 5))[::-1]:
                    if "flip" in what:
                        data[place] ^= 1 << dice.randrange(8)
                    else:
                        del data[place : place + 1000]
                path = folder / f"{name.split()[0]}-{what[0]}"
                path.mkdir()
                (path / ("one.evl" if name == "framed" else "one.log")).write_bytes(data)
                began = clock()
                read = read_log(path, max_damage=1.0).samples
                assert clock() - began < 60
                keys = {tuple(info.key) for info in read.infos()}
                wrong = len(keys - known) + int((read.rewards != REWARD).sum())
                lost[name] = (count - len(read), wrong)
            row = f"records lost by {what} in {count}; read wrong"
            table.row(row, "", lost["framed"], {"raw form": float(lost["raw form"][0])}, "20 or 173; 0 wrong")
    finally:
        shutil.rmtree(folder)


def long_logs(table: Table, quick: bool) -> None:
    """Measure the processor time of an update of many records, and of one that finds nothing new in many segments."""
    count, segments = (50_000, 200) if quick else (1_500_000, 5_000)
    folder = Path(tempfile.mkdtemp())
    try:
        clone = agent().clone()
        with LogWriter(folder / "one", fsync_every=0) as log:
            for info in clone.draw(count):
                log.reward(info, float(info.key[1] % 97))
        for info in clone.draw(segments):
            with LogWriter(folder / "many", fsync_every=0) as log:
                log.reward(info, float(info.key[1] % 97))
        seconds, megabytes = measured_alone("first_update", folder / "one")
        (empty,) = measured_alone("empty_update", folder / "many")
    finally:
        shutil.rmtree(folder)
    what = f"update from a log of {count:,} records, 990 parameters, table"
    table.row(f"{what}: processor time", "s", seconds, None, "<= 3 s")
    table.row(f"{what}: memory above import", "MB", megabytes, None, "<= 250 MB")
    table.row(f"update that finds nothing new in {segments:,} segments: processor time", "s", empty, None, "<= 0.2 s")


def measured_alone(function: str, log: Path) -> list[float]:
    """Return the numbers that a function of this file prints for a log, run in a separate process."""
    program = f"import storage; storage.{function}({str(log)!r})"
    return [float(word) for word in subprocess.check_output([sys.executable, "-c", program], cwd=HERE).split()]


def agent() -> ESAgent:
    sampling = {"gaussian_sampling": {"cached": True}}
    return ESAgent({"solver": {"optimizer": {"type": "ADAM"}, "sampling": sampling}}, mlp([41, 23, 1]))


def first_update(log: str) -> None:
    """Print processor time and memory of an update."""
    learner = agent()
    before, began = peak_mb(), time.process_time()
    learner.update_from_log(log)
    print(time.process_time() - began, peak_mb() - before)


def peak_mb() -> float:
    """Return the largest resident memory of this program so far (Linux; `getrusage` has that of its parent, too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def empty_update(log: str) -> None:
    """Print the processor time of an update after one that has used the whole log."""
    learner = agent()
    learner.update_from_log(log)
    began = time.process_time()
    try:
        learner.update_from_log(log)
    except NothingToUpdate:
        print(time.process_time() - began)
