"""kill -9 before any write of an update leaves a directory that works, and nothing that stays in the way."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# Forks a child for each point at which `offline_update` touches the disk, kills it there, and opens what is left.
# Points are all calls into C that open, write, sync, link, rename, lock or remove files, and all lines of the functions
# that put directories in place, since one of these calls (the exchange of two names) goes through ctypes. The parent
# has one thread, so forking is safe.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from parl_evokit import AsyncESAgent, ESAgent, LogWriter, _directories, _solver_dir, mlp, online

base, exchange, into, first = Path(sys.argv[1]), sys.argv[2] == "exchange", sys.argv[3], int(sys.argv[4])
CONFIG = {"keys": "COUNTER", "solver": {"optimizer": {"type": "ADAM"}},
          "async_es": {"model_warehouse": str(base), "max_to_keep": 1}}
model, log = base / "model_iter_id-0", base.parent / "log"
updated = model if into == "place" else base / "model_iter_id-1"
CALLS = {"open", "write", "flush", "fsync", "link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "close",
         "truncate", "flock"}
LINES = {"_put_in_place", "_exchange", "removed"}
if not exchange:
    _directories._exchange = lambda a, b: False

def opened(directory):
    agent = ESAgent()
    agent.load_config(CONFIG)
    agent.load_inference_model(directory, model=mlp([4, 3, 2]))
    agent.load_solver(directory)
    return agent

def update(kill_at):
    count = 0
    def reached():
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    def calls(frame, event, argument):
        if event == "c_call" and argument.__name__ in CALLS:
            reached()
    def lines(frame, event, argument):
        if frame.f_code.co_name not in LINES:
            return None
        if event == "line":
            reached()
        return lines
    sys.setprofile(calls)
    sys.settrace(lines)
    run()
    sys.settrace(None)
    sys.setprofile(None)

def run():
    if into == "warehouse":
        AsyncESAgent(mlp([4, 3, 2]), CONFIG).update_from_log(log)
    else:
        online.offline_update(lambda: opened(model), [log], model, updated)

def newest():
    _directories.clear_leftovers(base)
    return opened(updated if (updated / "solver.json").exists() else model)

def fresh():
    for path in sorted(base.glob("*"), reverse=True):
        _directories.removed(path) if path.is_dir() else path.unlink()
    ESAgent(CONFIG, mlp([4, 3, 2])).save(model)

agent = ESAgent(CONFIG, mlp([4, 3, 2]))
clone = agent.clone()
with LogWriter(log) as writer:
    for number in range(6):
        info = clone.add_noise()
        writer.sampled(info)
        writer.reward(info, float(number))
    writer.sampled(clone.add_noise())
    info.model_iter_id = 7
    writer.reward(info, 1.0)              # an orphan
agent.save(model)
digest = opened(model).update_from_log(log)[0].parameters_sha256

states, point = [], first - 1
while True:
    point += 1
    fresh()
    child = os.fork()
    if child == 0:
        update(point)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    agent = newest()                       # whole, whichever of the two it is
    states.append(agent.model_iter_id)
    if agent.model_iter_id == 0:
        run()                              # the same command again
        agent = newest()
    assert agent.model_iter_id == 1
    assert _solver_dir.vector_digest(agent._strategy.mean) == digest
    left = sorted(path.name for path in base.parent.rglob("*") if ".tmp" in path.name)
    assert not left, (point, left)
    if status == 0:
        break
print(point, *states)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and the exchange of two directories")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("exchange", "into", "first"),
    [
        # offline-update of a directory onto itself
        pytest.param("exchange", "place", 1, marks=pytest.mark.long),
        ("rename", "place", 120),  # the same where two names cannot be exchanged; only the later points differ
        ("exchange", "warehouse", 1),  # AsyncESAgent, which writes a directory, keeps orphans, and removes an old model
    ],
)
def test_an_update_killed_before_any_write_leaves_the_old_or_the_new_model_whole(
    exchange: str, into: str, first: int
) -> None:
    # In memory where there is such a place: hundreds of updates would wait for a disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(place, "models")), exchange, into, str(first)],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    points, *states = (int(word) for word in done.stdout.split())
    assert points > 100
    assert states[0] == 0
    assert states[-1] == 1
    assert states == sorted(states)
