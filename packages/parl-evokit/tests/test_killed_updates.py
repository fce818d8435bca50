"""kill -9 between any two writes of an update leaves a directory that works."""

import subprocess
import sys
from pathlib import Path

import pytest

# Forks a child for each point at which an update touches the disk, kills it there, and opens what is left. The parent
# has one thread, so forking is safe; the child's audit hook sees every call that changes files.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from parl_evokit import ESAgent, LogWriter, mlp

CONFIG = {"keys": "COUNTER", "solver": {"optimizer": {"type": "ADAM"}}}
base = Path(sys.argv[1])
model, log = base / "model", base / "log"
WRITES = {"os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "ctypes.dlsym", "shutil.rmtree"}

def opened():
    agent = ESAgent()
    agent.load_config(CONFIG)
    agent.load_inference_model(model, model=mlp([4, 3, 2]))
    agent.load_solver(model)
    return agent

def update(kill_at):
    agent, count = opened(), 0
    def hook(event, arguments):
        nonlocal count
        writes = event in WRITES or event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_WRONLY
        if writes or event == "open" and arguments[2] & os.O_RDWR:
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    agent.update_from_log(log)
    agent.save(model)

agent = ESAgent(CONFIG, mlp([4, 3, 2]))
clone = agent.clone()
with LogWriter(log) as writer:
    for number in range(6):
        writer.reward(clone.add_noise(), float(number))
agent.save(model)
straight = opened()
digest = straight.update_from_log(log)[0].parameters_sha256

states, point = [], 0
while True:
    point += 1
    child = os.fork()
    if child == 0:
        update(point)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    agent = opened()                       # whole, whichever of the two it is
    states.append(agent.model_iter_id)
    if agent.model_iter_id == 0:
        assert agent.update_from_log(log)[0].parameters_sha256 == digest
    else:
        agent.save(model)                  # works on
        ESAgent(CONFIG, mlp([4, 3, 2])).save(model)
    if status == 0:
        break
print(point, *states)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and the exchange of two directories")
def test_an_update_killed_at_any_write_leaves_the_old_or_the_new_model_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    points, *states = (int(word) for word in done.stdout.split())
    assert points > 8
    assert states[0] == 0
    assert states[-1] == 1
    assert set(states) == {0, 1}
