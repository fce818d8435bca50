"""`parl.Algorithm` on PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from parl_core import algorithm as contract
from parl_core._attached_state import StateAccessor
from parl_core._nested import map_nested
from parl_core._small_networks import Framework
from parl_core.checks import first_method
from parl_core.contracts.actions import ActionKind
from parl_core.errors import HyperparameterError
from parl_torch._compiled import require_compiler
from parl_torch._graphs import TORCH
from parl_torch._tensors import keep_freed_memory, resolve_device, settle_threads, to_array, to_tensor
from parl_torch.data_parallel import means, normalised
from parl_torch.distributions import PolicyDistribution, policy_distribution
from parl_torch.model import Model
from parl_torch.optim import Adam, FrameworkOptimizer
from parl_torch.random_state import accessor_of_generator

__all__ = ["Algorithm"]


class Algorithm(contract.Algorithm):
    model: Any  # a parl_torch.model.Model; `policy` and `value` exist only in the user's subclass

    FRAMEWORK: ClassVar[Framework] = TORCH

    _found_parameter: Tensor | None = None

    def _resolve_device(self, device: str) -> torch.device:
        found = resolve_device(device)
        if found.type == "cpu":
            keep_freed_memory()
        return found

    def _require_compiler(self) -> bool:
        return require_compiler()

    def _require_bfloat16(self) -> bool:
        if self._device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise HyperparameterError(
                f'compute_dtype="bfloat16" needs a GPU that supports it; {torch.cuda.get_device_name(self._device)} '
                "does not: leave it out"
            )
        return True

    def _run(self, network: Callable[..., Any], *inputs: Any) -> Any:
        """Return the output of a network, as float32 if it computes in bfloat16, because losses need that."""
        if not self._reduces:
            return network(*inputs)
        with torch.autocast(self.device.type, torch.bfloat16):
            output = network(*inputs)
        return _widened(output)

    def _place(self, model: Any, device: torch.device) -> Any:
        if not isinstance(model, nn.Module):
            first_method(model, ("forward",), type(self).__name__)  # its message also fits objects that are no models
        if isinstance(model, Model):
            model._seed_lazy_layers()
        return model.to(device)

    def _choose_threads(self) -> bool:
        models = list(self._models().values())
        if self.device.type != "cpu":
            return True
        if any(model._waiting() for model in models):
            return False
        settle_threads(max((sum(p.numel() for p in model.parameters()) for model in models), default=0))
        return True

    def _first_parameter(self) -> Tensor | None:
        found: Tensor | None = self._found_parameter
        if found is None:
            for model in self._models().values():
                # Moving a model or setting its shapes changes its parameters in place, so this one stays valid.
                self._found_parameter = found = next(iter(model.parameters()), None)
                break
        return found

    def _device_of_models(self) -> torch.device:
        parameter = self._first_parameter()
        return torch.device("cpu") if parameter is None else parameter.device

    def _adam(
        self,
        model: Model,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | Callable[[], Iterable[Tensor]] | None = None,
    ) -> Adam:
        return Adam(model, lr=lr, eps=eps, max_grad_norm=max_grad_norm, part=part, compiles=self._compiles)

    def _adapted(
        self, optimizer: Any, max_grad_norm: float | None, part: Iterable[Any] | None = None
    ) -> FrameworkOptimizer:
        return FrameworkOptimizer(optimizer, self.model.parameters(), max_grad_norm, part=part)

    def _tensor(self, array: Any) -> Tensor:
        parameter = self._found_parameter
        if parameter is None:  # checked here as well, because a batch has many columns
            parameter = self._first_parameter()
        float_dtype = torch.float32 if parameter is None else parameter.dtype
        return to_tensor(array, self.device, float_dtype)

    def _array(self, tensor: Any) -> Any:
        return to_array(tensor) if isinstance(tensor, Tensor) else tensor

    def _choices_of(self, action: Tensor) -> Tensor:
        return action if action.dtype is torch.int64 and action.dim() == 1 else action.long().reshape(-1)

    def _stacked(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(tensors))

    def _within(self, tensor: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.clamp(tensor, low, high)

    def _read(self, result: Any) -> Any:
        if not isinstance(result, Tensor):
            return super()._read(result)
        return result.item() if result.dim() == 0 else to_array(result)

    def _on_device(self, batch: Any) -> Any:
        parameter = self._found_parameter
        if parameter is None:
            parameter = self._first_parameter()
        float_dtype = torch.float32 if parameter is None else parameter.dtype
        device, tensors = self._device, object.__new__(type(batch))  # as `Batch.made`
        columns, on_host = tensors.__dict__, device.type == "cpu"
        for name, value in batch.__dict__.items():
            if value is None or name == "checked":
                continue
            if on_host and type(value) is np.ndarray and value.flags.carray:
                tensor = torch.from_numpy(value)
                is_exact = tensor.dtype is float_dtype or not tensor.is_floating_point()
                columns[name] = tensor if is_exact else tensor.to(float_dtype)
            elif isinstance(value, (np.ndarray, Tensor)):
                columns[name] = to_tensor(value, device, float_dtype)
            elif isinstance(value, Mapping):
                columns[name] = map_nested(self._tensor, value)
        columns["checked"] = True
        return tensors

    def _exact_tensor(self, array: NDArray[Any], like: Tensor | None = None) -> Tensor:
        tensor = torch.tensor(array, device=None if like is None else like.device)
        was_wider = like is not None and like.dtype == torch.bfloat16 and tensor.dtype == torch.float32
        return tensor.bfloat16() if was_wider else tensor

    @torch.no_grad()
    def _overwrite(self, tensor: Tensor, values: Tensor) -> bool:
        fits = tensor.shape == values.shape and tensor.dtype == values.dtype and tensor.layout is torch.strided
        if not fits or not tensor.is_leaf or tensor.is_inference() or not tensor.is_contiguous():
            return False
        tensor.copy_(values)
        return True

    def _copied(self, tensor: Any) -> NDArray[Any] | None:
        if not isinstance(tensor, Tensor) or is_lazy(tensor) or tensor.layout is not torch.strided:
            return None
        if tensor.is_meta or tensor.is_quantized or tensor.is_nested:
            return None
        try:
            return to_array(tensor)
        except TypeError:  # dtypes that numpy does not have, such as floats of 8 bits
            return None

    def _is_generator(self, value: Any) -> bool:
        return isinstance(value, torch.Generator) or super()._is_generator(value)

    def _accessor(self, value: Any) -> StateAccessor | None:
        if isinstance(value, torch.Generator):
            return accessor_of_generator(value)
        if not isinstance(value, Tensor):
            return super()._accessor(value)

        @torch.no_grad()
        def assign(values: Tensor) -> None:
            value.copy_(values)

        return StateAccessor(lambda: value, assign) if value.requires_grad and value.is_leaf else None

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn_like(like)

    def _distribution(self, output: Any, kind: ActionKind, mask: Tensor | None) -> PolicyDistribution:
        return policy_distribution(output, kind, mask)

    def _normalised(self, values: Tensor) -> Tensor:
        return normalised(values)

    def _means(self, steps: Sequence[Any]) -> list[float]:
        return means(steps)

    def _no_gradients(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    @contextmanager
    def _drawing_from(self, seed: int) -> Iterator[None]:
        if self.device.type == "cuda":
            generator = torch.cuda.default_generators[self.device.index or 0]
        else:
            generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


def _widened(output: Any) -> Any:
    if isinstance(output, tuple):  # the policy of a (policy, value) pair may be a Gaussian
        return tuple(map(_widened, output))
    return output.float() if output.dtype == torch.bfloat16 else output
