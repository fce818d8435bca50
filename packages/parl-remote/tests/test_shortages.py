"""A process of a cluster whose n-th open, socket, accept, mmap or fork fails goes on; what was asked for fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from faults.ports import unused_port
from faults.shortages import Call, Shortages
from parl_remote._run_files import RunFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="preloads a library and reads /proc")

PROGRAM = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import parl_remote as parl
from parl_remote import _current
from faults.shortages import Call, Switch

@parl.remote_class(n_cpu=0)
class Keeper:
    def __init__(self):
        self.value = 42

    def get(self):
        return self.value

    def pids(self):
        return os.getpid(), os.getppid()

    def echo(self, value):
        return value

    def total(self, value):
        return float(value.sum())

    def nested(self):
        return Keeper().get()

    def ask(self, other):
        return other.get()

@parl.remote_class(n_cpu=0, max_concurrency=3)
class Threads(Keeper):
    pass

@parl.remote_class(n_cpu=0)
class OnALoop(Keeper):
    async def pause(self):
        pass

def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def spare_of(zygote):
    while True:
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "comm").read_text() == "parl:spare\\n":
                    if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == zygote:
                        return int(entry.name)
            except OSError:
                pass
        time.sleep(0.01)

def main(target, kind, most, address="", *members):
    switch = Switch(os.environ["SHORTAGES"])
    parl.connect(address or None, **({} if address else {"cpu_num": 2}))
    first, asker = Keeper(), Keeper()
    master, worker = map(int, members or [_current.client()._cluster.pid] * 2)
    zygote = first.pids()[1]
    large = np.ones(200_000)
    steps = {
        "a new actor": lambda: Keeper().get(),
        "a large argument": lambda: actor.echo(large),
        "a handle": lambda: Keeper().ask(actor),
        "the same handle": lambda: asker.ask(actor),
        "a value": lambda: actor.total(parl.put(large)),
        "threads": lambda: Threads().get(),
        "a loop": lambda: OnALoop().get(),
        "an actor of an actor": lambda: actor.nested(),
        "an end": lambda: parl.kill(Keeper()),
    }
    for nth in range(1, most):
        actor = Keeper()
        pids = {"node": master, "master": master, "worker": worker, "zygote": zygote, "actor": actor.pids()[0]}
        pid = pids.get(target) or spare_of(zygote)
        failed = {}
        switch.fail(pid, Call[kind], nth)
        for name, step in steps.items():
            try:
                step()
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
        has_failed = switch.stop()
        lives = target == "spare" or is_alive(pid)
        # Afterwards, and with what was there before, all is as it was.
        answers = {Keeper().get(), first.get(), asker.ask(first), actor.get()}
        goes_on = answers == {42} and is_alive(master) and is_alive(worker)
        print(json.dumps([nth, failed, lives, goes_on]), flush=True)
        if not has_failed:
            return

main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
"""


MOST = {Call.PROC: 40}  # it is read again and again, so that no round is the last one
_ANY = 500
# A worker makes a hundred of each, and most in the same functions as a node of a private cluster.
_MANY = (Call.OPEN, Call.DISK, Call.PROC, Call.ACCEPT, Call.SOCKET)


@pytest.fixture(scope="module")
def shortages(tmp_path_factory: pytest.TempPathFactory) -> Shortages:
    return Shortages(tmp_path_factory.mktemp("shortages"))


