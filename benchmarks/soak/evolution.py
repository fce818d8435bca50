"""Random faults of an online product: no reward is lost, none counts twice, and nothing blocks later updates.

    python benchmarks/soak/evolution.py --seconds 3600 [--seed 7] [--place /dev/shm]

    visitors (2 processes) ─► log ◄─ vandal: copies, garbage, damaged and headless segments, redelivered rewards
                               │
    updaters (2 processes) ────┼──► warehouse            all of them: killed at any moment, clocks that jump by days,
    janitor ── prunes, compacts┘                         calls into the system that fail (full disk, no descriptors)

Each process runs for about a second, then is killed and restarted. Each visitor process records in its own file the
tokens that it returned and the rewards that were acknowledged. At the end, one update without faults reads the rest,
and the samples that all updates have used are compared with these records. A part of the traffic is a holdout, whose
rewards sometimes cause a rollback, and in every second round late rewards count as 0. In every third round models
expire after some updates; then only samples of newer ones may be used.
"""

import argparse
import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from parl_evokit import AsyncESAgent, EvolutionError, LogWriter, Tokens
from parl_evokit._samples import IDENTIFIED
from parl_evokit._solver_dir import read_history, read_summary
from parl_evokit.async_agent import Warehouse
from parl_evokit.log._segments import compact, prune
from parl_evokit.noise._keys import ARM_BIT, Arm

ROUND_S = 60.0
CALLS = {
    "open", "write", "fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir", "truncate", "scandir", "read",
}  # fmt: skip
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EIO)
TOKENS = Tokens([bytes(32)], lifetime_s=10 * 365 * 86400)
DAY_S = 86400
TIMEOUT_S = 5.0
YOUNG = 3  # updates


def timeout_of(place: Path) -> float:
    """Return the seconds after which missing rewards count as 0 in this round; 0 for never."""
    return TIMEOUT_S if (place / "timeout").exists() else 0.0


def max_age_of(place: Path) -> int:
    """Return the maximum age of models in this round."""
    return YOUNG if (place / "young").exists() else 1_000_000


def agent_of(place: Path, wait_s: float = 0.5) -> AsyncESAgent:
    timeout_s = timeout_of(place)
    update: dict[str, Any] = {"max_age": max_age_of(place), "min_samples": 2, "reward_timeout_s": timeout_s}
    update["stale"] = "AUTO" if timeout_s else "GROUPED"
    guard = {"control_share": 0.2, "holdout_share": 0.2, "rollback": True, "min_control": 5}
    config = {
        "solver": {"optimizer": {"type": "ADAM"}, "update": update, "guard": guard},
        "async_es": {"model_warehouse": str(place / "warehouse"), "max_to_keep": 1_000_000},
    }
    return AsyncESAgent(({"w": np.ones(4, np.float32)}, lambda arrays, x: arrays["w"] @ x), config, wait_s=wait_s)


def troubled(draw: random.Random) -> None:
    """Let the clock of this process jump, and one in some thousand system calls fail."""
    real, offset = time.time_ns, draw.choice((0, 0, -3, 3)) * DAY_S * 10**9
    time.time_ns = lambda: real() + offset
    time.time = lambda: time.time_ns() / 1e9
    share = draw.choice((0.0, 0.001, 0.01))

    def profile(_: Any, event: str, argument: Any) -> None:
        if event != "c_call" or getattr(argument, "__name__", "") not in CALLS or draw.random() >= share:
            return
        if type(getattr(argument, "__self__", None)).__name__ in {"module", "FileIO", "BufferedWriter"}:
            number = draw.choice(ERRORS)
            raise OSError(number, os.strerror(number))

    if share:
        sys.setprofile(profile)


