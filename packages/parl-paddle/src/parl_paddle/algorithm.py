"""`parl.Algorithm` on PaddlePaddle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import paddle
from numpy.typing import NDArray

from parl_core import algorithm as contract
from parl_core._attached_state import StateAccessor
from parl_core._small_networks import Framework
from parl_core.checks import first_method
from parl_core.contracts.actions import ActionKind
from parl_core.errors import HyperparameterError
from parl_paddle import _tensors
from parl_paddle._graphs import PADDLE
from parl_paddle._hooks import branch_on, call_after_run, missing_metric, value_before_run
from parl_paddle._static_graphs import eager, in_program
from parl_paddle.data_parallel import means, normalised
from parl_paddle.distributions import PolicyDistribution, policy_distribution, standard_normal_like
from parl_paddle.model import Model
from parl_paddle.optim import Adam, FrameworkOptimizer, accessor_of_optimizer
from parl_paddle.random_state import accessor_of_generator

__all__ = ["Algorithm"]


class Algorithm(contract.Algorithm):
    model: Any  # a parl_paddle.model.Model; `policy` and `value` exist only in the user's subclass

    FRAMEWORK: ClassVar[Framework] = PADDLE

    def _resolve_device(self, device: str) -> str:
        return _tensors.resolve_device(device)

    def _require_compiler(self) -> bool:
        raise HyperparameterError(
            "compile=True is an option of parl-torch; paddle.jit.to_static gains nothing for these updates on a CPU: "
            "leave it out on paddle"
        )

    def _require_bfloat16(self) -> bool:
        raise HyperparameterError(
            'compute_dtype="bfloat16" is an option of parl-torch; paddle.amp.auto_cast has no effect on a CPU: '
            "leave it out on paddle"
        )

    def _place(self, model: Any, device: str) -> Any:
        if not isinstance(model, Model):
            first_method(model, ("forward",), type(self).__name__)  # its message also fits objects that are no models
        return model.to(device)

    def _device_of_models(self) -> str:
        with eager():
            places = (parameter.place for model in self._models().values() for parameter in model.parameters())
            place = next(places, None)
        if place is None:
            return str(paddle.device.get_device())
        return _tensors.device_name(place)

    def _adam(
        self,
        model: Model,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | Callable[[], Iterable[paddle.Tensor]] | None = None,
    ) -> Adam:
        return Adam(model, lr=lr, eps=eps, max_grad_norm=max_grad_norm, part=part)

    def _adapted(
        self, optimizer: Any, max_grad_norm: float | None, part: Iterable[Any] | None = None
    ) -> FrameworkOptimizer:
        return FrameworkOptimizer(optimizer, self.model.parameters(), max_grad_norm, part=part)

    def _tensor(self, array: Any) -> paddle.Tensor:
        return _tensors.to_tensor(array, self.device, self._float_dtype())

    def _float_dtype(self) -> Any:
        # Cached, because a search through the layers costs as much as the conversion.
        found = self.__dict__.get("_computes_in")
        if found is None:
            first = next(iter(self._models().values()), None)  # later parameters may be scalars of another precision
            with eager():
                found = None if first is None else next((parameter.dtype for parameter in first.parameters()), None)
            self._computes_in = found
        return found or paddle.float32

    def _array(self, tensor: Any) -> Any:
        return _tensors.to_array(tensor) if isinstance(tensor, paddle.Tensor) else tensor

    def _choices_of(self, action: paddle.Tensor) -> paddle.Tensor:
        is_one = action.dtype == paddle.int64 and action.ndim == 1
        return action if is_one else action.astype("int64").reshape([-1])

    def _stacked(self, tensors: Sequence[paddle.Tensor]) -> paddle.Tensor:
        return paddle.stack(list(tensors))

    def _within(self, tensor: paddle.Tensor, low: paddle.Tensor, high: paddle.Tensor) -> paddle.Tensor:
        clipped: paddle.Tensor = paddle.minimum(paddle.maximum(tensor, low), high)  # type: ignore[no-untyped-call]  # paddle's
        return clipped

    RECORDED: ClassVar[bool] = True
    LOSSES_HIDE_NAN: ClassVar[bool] = True  # paddle's relu turns NaN into 0, but weights of earlier layers become NaN

    def _read(self, result: Any) -> Any:
        if not isinstance(result, paddle.Tensor):
            return super()._read(result)
        array = _tensors.to_array(result)
        return array.item() if array.ndim == 0 else array

    def _on_device(self, batch: Any) -> Any:
        return batch.map(self._tensor)

    def _exact_tensor(self, array: NDArray[Any], like: paddle.Tensor | None = None) -> paddle.Tensor:
        tensor = paddle.to_tensor(array, place=paddle.CPUPlace() if like is None else like.place)
        was_wider = like is not None and like.dtype == paddle.bfloat16 and tensor.dtype == paddle.float32
        return tensor.astype("bfloat16") if was_wider else tensor

    def _overwrite(self, tensor: paddle.Tensor, values: paddle.Tensor) -> bool:
        if not tensor.is_leaf or tensor.shape != values.shape or tensor.dtype != values.dtype:
            return False
        tensor.set_value(values)
        return True

    def _copied(self, tensor: Any) -> NDArray[Any] | None:
        return _tensors.to_array(tensor) if isinstance(tensor, paddle.Tensor) and tensor.is_dense() else None

    def _is_generator(self, value: Any) -> bool:
        return _is_paddles_generator(value) or super()._is_generator(value)

    def _accessor(self, value: Any) -> StateAccessor | None:
        if isinstance(value, paddle.Tensor):
            trained = value.is_leaf and not value.stop_gradient
            return StateAccessor(lambda: value, value.set_value) if trained else None
        if isinstance(value, paddle.optimizer.Optimizer):
            return accessor_of_optimizer(value)
        if _is_paddles_generator(value):
            return accessor_of_generator(value)
        return super()._accessor(value)

    def _noise(self, like: paddle.Tensor) -> paddle.Tensor:
        return standard_normal_like(like)

    def _distribution(self, output: Any, kind: ActionKind, mask: paddle.Tensor | None) -> PolicyDistribution:
        return policy_distribution(output, kind, mask)

    def _normalised(self, values: paddle.Tensor) -> paddle.Tensor:
        return normalised(values)

    def _means(self, steps: Sequence[Any]) -> list[float]:
        return means(steps)

    def _branch_on(self, condition: Callable[[], bool], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return branch_on(condition, yes, no)

    def _missing_metric(self, like: paddle.Tensor) -> paddle.Tensor | None:
        return missing_metric(like)

    def _value_before_update(self, value: Callable[[], Any]) -> Any:
        return value_before_run(value, self._float_dtype())

    def _is_recording(self) -> bool:
        return in_program()

    def _call_after_update(self, action: Callable[[], object]) -> None:
        call_after_run(action)

    def _no_gradients(self) -> AbstractContextManager[Any]:
        return paddle.no_grad()

    @contextmanager
    def _drawing_from(self, seed: int) -> Iterator[None]:
        before = paddle.get_rng_state()
        paddle.seed(seed)
        try:
            yield
        finally:
            paddle.set_rng_state(before)


def _is_paddles_generator(value: Any) -> bool:
    return type(value).__name__ == "Generator" and type(value).__module__.startswith("paddle.")
