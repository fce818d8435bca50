"""Files of agents on PyTorch: ONNX, and programs of `torch.export`."""

import copy
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from parl_core._pipeline import PolicyProgram
from parl_core.export import Format, Pipeline, action_leaves, state_names

__all__ = ["ExportedPolicy", "formats"]

_LOAD_ONNX = """
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])

def run(inputs):
    return session.run(None, {wanted.name: inputs[wanted.name] for wanted in session.get_inputs()})
"""

_LOAD_PROGRAM = """
import torch

program = torch.export.load(sys.argv[1]).module()

def run(inputs):
    return [output.numpy() for output in program(*map(torch.from_numpy, inputs.values()))]
"""


def formats() -> Mapping[str, Format]:
    """Return the formats that this backend writes."""
    return {"onnx": Format(_write_onnx, _LOAD_ONNX), "torch-export": Format(_write_program, _LOAD_PROGRAM)}


class ExportedPolicy(PolicyProgram, nn.Module):
    """The computation of an agent's actions from observations, as one module.

    Its inputs are arrays of the parts of an observation, `[n, ...]` in the dtype of the space. It returns the parts of
    the action, followed by the values that determine them: scores of choices, then numbers. A model with a memory also
    has the parts of the state as inputs, and the parts of the next state as the last outputs.

    Args:
        pipeline: the pipeline of the agent; its model is copied.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._take(pipeline, copy.deepcopy(pipeline.algorithm.model).cpu().eval())
        self._parameter = next(self.model.parameters()).dtype

    @torch.no_grad()
    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of the action, the values that determine them, and the parts of the next state."""
        return self._run(given)

    def _hold(self, name: str, array: NDArray[Any]) -> None:
        self.register_buffer(name, torch.from_numpy(array))

    def _normalized(self, inputs: Tensor, clip: float) -> Tensor:
        return ((inputs.double() - self.mean) / self.deviation).clamp(-clip, clip).float()

    def _of_weights(self, values: Tensor) -> Tensor:
        return values.to(self._parameter) if values.is_floating_point() else values

    def _as_features(self, values: Tensor) -> Tensor:
        return values.to(self._parameter)

    def _one_hot(self, values: Tensor, size: int) -> Tensor:
        return F.one_hot(values.long(), size).to(self._parameter)

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), -1)

    def _mapped(self, numbers: Tensor, i: int, dtype: Any) -> Tensor:
        low, high, scale, shift = (getattr(self, f"{name}_{i}") for name in ("low", "high", "scale", "shift"))
        mapped: Tensor = (numbers.double() * scale + shift).clamp(low, high)
        return mapped.to(torch.from_numpy(np.zeros(0, dtype)).dtype)

    def _best(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        return scores.argmax(-1)

    def _choices(self, chosen: Sequence[Tensor], shape: Sequence[int], start: NDArray[np.int64]) -> Tensor:
        return torch.stack(list(chosen), -1).reshape(list(shape)) + torch.from_numpy(start)


def _program(pipeline: Pipeline, examples: Mapping[str, NDArray[Any]]) -> torch.export.ExportedProgram:
    policy = ExportedPolicy(pipeline)
    inputs = tuple(torch.from_numpy(array) for array in examples.values())
    rows = torch.export.Dim("rows")
    with torch.no_grad(), _quiet():
        policy(*inputs)  # layers without shapes get them
        _remove_unused(policy.model)
        return torch.export.export(policy, inputs, dynamic_shapes=(tuple({0: rows} for _ in inputs),))


def _remove_unused(model: nn.Module) -> None:
    """Remove parameters without a shape, which acting does not use (such as a critic's), and freeze the others."""
    for layer in model.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            layer.register_parameter(name, None if is_lazy(parameter) else nn.Parameter(parameter, requires_grad=False))


def _write_program(pipeline: Pipeline, examples: Mapping[str, NDArray[Any]], path: Path) -> None:
    with _quiet():
        torch.export.save(_program(pipeline, examples), path if path.suffix == ".pt2" else path.with_suffix(".pt2"))
    if path.suffix != ".pt2":
        path.with_suffix(".pt2").rename(path)


def _write_onnx(pipeline: Pipeline, examples: Mapping[str, NDArray[Any]], path: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'ONNX files need {", ".join(missing)}: pip install "parl-torch[onnx]"')
    outputs = [*(name for name, _ in action_leaves(pipeline.action)), "scores", *state_names(pipeline, "next_state")]
    with _quiet():
        made: Any = torch.onnx.export(
            _program(pipeline, examples),
            input_names=list(examples),
            output_names=outputs,
            dynamo=True,
            verbose=False,
        )
        made.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Provide a context without the deprecation warnings of PyTorch's exporters."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
