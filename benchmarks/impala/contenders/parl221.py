"""PARL 2.2.1: `xparl start`, remote actors with `wait=False`, and a learner that calls each again after its result.

Its torch backend has no IMPALA, so the loss is the floor's, with a pass each for policy and value as in the IMPALA that
its other backend has. It has no `put`: weights go along with every call.
"""

import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("impala", "remote", "remote/peers"))

import numpy as np
import tasks
import torch
from parl221_actor import Model, RemoteActor
from parl221_peer import wait_for_worker, xparl
from procs import MARK, marked
from rates import Rates

import parl

IN_FLIGHT = 2
"""Calls in flight per actor: one in progress and one queued, so that the actor is never idle."""


def start_cluster() -> str:
    """Return the address of a cluster with one CPU per actor."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"localhost:{free.getsockname()[1]}"
    xparl("start", "--port", address.split(":")[1], "--cpu_num", str(tasks.N_ACTORS))
    wait_for_worker(address, tasks.N_ACTORS)
    return address


def train(task: str, rates: Rates) -> None:
    """Learn until the rates are measured."""
    model = Model(tasks.TASKS[task].network())
    optimizer = torch.optim.Adam(model.parameters(), tasks.LEARNING_RATE)
    actors: list[Any] = [RemoteActor(task) for _ in range(tasks.N_ACTORS)]
    weights = model.get_weights()
    calls = deque((actor, actor.sample(weights)) for _ in range(IN_FLIGHT) for actor in actors)
    trained = 0
    while not rates.update(trained):
        parts: list[dict[str, Any]] = []
        while len(parts) < tasks.BATCH // (tasks.ENVS * tasks.STEPS):
            actor, answer = calls.popleft()  # in turn, because it can only wait for one result at a time
            parts.append(answer.get())
            calls.append((actor, actor.sample(weights)))
        batch = {name: torch.from_numpy(np.concatenate([part[name] for part in parts])) for name in parts[0]}
        last_obs = batch.pop("last_obs")
        obs, action, behaviour, reward, done = batch.values()
        optimizer.zero_grad()
        tasks.vtrace_loss(model.policy_and_value, obs, action, behaviour, reward, done, last_obs).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), tasks.MAX_NORM)
        optimizer.step()
        weights = model.get_weights()
        trained += tasks.BATCH


def main(task: str, warm_up_s: float, seconds: float) -> None:
    """Run until the rates are measured."""
    os.environ.setdefault(MARK, f"{os.getpid()} {time.time_ns()}")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[-3:])  # for actors
    torch.set_num_threads(1)
    rates = Rates(warm_up_s, seconds)
    try:
        parl.connect(start_cluster(), distributed_files=[])
        train(task, rates)
        rates.print()
    finally:
        for pid in marked(os.environ[MARK]):  # `xparl stop` would stop every cluster on this host
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    os._exit(0)  # its threads wait for heartbeats


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