def _rounds(
    shortages: Shortages, tmp_path: Path, target: str, call: Call, most: int, *cluster: object, **variables: str
) -> list[Any]:
    """Return the program's report of each round: the number, the errors by step, and whether all go on."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    paths = [path for path in sys.path if path]
    environment = {**os.environ, **shortages.environment, "PYTHONPATH": os.pathsep.join(paths), **variables}
    command = [sys.executable, str(program), target, call.name, str(most), *map(str, cluster)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _check(rounds: list[Any], call: Call) -> None:
    assert rounds
    cause = "there is no memory for a frame" if call is Call.FRAME else os.strerror(call.value[1])
    for nth, failed, lives, goes_on in rounds:
        assert lives, f"it ended at call {nth}"
        assert goes_on, nth
        assert len(failed) <= 1, (nth, failed)  # one failure of the system is one failure of ours
        assert all(cause in error for error in failed.values()), (nth, failed)


@pytest.mark.slow
@pytest.mark.timeout(1600)  # some hundred rounds, on a machine that may do much else
@pytest.mark.parametrize("call", list(Call))
@pytest.mark.parametrize("target", ["node", "zygote", "spare", "actor"])
def test_whichever_call_fails_the_process_goes_on(
    shortages: Shortages, tmp_path: Path, target: str, call: Call
) -> None:
    rounds = _rounds(shortages, tmp_path, target, call, MOST.get(call, _ANY))
    _check(rounds, call)
    assert call in MOST or not rounds[-1][1], "the last round has no failure"


@pytest.mark.slow
@pytest.mark.timeout(1600)  # some hundred rounds, on a machine that may do much else
@pytest.mark.parametrize(
    ("target", "call"),
    [
        pytest.param(target, call, marks=[pytest.mark.long] if target == "worker" and call in _MANY else [])
        for target in ("master", "worker")
        for call in Call
    ],
)
def test_whichever_call_of_a_node_of_a_real_cluster_fails_it_goes_on(
    shortages: Shortages, tmp_path: Path, target: str, call: Call
) -> None:
    variables = {"PARL_RUN_DIR": str(tmp_path / "run"), "PARL_MONITOR": "0", "PARL_FORCE_TCP": "1"}
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **shortages.environment, **variables, "PYTHONPATH": paths}

    def xparl(*arguments: object) -> None:
        command = [sys.executable, "-m", "parl_remote.cli", *map(str, arguments)]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=240)

    port = unused_port()
    try:
        xparl("start", "--port", port, "--cpu_num", 0)
        xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 2)
        run_files = RunFiles(tmp_path / "run")
        ((_, master),), ((_, worker),) = run_files.clusters(), run_files.workers()
        pids = (master.process.pid, worker.process.pid)
        most = MOST.get(call, _ANY)
        rounds = _rounds(shortages, tmp_path, target, call, most, f"localhost:{port}", *pids, **variables)
    finally:
        xparl("stop", "--all")
    _check(rounds, call)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["node", "actor"])
def test_a_connection_that_cannot_be_accepted_gets_the_reason(
    shortages: Shortages, tmp_path: Path, target: str
) -> None:
    rounds = _rounds(shortages, tmp_path, target, Call.ACCEPT, 4)
    _check(rounds, Call.ACCEPT)
    assert len(rounds) > 1, "one call has failed"
    # A caller that reads the reason before it has sent its call connects to the actor again.
    assert target == "actor" or any(failed for _, failed, _, _ in rounds)


FILES = """
import hashlib, os
import parl_remote as parl
from faults.shortages import Call, Switch
from parl_remote import _current
from parl_remote._messages.parts import Part, StoreParts

@parl.remote_class(n_cpu=0)
class Keeper:
    def get(self):
        return 42

parl.connect(cpu_num=1)
keeper = Keeper()
client = _current.client()
node = next(iter(client._workers._links.values())).at
content = bytes(3_000_000)
digest = hashlib.sha256(content).hexdigest()
switch = Switch(os.environ["SHORTAGES"])
switch.fail(client._cluster.pid, Call.FRAME, 1)
for _ in range(2):
    try:
        part = Part(digest, len(content), 0, len(content))
        answer = client._workers.ask(node, lambda number: StoreParts(number, (part,)), None, [content])
        print(type(answer).__name__)
    except parl.RemoteError as error:
        print(error)
print(switch.stop(), keeper.get())
"""


@pytest.mark.slow
def test_files_that_a_node_has_no_memory_to_receive_end_no_actor(shortages: Shortages) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **shortages.environment, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", FILES], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cause = "there is no memory for a frame of 3000000 bytes"
    assert done.stdout.splitlines() == [cause, "Done", "True 42"]
