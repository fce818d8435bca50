"""Optimizers on PaddlePaddle: an Adam for eager updates and programs, and adapters of paddle's own optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import paddle
from paddle import Tensor
from paddle.utils import unique_name

from parl_core import algorithm as contract
from parl_core._attached_state import StateAccessor
from parl_core.errors import HyperparameterError
from parl_core.model import Weights
from parl_paddle._static_graphs import as_value, eager, in_program
from parl_paddle._tensors import to_array
from parl_paddle.data_parallel import SharedGradients, learners
from parl_paddle.model import Model

__all__ = ["Adam", "FrameworkOptimizer", "accessor_of_optimizer"]

_ops: Any = paddle._C_ops  # paddle's types do not say that a tensor may be missing

_BETA1, _BETA2 = 0.9, 0.999
_MOMENTS = ("moment1", "moment2")
_REDUCED = (paddle.float16, paddle.bfloat16)  # dtypes whose moments are kept in float32


class Adam(contract.Optimizer):
    """`parl_core.algorithm.Optimizer` with one state for eager updates and programs.

    The state is in eager tensors, like the weights. So a step in a program (`build_program`) continues from an eager
    step and vice versa, and the state of both is saved.
    """

    def __init__(
        self,
        model: Model,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | Callable[[], Iterable[Tensor]] | None = None,
    ) -> None:
        super().__init__(model, lr=lr, eps=eps, max_grad_norm=max_grad_norm, part=part)
        self._others: list[Tensor] | None = None
        self._slots: dict[str, _Slot] = {}
        self._waits = False
        self._shared: SharedGradients | None = None
        self._rates: dict[Any, Tensor] = {}
        self._rates_are = lr

    def minimize(self, loss: Tensor, lr: float | Tensor | None = None) -> Tensor | None:
        """Compute gradients of `loss` and take one step: see the contract.

        While a program is built, this adds the step to the program; `lr` may then also be an input of the program.
        """
        slots = self._all_slots()
        if not in_program():
            contract.require_gradient(not loss.stop_gradient, type(self._model).__name__)
        if self._shared is not None and not in_program():
            loss = self._shared.announce(loss)
        gradients = _gradients(loss, [slot.parameter for slot in slots.values()])
        norm = None
        with paddle.no_grad():
            if self._max_grad_norm is not None:
                gradients, norm = _clip_by_global_norm(gradients, self._max_grad_norm)
            for slot, gradient in zip(slots.values(), gradients, strict=True):
                if gradient is not None:
                    slot.step(gradient, self._rate_tensor(lr, slot.moment1), self._eps)
        return norm

    def descend(
        self, loss: Callable[..., Any], *batch: Any, lr: float | Tensor | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Take one step down the gradient of the loss: see the contract."""
        with self._others_frozen():
            value, figures = loss(*batch)
        self.minimize(value, lr)
        return value.detach(), {name: figure.detach() for name, figure in figures.items()}

    def get_state(self) -> Weights:
        """Return copies of the number of steps and of the moments: see the contract."""
        used = {name: slot for name, slot in self._slots.items() if int(slot.steps.numpy()[0])}
        state: Weights = {}
        for moment in _MOMENTS:
            arrays = {name: to_array(getattr(slot, moment)) for name, slot in used.items()}
            state |= {f"{moment}/{name}": array for name, array in self._model._to_portable(arrays).items()}
        state |= {f"step/{name}": to_array(slot.steps).reshape(()) for name, slot in used.items()}
        return state | self._rate_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state: see the contract."""
        steps, moment1, moment2 = self._saved(state)
        self._restore_rate(state)
        if steps:
            self._all_slots()
        for name, slot in self._slots.items():  # into the existing tensors, because programs refer to them
            if name in steps:
                slot.load(moment1[name], moment2[name], int(steps[name]))
            else:
                zeros = np.zeros(slot.parameter.shape)
                slot.load(zeros, zeros, 0)

    @contextlib.contextmanager
    def _others_frozen(self) -> Iterator[None]:
        """Compute no gradients of parameters that the optimizer does not change, such as critics in an actor's step."""
        if self._part is None or not self._slots or in_program():
            yield
            return
        if self._others is None:
            own = {id(slot.parameter) for slot in self._slots.values()}
            self._others = [tensor for tensor in self._model._named_parameters().values() if id(tensor) not in own]
        learning = [tensor for tensor in self._others if not tensor.stop_gradient]
        for tensor in learning:
            tensor.stop_gradient = True
        try:
            yield
        finally:
            for tensor in learning:
                tensor.stop_gradient = False

    def _listed(self) -> list[Tensor]:
        return list(self._named().values())

    def _all_slots(self) -> dict[str, _Slot]:
        """Return the states of the parameters with shapes; lazily shaped layers may get theirs later."""
        if self._slots and not self._waits:
            return self._slots
        with eager():
            self._waits = bool(self._model._waiting())
            new = {name: parameter for name, parameter in self._named().items() if name not in self._slots}
            self._slots |= {name: _Slot.of(parameter) for name, parameter in new.items()}
            self._others = None
            if new and learners().size > 1:
                self._shared = SharedGradients([slot.parameter for slot in self._slots.values()])
        return self._slots

    def _rate_tensor(self, lr: float | Tensor | None, like: Tensor) -> Tensor:
        if lr is not None and not isinstance(lr, (int, float, np.number)):
            return lr.astype(like.dtype).reshape([1])
        lr = float(self._rate(lr))
        if lr != self._rates_are:
            self._rates, self._rates_are = {}, lr
        if like.dtype not in self._rates:
            with eager():
                rate = paddle.to_tensor([lr], dtype=like.dtype, place=like.place)
            self._rates[like.dtype] = _with_name(rate, "learning_rate")
        return self._rates[like.dtype]


