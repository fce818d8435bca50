"""Data parallelism: several processes learn one model together, each from its part of the batch.

    process 0:  its rows ──> loss ──> backward ──┐
                                                 ├──> mean of both gradients ──> the same step in both
    process 1:  its rows ──> loss ──> backward ──┘

The gradients are averaged by `paddle.DataParallel`, whatever the algorithm's loss. No option is needed: if the program
is a member of a parallel environment (`python -m paddle.distributed.launch --nproc_per_node=2 train.py`, with
`--backend gloo` on CPUs, and `join`), every optimizer of parl-paddle takes part in eager mode. Each process must pass
batches of the same size, make the same updates in the same order, and start from equal weights. At the first update the
weights of process 0 are copied to all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor, distributed

from parl_core.backends import Learners
from parl_paddle._tensors import to_array

__all__ = ["SharedGradients", "join", "joined_sum", "learners", "mean_of_all", "means", "normalised"]


def join() -> Learners:
    """Join the group that `paddle.distributed.launch` started; without one, this process is the only learner.

    Call this function before models are made.
    """
    environment = distributed.ParallelEnv()  # type: ignore[no-untyped-call]  # paddle leaves it untyped
    if environment.world_size > 1 and not distributed.is_initialized():
        distributed.init_parallel_env()
    return learners()


def learners() -> Learners:
    """Return the rank of this process and the number of processes that learn together."""
    if distributed.is_initialized():
        return Learners(distributed.get_rank(), distributed.get_world_size())
    return Learners(0, 1)


class SharedGradients:
    """The averaging of the gradients of some parameters over all processes.

    Args:
        parameters: The parameters whose gradients are averaged; their values in process 0 are copied to all processes.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parallel = paddle.DataParallel(_Loss(parameters), find_unused_parameters=True)

    def announce(self, loss: Tensor) -> Tensor:
        """Return the loss whose `backward` leaves gradients that are means over all processes."""
        announced: Tensor = self._parallel(loss)
        return announced


class _Loss(paddle.nn.Layer):
    """A layer with these parameters whose output is a loss that was computed elsewhere."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.shared = paddle.nn.ParameterList(parameters)
        # A loss need not use every parameter. Because this one is never used, the wrapper does not warn that all were
        # used.
        self.left_out = self.create_parameter([1])

    def forward(self, loss: Tensor) -> Tensor:
        return loss


def joined_sum(loss: Tensor) -> Tensor:
    """Return a loss that sums over rows, scaled so that its mean gradient is that of all processes' rows."""
    size = learners().size
    return loss if size == 1 else loss * size


def normalised(values: Tensor) -> Tensor:
    """Return (values - mean) / (standard deviation + 1e-8) over the rows of all processes, `[batch]`; divisor n."""
    centred = values - mean_of_all(values.mean())
    return centred / (mean_of_all(centred.square().mean()).sqrt() + 1e-8)


def means(steps: Sequence[tuple[Any, ...]]) -> list[float]:
    """Return the mean of each column of scalar tensors over all processes, read from the device at once."""
    columns = paddle.stack([paddle.stack(list(column)).mean() for column in zip(*steps, strict=True)])
    return [float(figure) for figure in to_array(mean_of_all(columns))]


def mean_of_all(values: Tensor) -> Tensor:
    """Return the mean over all processes, entry by entry; `values` themselves may be overwritten."""
    size = learners().size
    if size > 1:
        distributed.all_reduce(values)
        values = values / size
    return values
