"""Files of agents on PyTorch: ONNX, and programs of `torch.export`."""

import copy
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from parl_core._policy_description import box, scores
from parl_core.export import Format, Pipeline, action_leaves, observation_leaves, state_names

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


class ExportedPolicy(nn.Module):
    """An agent's way from observations to actions as one module.

    It takes an array of each part of an observation, `[n, ...]` in the space's dtype, and returns the parts of the
    action and what they were chosen by: scores of choices, then numbers. Of a model with a memory it takes the parts of
    the state as well, and returns those after the step at the end.

    Args:
        pipeline: of the agent; its model is copied.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._pipeline, self._algorithm = pipeline, copy.copy(pipeline.algorithm)
        self.model = self._algorithm.model = copy.deepcopy(pipeline.algorithm.model).cpu().eval()
        self._names = [name for name, _ in observation_leaves(pipeline.observation)]
        self._parameter = next(self.model.parameters()).dtype
        if pipeline.normalization is not None:
            found = pipeline.normalization
            deviation = np.sqrt(found.var + found.epsilon)
            self.register_buffer("mean", torch.from_numpy(found.mean))
            self.register_buffer("deviation", torch.from_numpy(deviation))
        for i, (_, space) in enumerate(action_leaves(pipeline.action)):
            if isinstance(space, gymnasium.spaces.Box):
                for name, array in box(space, pipeline.acts_in_unit_box).items():
                    self.register_buffer(f"{name}_{i}", torch.from_numpy(array))

    @torch.no_grad()
    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of the action, scores, and the parts of the state."""
        observations, state = given[: len(self._names)], given[len(self._names) :]
        mask, inputs = self._inputs(observations)
        after: Mapping[str, Tensor] = {}
        if state:
            inputs, after = self.model.remember(inputs, dict(zip(self._pipeline.state, state, strict=True)))
        columns = scores(self._algorithm, inputs, lambda parts: torch.cat(parts, -1))
        return (*self._actions(columns, mask), columns, *(after[name] for name in self._pipeline.state))

    def _inputs(self, observations: tuple[Tensor, ...]) -> tuple[Tensor | None, Any]:
        leaves = dict(zip(self._names, observations, strict=True))
        mask = leaves.get("observation.action_mask") if self._pipeline.has_mask else None
        if self._pipeline.is_flat:
            inputs: Any = self._flat(leaves)
        else:
            inputs = _nested(self._pipeline.observation, iter(observations))
        found = self._pipeline.normalization
        if found is not None:
            scaled = (inputs.double() - self.mean) / self.deviation
            inputs = scaled.clamp(-found.clip, found.clip).float()
        return mask, _of_dtype(inputs, self._parameter)

    def _flat(self, leaves: Mapping[str, Tensor]) -> Tensor:
        features: list[Tensor] = []
        for part in self._pipeline.flat_parts():
            columns = leaves[".".join(("observation", *part.path))].reshape(-1, len(part.choices) or part.numbers)
            if part.choices:
                features += [
                    F.one_hot((columns[:, i] - start).long(), size).to(self._parameter)
                    for i, (size, start) in enumerate(part.choices)
                ]
            else:
                features.append(columns.to(self._parameter))
        return torch.cat(features, -1)

    def _actions(self, columns: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
        sizes, edge = iter(self._pipeline.sizes), 0
        number = sum(self._pipeline.sizes)
        for i, (_, space) in enumerate(action_leaves(self._pipeline.action)):
            if isinstance(space, gymnasium.spaces.Box):
                count = int(np.prod(space.shape))
                found = columns[:, number : number + count].reshape(-1, *space.shape).double()
                number += count
                low, high, scale, shift = (getattr(self, f"{name}_{i}") for name in ("low", "high", "scale", "shift"))
                mapped = (found * scale + shift).clamp(low, high)
                yield mapped.to(torch.from_numpy(np.zeros(0, space.dtype)).dtype)
                continue
            count = 1 if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape))
            chosen = []
            for _ in range(count):
                size = next(sizes)
                part = columns[:, edge : edge + size]
                if mask is not None:
                    part = part.masked_fill(mask[:, edge : edge + size] == 0, torch.finfo(part.dtype).min)
                chosen.append(part.argmax(-1))
                edge += size
            start = torch.from_numpy(np.asarray(getattr(space, "start", 0), np.int64))
            yield torch.stack(chosen, -1).reshape(-1, *space.shape) + start


def _nested(space: Any, leaves: Iterator[Tensor]) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _nested(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): _nested(part, leaves) for i, part in enumerate(space.spaces)}
    return next(leaves)


def _of_dtype(values: Any, dtype: torch.dtype) -> Any:
    """Return floats in the dtype of the weights, as an agent gives them to its model."""
    if isinstance(values, dict):
        return {key: _of_dtype(value, dtype) for key, value in values.items()}
    return values.to(dtype) if values.is_floating_point() else values


def _program(pipeline: Pipeline, examples: Mapping[str, NDArray[Any]]) -> torch.export.ExportedProgram:
    policy = ExportedPolicy(pipeline)
    inputs = tuple(torch.from_numpy(array) for array in examples.values())
    rows = torch.export.Dim("rows")
    with torch.no_grad(), _quiet():
        policy(*inputs)  # layers without shapes get them
        _remove_unused(policy.model)
        return torch.export.export(policy, inputs, dynamic_shapes=(tuple({0: rows} for _ in inputs),))


def _remove_unused(model: nn.Module) -> None:
    """Remove parameters that acting has given no shape, such as a critic's, and let no others ask for gradients."""
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
    """Provide a context in which PyTorch's exporters do not talk of their own future."""
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