@dataclass(frozen=True)
class _Slot:
    """State of one parameter; paddle keeps the betas' powers of the *next* step, as tensors of one element."""

    parameter: Tensor
    moment1: Tensor
    moment2: Tensor
    beta1_power: Tensor
    beta2_power: Tensor
    steps: Tensor

    @classmethod
    def of(cls, parameter: Tensor) -> _Slot:
        dtype = paddle.float32 if parameter.dtype in _REDUCED else parameter.dtype
        place = parameter.place
        state = {
            "moment1": paddle.zeros_like(parameter, dtype=dtype),
            "moment2": paddle.zeros_like(parameter, dtype=dtype),
            "beta1_power": paddle.to_tensor([_BETA1], dtype=dtype, place=place),
            "beta2_power": paddle.to_tensor([_BETA2], dtype=dtype, place=place),
            "steps": paddle.to_tensor([0], dtype="int64", place=place),
        }
        named = {name: _with_name(tensor, f"{parameter.name}_{name}") for name, tensor in state.items()}
        return cls(parameter, **named)

    def step(self, gradient: Tensor, rate: Tensor, eps: float) -> None:
        # The kernel that paddle.optimizer.Adam calls. A direct call saves a fifth of a small network's update and keeps
        # the state here; paddle's class finds its state only by generated names.
        _ops.adam_(
            self.parameter,
            gradient,
            rate,
            self.moment1,
            self.moment2,
            None,  # maximum of the second moment, of AMSGrad
            self.beta1_power,
            self.beta2_power,
            None,  # master weights, of mixed precision
            None,  # skip this update
            _BETA1,
            _BETA2,
            eps,
            False,  # lazy mode, of sparse gradients
            1000,  # rows from which sparse gradients use threads
            False,  # mixed precision
            False,  # the powers are one pair for all parameters
            False,  # AMSGrad
        )
        _ops.increment_(self.steps, 1.0)

    def load(self, moment1: Any, moment2: Any, steps: int) -> None:
        dtype = to_array(self.moment1).dtype
        # Multiplied step by step as in the kernel, so that later steps are equal bit by bit; after this many steps,
        # both have long been 0.
        factors = np.ones((min(steps, 200_000) + 1, 1), dtype)
        powers = [np.cumprod(factors * dtype.type(beta), axis=0)[-1] for beta in (_BETA1, _BETA2)]
        values = (moment1, moment2, *powers, np.asarray([steps]))
        tensors = (self.moment1, self.moment2, self.beta1_power, self.beta2_power, self.steps)
        for tensor, array in zip(tensors, values, strict=True):
            tensor.set_value(paddle.to_tensor(array, dtype=tensor.dtype, place=tensor.place))


