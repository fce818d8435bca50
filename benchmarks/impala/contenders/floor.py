"""The rate of two forked processes with handwritten code: fragments and weights in shared memory, without any library.

Each actor has two places for fragments and writes into one while the learner reads the other; weights are one flat
array that actors copy before each fragment. Small networks act in numpy, where a call costs a tenth of torch's; Adam is
one fused kernel, gradients are clipped by foreach kernels, and parameters are views of the flat array. Convolutions are
functional, ReLUs in place, and frames become floats once, in memory that every update uses again. The learner's have
their channels last, which takes a fifth off an update, the actors' first; the C library keeps what an update frees.
Nothing is checked, no actor is replaced, nothing is reported.
"""

import ctypes
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "learner"))

import tasks
from by_hand import Adam
from rates import Rates

ROWS = tasks.ENVS * tasks.STEPS
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`


def nature(p: Sequence[Tensor], frames: Tensor) -> Tensor:
    """Return the features of frames `[n, 4, 84, 84]` of floats in [0, 1]."""
    hidden = torch.relu_(F.conv2d(frames, p[0], p[1], 4))
    hidden = torch.relu_(F.conv2d(hidden, p[2], p[3], 2))
    hidden = torch.relu_(F.conv2d(hidden, p[4], p[5]))
    return torch.relu_(F.linear(hidden.flatten(1), p[6], p[7]))


class Frames:
    """Frames of several parts joined as floats in [0, 1], in reused memory."""

    def __init__(self, rows: int, shape: Sequence[int], layout: torch.memory_format) -> None:
        self._all = torch.empty((rows, *shape)).contiguous(memory_format=layout)

    def of(self, *parts: Tensor) -> Tensor:
        """Return the frames of the parts."""
        for part, place in zip(parts, self._all.split([len(part) for part in parts]), strict=True):
            torch.mul(part, 1.0 / 255.0, out=place)
        return self._all


def place(task: tasks.Task) -> dict[str, torch.Tensor]:
    """Return shared memory for one fragment."""
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


def views(flat: torch.Tensor, network: tasks.Network) -> list[torch.Tensor]:
    """Return the network's parameters as views of one array."""
    sizes = [parameter.numel() for parameter in network.parameters()]
    parts = flat.split(sizes)
    return [part.view_as(parameter) for part, parameter in zip(parts, network.parameters(), strict=True)]


def policy_of(task: tasks.Task, weights: torch.Tensor) -> Callable[[Any], Any]:
    """Return a function that computes logits from observations with the present weights."""
    network = task.network()
    parameters = views(weights, network)
    if task.images:
        frames = Frames(tasks.ENVS, task.env().observation_space.shape, torch.contiguous_format)
        p = parameters[:-2]
        return lambda obs: F.linear(nature(p, frames.of(torch.from_numpy(obs))), p[8], p[9]).numpy()
    w_1, b_1, w_2, b_2, w_pi, b_pi, *_ = (view.numpy() for view in parameters)

    def logits(obs: Any) -> Any:
        hidden = np.maximum(obs @ w_1.T + b_1, 0.0)
        return np.maximum(hidden @ w_2.T + b_2, 0.0) @ w_pi.T + b_pi

    return logits


def outputs_of(task: tasks.Task, network: tasks.Network, p: Sequence[Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function that computes logits and values of observations in several parts."""
    if not task.images:
        return lambda *parts: network.policy_and_value(torch.cat(parts))
    rows = tasks.BATCH + tasks.BATCH // tasks.STEPS
    frames = Frames(rows, task.env().observation_space.shape, torch.channels_last)

    def outputs(*parts: Tensor) -> tuple[Tensor, Tensor]:
        features = nature(p, frames.of(*parts))
        return F.linear(features, p[8], p[9]), F.linear(features, p[10], p[11])

    return outputs


@torch.inference_mode()
def act(task: tasks.Task, places: list[dict[str, torch.Tensor]], weights: torch.Tensor, pipe: Connection) -> None:
    """Write fragments into the shared memory whose numbers arrive."""
    torch.set_num_threads(1)
    own, rng = weights.clone(), np.random.default_rng()
    policy = policy_of(task, own)
    envs = [task.env() for _ in range(tasks.ENVS)]
    obs = np.stack([env.reset()[0] for env in envs])
    while True:
        number = pipe.recv()
        own.copy_(weights)
        columns = {name: column.numpy() for name, column in places[number].items()}
        for t in range(tasks.STEPS):
            logits = policy(obs)
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
    """Run until the rates are measured."""
    torch.set_num_threads(1)
    for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        ctypes.CDLL(None).mallopt(threshold, 2**30)
    task = tasks.TASKS[name]
    network = task.network()
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    for parameter, view in zip(network.parameters(), views(flat, network), strict=True):
        parameter.data = view
    parameters = list(network.parameters())
    adam, weights = Adam(parameters, tasks.LEARNING_RATE), flat.clone().share_memory_()
    context = multiprocessing.get_context("fork")
    pipes: dict[Any, list[dict[str, torch.Tensor]]] = {}
    for _ in range(tasks.N_ACTORS):
        ours, theirs = context.Pipe()
        places = [place(task), place(task)]
        context.Process(target=act, args=(task, places, weights, theirs), daemon=True).start()
        pipes[ours] = places
        for number in (0, 1):
            ours.send(number)
    forward = outputs_of(task, network, parameters)
    rates, trained = Rates(warm_up_s, seconds), 0
    ready: list[tuple[Any, int]] = []
    while not rates.update(trained):
        while len(ready) < tasks.BATCH // ROWS:
            ready += [(pipe, pipe.recv()) for pipe in wait(list(pipes)) if isinstance(pipe, Connection)]
        taken, ready = ready[: tasks.BATCH // ROWS], ready[tasks.BATCH // ROWS :]
        parts = [pipes[pipe][number] for pipe, number in taken]
        outputs = forward(*(part["obs"].flatten(0, 1) for part in parts), *(part["last_obs"] for part in parts))
        names = "action", "logits", "reward", "done"
        columns = [torch.cat([part[name] for part in parts]).flatten(0, 1) for name in names]
        found = torch.autograd.grad(tasks.vtrace_loss_of(*outputs, *columns), parameters)
        # in the layout of the weights, which Adam's kernel requires
        gradients = [gradient.contiguous() for gradient in found]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.clamp(tasks.MAX_NORM / (norm + 1e-6), max=1.0))
        adam.step(gradients)
        weights.copy_(flat)
        for pipe, number in taken:
            pipe.send(number)
        trained += tasks.BATCH
    rates.print()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
