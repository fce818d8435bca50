"""Files of agents on PaddlePaddle for Paddle Inference."""

import copy
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from parl_core._policy_description import box, scores
from parl_core.export import Format, Pipeline, action_leaves, observation_leaves

__all__ = ["ExportedPolicy", "formats"]

_LOAD = """
from pathlib import Path
import paddle.inference

folder = Path(sys.argv[1])
files = {file.suffix: str(file) for file in folder.iterdir()}
config = paddle.inference.Config(files.get(".json", files.get(".pdmodel")), files[".pdiparams"])
config.disable_gpu()
config.disable_glog_info()
predictor = paddle.inference.create_predictor(config)

def run(inputs):
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(inputs[name]))
    predictor.run()
    return [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]
"""


def formats() -> Mapping[str, Format]:
    """Return the formats that this backend writes."""
    return {"paddle-inference": Format(_write, _LOAD)}


class ExportedPolicy(nn.Layer):
    """An agent's way from observations to actions as one layer.

    It takes a list of an array of each part of an observation, `[n, ...]` in the space's dtype, and returns the parts
    of the action and what they were chosen by: scores of choices, then numbers. Of a model with a memory the list has
    the parts of the state as well, and those after the step are returned at the end.

    Args:
        pipeline: of the agent; its model is copied.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._pipeline, self._algorithm = pipeline, copy.copy(pipeline.algorithm)
        self.model = self._algorithm.model = copy.deepcopy(pipeline.algorithm.model)
        self.model.eval()
        self._names = [name for name, _ in observation_leaves(pipeline.observation)]
        self._parameter = next(iter(self.model.parameters())).dtype
        if pipeline.normalization is not None:
            found = pipeline.normalization
            self.register_buffer("mean", paddle.to_tensor(found.mean))
            self.register_buffer("deviation", paddle.to_tensor(np.sqrt(found.var + found.epsilon)))
        for i, (_, space) in enumerate(action_leaves(pipeline.action)):
            if isinstance(space, gymnasium.spaces.Box):
                for name, array in box(space, pipeline.acts_in_unit_box).items():
                    self.register_buffer(f"{name}_{i}", paddle.to_tensor(array))

    def forward(self, given: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the parts of the action, scores, and the parts of the state."""
        return self._computed(given)

    @paddle.jit.not_to_static  # plain Python, whose control flow depends on no tensor
    def _computed(self, given: list[Tensor]) -> tuple[Tensor, ...]:
        observations, state = given[: len(self._names)], given[len(self._names) :]
        mask, inputs = self._inputs(observations)
        after: Mapping[str, Tensor] = {}
        if state:
            inputs, after = self.model.remember(inputs, dict(zip(self._pipeline.state, state, strict=True)))
        columns = scores(self._algorithm, inputs, lambda parts: paddle.concat(list(parts), -1))
        return (*self._actions(columns, mask), columns, *(after[name] for name in self._pipeline.state))

    def _inputs(self, observations: list[Tensor]) -> tuple[Tensor | None, Any]:
        leaves = dict(zip(self._names, observations, strict=True))
        mask = leaves.get("observation.action_mask") if self._pipeline.has_mask else None
        if self._pipeline.is_flat:
            inputs: Any = self._flat(leaves)
        else:
            inputs = _nested(self._pipeline.observation, iter(observations))
        found = self._pipeline.normalization
        if found is not None:
            scaled = (inputs.astype("float64") - self.mean) / self.deviation
            inputs = scaled.clip(-found.clip, found.clip).astype("float32")
        return mask, _of_dtype(inputs, self._parameter)

    def _flat(self, leaves: Mapping[str, Tensor]) -> Tensor:
        features: list[Tensor] = []
        for part in self._pipeline.flat_parts():
            columns = leaves[".".join(("observation", *part.path))].reshape([-1, len(part.choices) or part.numbers])
            if part.choices:
                features += [
                    nn.functional.one_hot((columns[:, i] - start).astype("int64"), size).astype(self._parameter)
                    for i, (size, start) in enumerate(part.choices)
                ]
            else:
                features.append(columns.astype(self._parameter))
        return paddle.concat(features, -1)

    def _actions(self, columns: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
        sizes, edge = iter(self._pipeline.sizes), 0
        number = sum(self._pipeline.sizes)
        for i, (_, space) in enumerate(action_leaves(self._pipeline.action)):
            if isinstance(space, gymnasium.spaces.Box):
                count = int(np.prod(space.shape))
                found = columns[:, number : number + count].reshape([-1, *space.shape]).astype("float64")
                number += count
                low, high, scale, shift = (getattr(self, f"{name}_{i}") for name in ("low", "high", "scale", "shift"))
                mapped = paddle.maximum(found * scale + shift, low)  # type: ignore[no-untyped-call]  # paddle's
                yield paddle.minimum(mapped, high).astype(str(space.dtype))  # type: ignore[no-untyped-call]  # as above
                continue
            count = 1 if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape))
            chosen = []
            for _ in range(count):
                size = next(sizes)
                part = columns[:, edge : edge + size]
                if mask is not None:
                    lowest = paddle.full_like(part, float(np.finfo(np.float32).min))
                    part = paddle.where(mask[:, edge : edge + size].astype("bool"), part, lowest)
                chosen.append(part.argmax(-1))
                edge += size
            start = paddle.to_tensor(np.asarray(getattr(space, "start", 0), np.int64))
            yield paddle.stack(chosen, -1).reshape([-1, *space.shape]) + start


def _nested(space: Any, leaves: Iterator[Tensor]) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _nested(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): _nested(part, leaves) for i, part in enumerate(space.spaces)}
    return next(leaves)


def _of_dtype(values: Any, dtype: Any) -> Any:
    """Return floats in the dtype of the weights, as an agent gives them to its model."""
    if isinstance(values, dict):
        return {key: _of_dtype(value, dtype) for key, value in values.items()}
    return values.astype(dtype) if paddle.is_floating_point(values) else values


def _write(pipeline: Pipeline, examples: Mapping[str, NDArray[Any]], path: Path) -> None:
    policy = ExportedPolicy(pipeline)
    policy.eval()
    with paddle.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy(list(map(paddle.to_tensor, examples.values())))  # layers without shapes get them
        specification = [
            paddle.static.InputSpec([None, *array.shape[1:]], array.dtype.name, name)  # type: ignore[arg-type]  # a name
            for name, array in examples.items()
        ]
        program = paddle.jit.to_static(policy, input_spec=[specification], full_graph=True)
        path.mkdir()
        paddle.jit.save(program, str(path / "policy"))