class FrameworkOptimizer(contract.FrameworkOptimizer):
    """`parl_core.algorithm.FrameworkOptimizer` of paddle; an optimizer's own `grad_clip` replaces `max_grad_norm`."""

    BASE: ClassVar[type[Any]] = paddle.optimizer.Optimizer
    EXAMPLE: ClassVar[str] = "paddle.optimizer.AdamW(1e-3, parameters=model.parameters())"

    _learners = staticmethod(learners)

    def __init__(
        self,
        optimizer: Any,
        parameters: Iterable[Tensor],
        max_grad_norm: float | None = None,
        *,
        part: Iterable[Tensor] | None = None,
    ) -> None:
        super().__init__(optimizer, parameters, max_grad_norm, part=part)
        if max_grad_norm is not None and optimizer._grad_clip is None:
            optimizer._grad_clip = paddle.nn.ClipGradByGlobalNorm(max_grad_norm)

    def minimize(self, loss: Tensor, lr: float | None = None) -> None:
        if in_program():
            raise HyperparameterError("programs of build_program take steps with parl.optim: leave optimizer= out")
        self.optimizer.clear_grad()
        contract.require_gradient(not loss.stop_gradient, f"the {type(self.optimizer).__name__}")
        loss.backward()
        self._follow(lr)
        self.optimizer.step()

    def get_lr(self) -> float:
        """Return the learning rate of the optimizer."""
        return float(self.optimizer.get_lr())

    def _listed(self) -> list[Tensor]:
        return _parameters_of(self.optimizer)

    def _repeats_losses(self, optimizer: Any) -> bool:
        return isinstance(optimizer, paddle.optimizer.LBFGS)

    def _set_rate(self, lr: float) -> None:
        self.optimizer.set_lr(lr)

    def _accessor(self) -> StateAccessor:
        return accessor_of_optimizer(self.optimizer)


def accessor_of_optimizer(optimizer: Any) -> StateAccessor:
    """Return the functions that read and write the state of one of paddle's own optimizers.

    Paddle finds the state of a parameter by the parameter's name, which counts the layers made by the process. The
    saved state uses the parameters' positions in the optimizer's list instead, so that another process or a second
    model can continue.
    """
    places = {parameter.name: f"parameters.{index}." for index, parameter in enumerate(_parameters_of(optimizer))}
    names = {place: name for name, place in places.items()}

    def get() -> dict[str, Any]:
        state = _renamed(optimizer.state_dict(), places)
        # paddle leaves out a constant rate, unlike the state of a scheduler
        if isinstance(optimizer._learning_rate, float):
            state["learning_rate"] = optimizer.get_lr()
        return state

    def put(state: Mapping[str, Any]) -> None:
        state = dict(state)
        rate = state.pop("learning_rate", None)
        optimizer.set_state_dict(_renamed(state, names))
        if rate is not None and isinstance(optimizer._learning_rate, float):
            optimizer.set_lr(rate)

    return StateAccessor(get, put)


def _renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for key, value in state.items():
        if isinstance(value, dict) and key == "master_weights":
            found[key] = {names.get(name, name): part for name, part in value.items()}
            continue
        known = [name for name in names if key.startswith(name)]
        name = max(known, key=len, default="")
        found[names.get(name, "") + key[len(name) :]] = value
    return found


def _parameters_of(optimizer: Any) -> list[Tensor]:
    """Return the parameters of one of paddle's optimizers, in the order of the optimizer."""
    listed: Any = optimizer._parameter_list or []
    return [
        parameter
        for group in listed
        for parameter in (group["params"] if isinstance(group, dict) else [group])  # of parameters, or of groups
    ]


def _clip_by_global_norm(gradients: Sequence[Tensor | None], limit: float) -> tuple[list[Tensor | None], Tensor]:
    """Scale gradients down so that their common norm is at most `limit` (Pascanu et al. 2013).

    Returns:
        The scaled gradients, and their norm before; nothing is read from the device.
    """
    squares = [gradient.square().sum() for gradient in gradients if gradient is not None]
    norm = paddle.add_n(squares).sqrt() if squares else paddle.zeros([])
    scale = limit / norm.clip(min=limit)
    return [None if gradient is None else gradient * scale for gradient in gradients], norm


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    if in_program():
        found: Iterable[Any] = paddle.static.gradients([loss], [as_value(parameter) for parameter in parameters])
        return list(found)
    for parameter in parameters:
        parameter.clear_gradient(False)
    loss.backward()
    return [parameter.grad for parameter in parameters]


def _with_name(tensor: Tensor, name: str) -> Tensor:
    # A program identifies the tensors that become its parameters by name.
    tensor.name = unique_name.generate(name)
    return tensor