def visit(place: Path, seed: int) -> None:
    """Serve and reward samples; a reward is recorded after `reward` has returned."""
    draw = random.Random(seed)
    notes = os.open(place / f"notes-{seed}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    agent = agent_of(place)
    clone = agent.clone()
    log = LogWriter(place / "log", tokens=TOKENS, fsync_every=20, max_bytes=4000)
    early: list[tuple[str, float]] = []
    troubled(draw)
    while True:
        try:
            agent.refresh()
            info = clone.add_noise()
            token = log.sampled(info)
            sampler = clone.source.sampler
            kept = sampler.trusted if info.identity and info.identity >> ARM_BIT == Arm.TRUSTED else None
            served = info.model_iter_id if kept is None else kept[0]
            early.append((token, 2.0 * (served % 5 == 0)))
            if len(early) > 20 or draw.random() < 0.5:
                token, mean = early.pop(draw.randrange(len(early)))
                for _ in range(draw.choice((1, 1, 1, 2))):
                    log.reward(token, draw.gauss(mean, 1))
                trouble = sys.getprofile()
                sys.setprofile(None)
                os.write(notes, token.encode() + b"\n")
                sys.setprofile(trouble)
        except (EvolutionError, OSError):
            pass
        time.sleep(0.0005)


def update(place: Path, seed: int) -> None:
    """Update over and over."""
    draw = random.Random(seed)
    troubled(draw)
    agent = None
    while True:
        try:
            agent = agent or agent_of(place)
            agent.update_from_log(place / "log")
        except EvolutionError:
            pass
        except OSError:  # while the agent is opened and holds nothing yet
            agent = None
        time.sleep(draw.random() * 0.05)


def clean(place: Path, seed: int) -> None:
    """Remove used segments, or move them into an archive."""
    draw = random.Random(seed)
    troubled(draw)
    while True:
        time.sleep(draw.random() * 0.5)
        try:
            newest = Warehouse(place / "warehouse").newest()
            if newest is None:
                continue
            ledger = read_summary(newest[1])["ledger"]
            if draw.random() < 0.5:
                prune([place / "log"], ledger)
            else:
                compact([place / "log"], ledger, place / "archive")
        except (EvolutionError, OSError):
            pass


def vandalise(place: Path, draw: random.Random) -> None:
    """Add a damaged segment, or a duplicate of a good one."""
    segments = sorted((place / "log").glob("2*.evl"))
    kind, name = draw.randrange(4), f"{draw.randrange(10**9)}.evl"
    if kind == 0:
        (place / "log" / f"garbage-{name}").write_bytes(draw.randbytes(3000))
    elif segments:
        try:
            data = bytearray(draw.choice(segments).read_bytes())
        except FileNotFoundError:  # the janitor has removed it
            return
        if kind == 1 and len(data) > 400:  # headless
            data[:160] = bytes(160)
        elif kind == 2 and len(data) > 600:  # a partly damaged copy
            first = draw.randrange(200, len(data) - 300)
            data[first : first + 200] = draw.randbytes(200)
        (place / "log" / f"copy-{name}").write_bytes(data)


def spawn(place: Path, role: Any, seed: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            role(place, seed)
        finally:
            os._exit(1)
    return pid


def run(place: Path, seconds: float, seed: int) -> dict[str, int]:
    """Run all processes and return the counts; raise `AssertionError` if a check fails."""
    draw = random.Random(seed)
    agent_of(place)
    (place / "log").mkdir()
    roles = [visit, visit, update, update, clean]
    number = 0
    kills = 0
    end = time.monotonic() + seconds
    living = [spawn(place, role, seed + (number := number + 1)) for role in roles]
    try:
        while time.monotonic() < end:
            time.sleep(draw.random() * 0.6)
            which = draw.randrange(len(roles))
            os.kill(living[which], signal.SIGKILL)
            os.waitpid(living[which], 0)
            kills += 1
            living[which] = spawn(place, roles[which], seed + (number := number + 1))
            if draw.random() < 0.3:
                vandalise(place, draw)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {"seconds": round(seconds), "kills": kills} | settled(place)


def settled(place: Path) -> dict[str, int]:
    """Update once more without faults, and compare used samples with acknowledged rewards."""
    agent = agent_of(place, wait_s=5.0)
    clone = agent.clone()
    with LogWriter(place / "log", tokens=TOKENS) as log:
        for _ in range(8):
            log.reward(log.sampled(clone.add_noise()), 1.0)
    _, contents = agent.update_from_log(place / "log")
    newest = Warehouse(place / "warehouse").newest()
    assert newest is not None
    lines = [json.loads(line) for line in read_history(newest[1])]
    used: Counter[tuple[int, int]] = Counter()
    batches = {}
    for directory in Warehouse(place / "warehouse").models().values():
        for name, ranges in read_summary(directory)["used"].items():
            batches[name] = directory / name, ranges  # of one update, in all directories that still record it
    for path, ranges in batches.values():
        keys = np.load(path)
        for model, (first, last) in ranges.items():
            used.update((int(model), key) for key in keys[first:last].tolist())
    twice = {sample for sample, count in used.items() if count > 1}
    acknowledged = set()
    for notes in place.glob("notes-*"):
        for line in notes.read_text().splitlines():
            if len(line) == 56:
                info = TOKENS.redeem(line)
                acknowledged.add((info.model_iter_id, info.noise_key or info.identity | int(IDENTIFIED)))
    oldest = agent.model_iter_id - max_age_of(place)  # the records of models up to this one may have been removed
    lost = {sample for sample in acknowledged - set(used) if sample[0] > oldest}
    assert not twice, f"{len(twice)} samples counted twice"
    assert not lost, f"{len(lost)} of {len(acknowledged)} rewards are lost, as {sorted(lost)[:3]}"
    assert not list((place / "warehouse").glob("*.tmp-*")), "a temporary directory stays"
    return {
        "models": len(Warehouse(place / "warehouse").models()),
        "segments": len(list((place / "log").glob("*.evl"))),
        "quarantined": len(list((place / "log" / "quarantine").glob("*.evl"))),
        "rewards acknowledged": len(acknowledged),
        "samples used": len(used),
        "samples too old": len(acknowledged - set(used) - lost),
        "waiting": contents.pending,
        "rolled back": sum(bool(line.get("rolled_back")) for line in lines),
        "timed out": sum(line.get("timed_out", 0) for line in lines),
        "archives": len(list((place / "archive").glob("*.evl"))),
        "lost": len(lost),
        "twice": len(twice),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", help="parent of the temporary directory")
    given = parser.parse_args()
    total: Counter[str] = Counter()
    while total["seconds"] < given.seconds:  # separate rounds, because this process's records grow with the updates
        place = Path(tempfile.mkdtemp(dir=given.place))
        try:
            if total["rounds"] % 2:
                (place / "timeout").touch()
            if total["rounds"] % 3 == 2:
                (place / "young").touch()
            found = run(place, min(ROUND_S, given.seconds - total["seconds"]), given.seed + 10_000 * total["rounds"])
        except AssertionError as error:
            print(f"round {total['rounds']}: {error}; all files are in {place}", flush=True)
            sys.exit(1)
        total.update(found | {"rounds": 1})
        print(json.dumps(total), flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
