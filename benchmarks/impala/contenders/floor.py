"""What two forked processes reach by hand: fragments and weights in shared memory, semaphores, no library at all.

Each actor has two places for fragments and writes into one while the learner reads the other; weights are one flat
array that actors copy before each fragment. Nothing is checked, nobody is replaced, nothing is reported.
"""

import multiprocessing
import sys
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tasks
from rates import Rates

ROWS = tasks.ENVS * tasks.STEPS


def place(task: tasks.Task) -> dict[str, torch.Tensor]:
    """Shared memory for one fragment."""
    env = task.env()
    obs, actions = env.observation_space, int(env.action_space.n)
    kind = torch.uint8 if obs.dtype == np.uint8 else torch.float32
    columns = {
        "obs": torch.empty(tasks.ENVS, tasks.STEPS, *obs.shape, dtype=kind),
        "action": torch.empty(tasks.ENVS, tasks.STEPS, dtype=torch.int64),
        "logits": torch.empty(tasks.ENVS, tasks.STEPS, actions),
        "reward": torch.empty(tasks.ENVS, tasks.STEPS),
        "done": torch.empty(tasks.ENVS, tasks.STEPS),
        "last_obs": torch.empty(tasks.ENVS, *obs.shape, dtype=kind),
    }
    return {name: column.share_memory_() for name, column in columns.items()}


@torch.no_grad()
def act(task: tasks.Task, places: list[dict[str, torch.Tensor]], weights: torch.Tensor, pipe: Connection) -> None:
    """An actor's life."""
    torch.set_num_threads(1)
    network, rng = task.network(), np.random.default_rng()
    envs = [task.env() for _ in range(tasks.ENVS)]
    obs = np.stack([env.reset()[0] for env in envs])
    while True:
        number = pipe.recv()
        vector_to_parameters(weights.clone(), network.parameters())
        columns = {name: column.numpy() for name, column in places[number].items()}
        for t in range(tasks.STEPS):
            logits = network.policy_and_value(torch.from_numpy(obs))[0].numpy()
            action = (logits + rng.gumbel(size=logits.shape)).argmax(1)
            columns["obs"][:, t], columns["action"][:, t], columns["logits"][:, t] = obs, action, logits
            for i, env in enumerate(envs):
                obs[i], reward, ended, cut, _ = env.step(action[i])
                columns["reward"][i, t], columns["done"][i, t] = reward, ended or cut
                if ended or cut:
                    obs[i] = env.reset()[0]
        columns["last_obs"][:] = obs
        pipe.send(number)


def main(name: str, warm_up_s: float, seconds: float) -> None:
    """Run until the rates are known."""
    torch.set_num_threads(1)
    task = tasks.TASKS[name]
    network = task.network()
    optimizer = torch.optim.Adam(network.parameters(), tasks.LEARNING_RATE, fused=True)
    weights = parameters_to_vector(network.parameters()).detach().share_memory_()
    context = multiprocessing.get_context("fork")
    pipes: dict[Any, list[dict[str, torch.Tensor]]] = {}
    for _ in range(tasks.N_ACTORS):
        ours, theirs = context.Pipe()
        places = [place(task), place(task)]
        context.Process(target=act, args=(task, places, weights, theirs), daemon=True).start()
        pipes[ours] = places
        for number in (0, 1):
            ours.send(number)
    rates, trained, ready = Rates(warm_up_s, seconds), 0, []
    while not rates.update(trained, trained):
        while len(ready) < tasks.BATCH // ROWS:
            ready += [(pipe, pipe.recv()) for pipe in wait(list(pipes)) if isinstance(pipe, Connection)]
        taken, ready = ready[: tasks.BATCH // ROWS], ready[tasks.BATCH // ROWS :]
        parts = [pipes[pipe][number] for pipe, number in taken]
        batch = {column: torch.cat([part[column] for part in parts]) for column in parts[0]}
        last_obs = batch.pop("last_obs")
        rows = [column.flatten(0, 1) for column in batch.values()]
        optimizer.zero_grad()
        tasks.vtrace_loss(network, *rows, last_obs).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), tasks.MAX_NORM)
        optimizer.step()
        weights.copy_(parameters_to_vector(network.parameters()).detach())
        for pipe, number in taken:
            pipe.send(number)
        trained += tasks.BATCH
    rates.print()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
