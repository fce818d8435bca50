"""Data parallelism: several processes learn one model together, each from its part of the batch.

    process 0:  its rows ──> loss ──> backward ──┐
                                                 ├──> mean of both gradients ──> the same step in both
    process 1:  its rows ──> loss ──> backward ──┘

The gradients are averaged by `torch.nn.parallel.DistributedDataParallel`, whatever the algorithm's loss. No option is
needed: if the program is a member of a process group (`torchrun --nproc-per-node=2 train.py` and `join`, or a group of
its own), every optimizer of parl-torch takes part. Each process must pass batches of the same size, make the same
updates in the same order, and start from equal weights. After the first update the weights of process 0 are copied to
all processes.
"""

import atexit
import time
from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn

from parl_core.backends import Learners

__all__ = ["SharedGradients", "join", "joined_sum", "learners", "mean_of_all", "means", "normalised"]

_LAST_WORK_S = 0.1
_REDUCED = "_parl_reduced"  # marks parameters whose gradients become means at `backward`


def join() -> Learners:
    """Join the group that `torchrun` started; without one, this process is the only learner.

    With CUDA, the process uses the GPU with its number on this host from then on. Call this function before models are
    made.
    """
    if distributed.is_available() and distributed.is_torchelastic_launched() and not distributed.is_initialized():
        distributed.init_process_group()
        # A thread of gloo releases the last tensors, and aborts the process if the interpreter has already shut down.
        atexit.register(time.sleep, _LAST_WORK_S)
        if torch.cuda.is_available():
            torch.cuda.set_device(distributed.get_node_local_rank(0) % torch.cuda.device_count())
    return learners()


def learners() -> Learners:
    """Return the rank of this process and the number of processes that learn together."""
    if distributed.is_available() and distributed.is_initialized():
        return Learners(distributed.get_rank(), distributed.get_world_size())
    return Learners(0, 1)


class SharedGradients:
    """The averaging of the gradients of some parameters over all processes.

    Args:
        parameters: The parameters whose gradients are averaged.

    Attributes:
        at_backward: True if `backward` averages the gradients. It is False if another optimizer has shared parameters
            first. Then compute gradients without `backward`, which would change those of the other optimizer, and pass
            them to `average`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._size = learners().size
        self._unequal = list(parameters)
        self._parallel: nn.Module | None = None
        self.at_backward = not any(hasattr(parameter, _REDUCED) for parameter in parameters)
        if self.at_backward:
            # The wrapper is made after the first loss was computed; the weights must not change between that and its
            # gradients. The wrapper ignores parameters that are frozen when it is made, although they may be trained
            # later.
            frozen = [parameter for parameter in parameters if not parameter.requires_grad]
            for parameter in frozen:
                parameter.requires_grad_(True)
            self._parallel = nn.parallel.DistributedDataParallel(
                _Loss(parameters), find_unused_parameters=True, init_sync=False
            )
            for parameter in frozen:
                parameter.requires_grad_(False)
            for parameter in parameters:
                setattr(parameter, _REDUCED, True)

    def announce(self, loss: Tensor) -> Tensor:
        """Return the loss whose `backward` leaves gradients that are means over all processes."""
        assert self._parallel is not None
        announced: Tensor = self._parallel(loss)
        return announced

    @torch.no_grad()
    def settle(self) -> None:
        """Copy the values of process 0 to all processes, after the first step."""
        for parameter in self._unequal:
            distributed.broadcast(parameter, 0)
        self._unequal = []

    def average(self, gradients: Sequence[Tensor | None]) -> None:
        """Average gradients that were computed without `backward` over all processes, in place."""
        for gradient in gradients:
            if gradient is not None:
                distributed.all_reduce(gradient)
                gradient.div_(self._size)


class _Loss(nn.Module):
    """A module with these parameters whose output is a loss that was computed elsewhere."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.shared = nn.ParameterList(parameters)
        # A loss need not use every parameter. Because this one is never used, the wrapper does not warn that all were
        # used.
        self.left_out = nn.Parameter(torch.zeros((), device=parameters[0].device))

    def forward(self, loss: Tensor) -> Tensor:
        return loss


def joined_sum(loss: Tensor) -> Tensor:
    """Return a loss that sums over rows, scaled so that its mean gradient is that of all processes' rows."""
    size = learners().size
    return loss if size == 1 else loss * size


def normalised(values: Tensor) -> Tensor:
    """Return (values - mean) / (standard deviation + 1e-8) over the rows of all processes, `[batch]`; divisor n."""
    if learners().size == 1:
        std, mean = torch.std_mean(values, correction=0)
        return (values - mean) / (std + 1e-8)
    centred = values - mean_of_all(values.mean())
    return centred / (mean_of_all(centred.square().mean()).sqrt() + 1e-8)


def means(steps: Sequence[Tensor | tuple[Tensor, ...]]) -> list[float]:
    """Return the mean of each figure over all processes, read from the device at once.

    Args:
        steps: Figures of each step, as one tensor `[figures]` or as scalar tensors.
    """
    rows = [step if isinstance(step, Tensor) else torch.stack(step) for step in steps]
    return [float(figure) for figure in mean_of_all(torch.stack(rows).mean(dim=0)).tolist()]


def mean_of_all(values: Tensor) -> Tensor:
    """Return the mean over all processes, entry by entry; `values` themselves may be overwritten."""
    size = learners().size
    if size > 1:
        distributed.all_reduce(values)
        values = values / size
    return values
