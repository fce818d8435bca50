"""Files of agents on PaddlePaddle for Paddle Inference."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from parl_core._pipeline import PolicyProgram
from parl_core.export import Format, Pipeline

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


class ExportedPolicy(PolicyProgram, nn.Layer):
    """The computation of an agent's actions from observations, as one layer.

    Its input is a list of arrays of the parts of an observation, `[n, ...]` in the dtype of the space. It returns the
    parts of the action, followed by the values that determine them: scores of choices, then numbers. A model with a
    memory also has the parts of the state in the list, and the parts of the next state as the last outputs.

    Args:
        pipeline: the pipeline of the agent; its model is copied.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self._take(pipeline, copy.deepcopy(pipeline.algorithm.model))
        self.model.eval()
        self._parameter = next(iter(self.model.parameters())).dtype

    def forward(self, given: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the parts of the action, scores, and the parts of the state."""
        return self._run(given)

    @paddle.jit.not_to_static  # plain Python: its control flow does not depend on tensors
    def _run(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return super()._run(given)

    def _hold(self, name: str, array: NDArray[Any]) -> None:
        self.register_buffer(name, paddle.to_tensor(array))

    def _normalized(self, inputs: Tensor, clip: float) -> Tensor:
        scaled: Tensor = (inputs.astype("float64") - self.mean) / self.deviation
        return scaled.clip(-clip, clip).astype("float32")

    def _of_weights(self, values: Tensor) -> Tensor:
        return values.astype(self._parameter) if paddle.is_floating_point(values) else values

    def _as_features(self, values: Tensor) -> Tensor:
        return values.astype(self._parameter)

    def _one_hot(self, values: Tensor, size: int) -> Tensor:
        return nn.functional.one_hot(values.astype("int64"), size).astype(self._parameter)

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return paddle.concat(list(parts), -1)

    def _mapped(self, numbers: Tensor, i: int, dtype: Any) -> Tensor:
        low, high, scale, shift = (getattr(self, f"{name}_{i}") for name in ("low", "high", "scale", "shift"))
        mapped = paddle.maximum(numbers.astype("float64") * scale + shift, low)  # type: ignore[no-untyped-call]  # paddle's
        within: Any = paddle.minimum(mapped, high)  # type: ignore[no-untyped-call]  # as above
        cast: Tensor = within.astype(str(dtype))
        return cast

    def _best(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            lowest = paddle.full_like(scores, float(np.finfo(np.float32).min))
            scores = paddle.where(mask.astype("bool"), scores, lowest)
        return scores.argmax(-1)

    def _choices(self, chosen: Sequence[Tensor], shape: Sequence[int], start: NDArray[np.int64]) -> Tensor:
        return paddle.stack(list(chosen), -1).reshape(list(shape)) + paddle.to_tensor(start)


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
