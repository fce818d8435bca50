"""Losses and their gradients as one compiled function: what `compile=True` means.

    eager:     losses(batch) ──> loss.backward() ──> parameter.grad ──> Adam's fused kernel
    compiled:  [losses(batch) and gradients, one graph] ───────────────> Adam's fused kernel

The step itself stays the fused kernel, which no compiler beats. On CUDA the graph is also captured
(`mode="reduce-overhead"`), so that an update is a few launches.
"""

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parl_core.errors import HyperparameterError

__all__ = ["CompiledGradients", "require_compiler"]

Losses = Callable[..., tuple[Any, ...]]

# With each shape of batch: the first compiles, and once in a while the next one, too. Later calls do not tell the
# compiler to follow gradients, which costs a tenth of a small update.
_CALLS_THAT_COMPILE = 8


def require_compiler() -> bool:
    """Return True where `torch.compile` can work.

    Raises:
        HyperparameterError: there is no C++ compiler, which it needs for the CPU, or this PyTorch cannot compile
            gradients.
    """
    if not hasattr(_settings(), "trace_autograd_ops"):
        raise HyperparameterError(
            f"compile=True needs a PyTorch whose compiler follows gradients, got {torch.__version__}"
        )
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        raise HyperparameterError(
            "compile=True needs a C++ compiler (g++ or clang++) on the PATH; install one, or leave it out"
        )
    return True


class CompiledGradients:
    """`losses` and the gradients of the first of them, compiled at the first call.

    Args:
        losses: a function of tensors without side effects, which returns a tuple.
        parameters: what the gradients are by.
    """

    def __init__(self, losses: Losses, parameters: Sequence[nn.Parameter]) -> None:
        self._captures = parameters[0].is_cuda
        self._like = parameters[0]
        self._calls: dict[Any, int] = {}
        leaves = list(parameters)

        def figures_and_gradients(*batch: Any) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
            figures = losses(*batch)
            gradients = torch.autograd.grad(figures[0], leaves, allow_unused=True)
            return tuple(figure.detach() for figure in figures), gradients

        # The compiler keeps what it has compiled, up to a limit, with the code object, which all closures share.
        code = figures_and_gradients.__code__
        figures_and_gradients.__code__ = code.replace(co_name=getattr(losses, "__name__", code.co_name))
        self._run = torch.compile(figures_and_gradients, mode="reduce-overhead" if self._captures else "default")

    def __call__(self, *batch: Any) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
        """Return the figures, detached, and the gradients; None for a parameter that the loss does not depend on."""
        # Numbers that change, as schedules do, must not be constants of the graph: each new one would compile again.
        batch = tuple(self._like.new_full((), part) if isinstance(part, float) else part for part in batch)
        shapes = tuple(part.shape if isinstance(part, Tensor) else None for part in batch)
        calls = self._calls.get(shapes, 0)
        if calls >= _CALLS_THAT_COMPILE:
            return self._called(batch)
        self._calls[shapes] = calls + 1
        with _settings().patch(trace_autograd_ops=True):
            return self._called(batch)

    def _called(self, batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
        if not self._captures:
            return self._run(*batch)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        figures, gradients = self._run(*batch)
        # The next replay overwrites what this one returned; the gradients are used up before it.
        return tuple(figure.clone() for figure in figures), gradients


def _settings() -> Any:
    import torch._dynamo.config  # the compiler takes a second to import; most programs never use it

    return torch._dynamo.config
