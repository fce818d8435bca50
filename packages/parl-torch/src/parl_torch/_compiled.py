"""Losses and their gradients as one compiled function, for `compile=True`.

    eager:     losses(batch) ──> loss.backward() ──> parameter.grad ──> Adam's fused kernel
    compiled:  [losses(batch) and gradients, one graph] ───────────────> Adam's fused kernel

The step itself is still the fused kernel, which is faster than compiled code. On CUDA the graph is also captured
(`mode="reduce-overhead"`), so that an update consists of a few launches.
"""

import operator
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parl_core import logger
from parl_core.contracts.batches import Batch
from parl_core.errors import HyperparameterError

__all__ = ["CompiledGradients", "gradients_of", "require_compiler"]

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]

_is_trained = operator.attrgetter("requires_grad")

# Number of calls that may compile, for each shape of batch and each set of frozen parameters: the first, and sometimes
# the second. Later calls skip the instruction to follow gradients, which would cost a tenth of a small update.
_CALLS_THAT_COMPILE = 8


def require_compiler() -> bool:
    """Return whether `torch.compile` can work; warn if there is no C++ compiler.

    Raises:
        HyperparameterError: This PyTorch cannot compile gradients.
    """
    if not hasattr(_settings(), "trace_autograd_ops"):
        raise HyperparameterError(
            f"compile=True needs a PyTorch whose compiler follows gradients, got {torch.__version__}"
        )
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        logger.warning(
            "compile=True has no effect, because no C++ compiler (g++ or clang++) is on the PATH; install one to use it"
        )
        return False
    return True


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of a loss by each parameter; None for frozen ones and those without influence on the loss."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    found = list(torch.autograd.grad(loss, trained, allow_unused=True))
    return [_laid_out_as(one, found.pop(0)) if one.requires_grad else None for one in parameters]


def _laid_out_as(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return a gradient in the memory layout of its parameter, as Adam's kernel takes both; convolutions choose one."""
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class CompiledGradients:
    """Losses and the gradients of the first of them, compiled at the first call.

    Args:
        losses: A function of tensors without side effects, which returns a scalar, and figures by name.
        parameters: The parameters of the gradients.
    """

    def __init__(self, losses: Loss, parameters: Sequence[nn.Parameter]) -> None:
        self._captures = parameters[0].is_cuda
        self._like = parameters[0]
        self._calls: dict[Any, int] = {}
        self._leaves = leaves = list(parameters)

        def figures_and_gradients(*batch: Any) -> tuple[Tensor, dict[str, Tensor], list[Tensor | None]]:
            loss, figures = losses(*batch)
            gradients = gradients_of(loss, leaves)
            return loss.detach(), {name: figure.detach() for name, figure in figures.items()}, gradients

        # The compiler stores compiled code, up to a limit, with the code object, which all closures share.
        code = figures_and_gradients.__code__
        figures_and_gradients.__code__ = code.replace(co_name=getattr(losses, "__name__", code.co_name))
        self._run = torch.compile(figures_and_gradients, mode="reduce-overhead" if self._captures else "default")

    def __call__(self, *batch: Any) -> tuple[Tensor, dict[str, Tensor], list[Tensor | None]]:
        """Return loss and figures, detached, and the result of `gradients_of`."""
        # Numbers that change, such as those of schedules, must not be constants of the graph: each new value would
        # compile again.
        batch = tuple(self._like.new_full((), part) if isinstance(part, float) else part for part in batch)
        case = tuple(map(_shapes, batch)), tuple(map(_is_trained, self._leaves))
        calls = self._calls.get(case, 0)
        if calls >= _CALLS_THAT_COMPILE:
            return self._called(batch)
        self._calls[case] = calls + 1
        with _settings().patch(trace_autograd_ops=True):
            return self._called(batch)

    def _called(self, batch: tuple[Any, ...]) -> tuple[Tensor, dict[str, Tensor], list[Tensor | None]]:
        if not self._captures:
            return self._run(*batch)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        loss, figures, gradients = self._run(*batch)
        # The next replay overwrites these results; the gradients are used before it.
        return loss.clone(), {name: figure.clone() for name, figure in figures.items()}, gradients


def _shapes(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.shape
    columns = vars(part).items() if isinstance(part, Batch) else ()
    return tuple((name, column.shape) for name, column in columns if isinstance(column, Tensor))


def _settings() -> Any:
    import torch._dynamo.config  # the compiler takes a second to import; most programs never use it

    return torch._dynamo.config
