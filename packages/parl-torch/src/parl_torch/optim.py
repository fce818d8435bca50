"""Optimizers on PyTorch: a fast Adam, and adapters of PyTorch's own optimizers."""

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors
from torch.nn.parameter import is_lazy

from parl_core import algorithm as contract
from parl_core._attached_state import StateAccessor
from parl_core._small_networks import has_hooks
from parl_core.model import Weights
from parl_torch._chains import Plan
from parl_torch._compiled import CompiledGradients, Loss, gradients_of
from parl_torch._graphs import TORCH
from parl_torch._tensors import to_array
from parl_torch.data_parallel import SharedGradients, learners
from parl_torch.model import Model

__all__ = ["Adam", "FrameworkOptimizer"]

_gradient = operator.attrgetter("grad")
_is_there = functools.partial(operator.is_not, None)

_BETA1, _BETA2 = 0.9, 0.999  # Kingma & Ba 2015, algorithm 1

# Up to this many numbers, one copy of all gradients into one array costs a CPU less than a call for each of them.
_FEW = 2**14


@dataclass
class _Moments:
    """State of one parameter."""

    step: Tensor  # float32 scalar that the kernel reads; shared by parameters that have taken the same steps
    moment1: Tensor
    moment2: Tensor


@dataclass(frozen=True)
class _Columns:
    """The kernel's arguments while the same parameters have gradients."""

    reached: list[bool]
    parameters: list[Tensor]
    moments1: list[Tensor]
    moments2: list[Tensor]
    steps: list[Tensor]
    clocks: list[tuple[Tensor, Tensor]]  # the distinct tensors among the steps, and the increment of each
    flat_norm: bool


class Adam(contract.Optimizer):
    """`parl_core.algorithm.Optimizer` by one fused kernel for all parameters.

    It calls the kernel of `torch.optim.Adam(fused=True)` directly, because the bookkeeping of that class takes four
    times as long as the kernel for small networks.
    """

    def __init__(
        self,
        model: Model,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | Callable[[], Iterable[Tensor]] | None = None,
        compiles: bool = False,
    ) -> None:
        super().__init__(model, lr=lr, eps=eps, max_grad_norm=max_grad_norm, part=part, compiles=compiles)
        self._compiled: dict[Any, CompiledGradients] = {}
        self._plans: dict[Any, Plan | None] = {}
        self._state: dict[Tensor, _Moments] = {}
        self._parameters: list[nn.Parameter] = []
        self._waits = False
        self._columns: _Columns | None = None
        self._shared: SharedGradients | None = None

    def minimize(self, loss: Tensor, lr: float | None = None) -> Tensor | None:
        """Compute gradients of `loss` and take one step: see the contract."""
        if not self._parameters or self._waits:
            self._list_parameters()
        contract.require_gradient(loss.requires_grad, type(self._model).__name__)
        rate = self._rate(lr)
        if self._shared is not None and not self._shared.at_backward:
            gradients = gradients_of(loss, self._parameters)
            self._shared.average(gradients)
            return self._step(gradients, rate)
        if self._shared is not None:
            loss = self._shared.announce(loss)
        for parameter in self._parameters:
            parameter.grad = None
        # An optimizer of a part computes no gradients of other parameters, such as the critic's in an actor's step.
        inputs = None if self._part is None else [one for one in self._parameters if one.requires_grad]
        loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        return self._step(list(map(_gradient, self._parameters)), rate)

    def _list_parameters(self) -> None:
        """List the parameters that have shapes; the list is made again when lazily shaped layers get theirs."""
        named = list(self._named().values())
        known = [parameter for parameter in named if not is_lazy(parameter)]
        self._waits = len(known) < len(named)
        if len(known) != len(self._parameters):
            self._parameters, self._columns = known, None
            self._shared = SharedGradients(known) if learners().size > 1 else None

    def descend(self, loss: Loss, *batch: Any, lr: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Take one step down the gradient of the first loss: see the contract."""
        plan = None
        if hasattr(loss, "hand_written") and not torch.is_autocast_enabled("cpu"):  # other losses need no hash
            plan = self._plans.get(loss)
            if plan is None or not plan.parts.are_same():
                plan = self._plan(loss, batch)
        if plan is not None:
            rate = self._rate(lr)
            with torch._C._InferenceMode(True):  # `torch.inference_mode` would take three times as long
                figures_by_hand = plan(*batch)
                if figures_by_hand is not None:
                    self._take(plan.reached, plan.gradients, rate, plan.flat)
            if figures_by_hand is not None:
                return figures_by_hand()  # outside of inference mode, so that they can be used like any other tensors
        if not (self._compiles and self._parameters):  # layers may get their shapes from the first batch
            value, figures = loss(*batch)
            self.minimize(value, lr)
            for name, figure in figures.items():
                figures[name] = figure.detach()
            return value.detach(), figures
        compiled = self._compiled.get(loss)
        if compiled is None:
            compiled = self._compiled[loss] = CompiledGradients(loss, self._parameters)
        value, figures, found = compiled(*batch)
        if self._shared is not None:
            self._shared.average(found)
        self._step(found, self._rate(lr))
        return value, figures

    def _plan(self, loss: Any, batch: tuple[Any, ...]) -> Plan | None:
        """Return how to take steps without autograd; None where the loss or the model needs it."""
        if self._compiles:
            return None
        obs = batch[0].obs
        if not (isinstance(obs, Tensor) and obs.dim() == 2 and obs.is_floating_point()):
            return None
        if type(self) is not Adam or learners().size > 1 or has_hooks(TORCH, self._model):
            return None
        plan = self._plans[loss] = Plan(loss, self._listed, batch[0])
        return plan

    def _listed(self) -> list[nn.Parameter]:
        if not self._parameters or self._waits:
            self._list_parameters()
        return self._parameters

    @torch.no_grad()
    def _step(self, found: Sequence[Tensor | None], lr: float) -> Tensor | None:
        reached = list(map(_is_there, found))
        return self._take(reached, list(compress(found, reached)), lr)

    def _take(
        self, reached: list[bool], gradients: list[Any], lr: float, joined: Tensor | None = None
    ) -> Tensor | None:
        """Take a step and return the gradients' norm before clipping, where there is a limit.

        Args:
            reached: Whether each parameter has a gradient.
            gradients: The gradients of these parameters.
            lr: Learning rate.
            joined: All gradients in one array, if they are stored so.
        """
        columns = self._columns
        if columns is None or columns.reached != reached:
            self._columns = columns = self._gathered(reached)
        norm = divisor = None
        if self._max_grad_norm is not None:
            norm = _global_norm(gradients, columns.flat_norm) if joined is None else torch.linalg.vector_norm(joined)
            divisor = (norm / self._max_grad_norm).clamp_min(1.0)
            if divisor.dtype != torch.float32:  # the kernel divides by this tensor only
                torch._foreach_div_(gradients, divisor)
                divisor = None
        for clock, one in columns.clocks:
            clock.add_(one)
        torch._fused_adam_(
            columns.parameters,
            gradients,
            columns.moments1,
            columns.moments2,
            [],
            columns.steps,
            lr=lr,
            beta1=_BETA1,
            beta2=_BETA2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )
        if self._shared is not None:
            self._shared.settle()
        return norm

    def get_state(self) -> Weights:
        """Return copies of the number of steps and of the moments: see the contract."""
        states = {name: self._state[value] for name, value in self._named().items() if value in self._state}
        slots: dict[str, Weights] = {
            "step": {name: to_array(state.step).astype("int64") for name, state in states.items()},
            "moment1": self._model._to_portable({name: to_array(state.moment1) for name, state in states.items()}),
            "moment2": self._model._to_portable({name: to_array(state.moment2) for name, state in states.items()}),
        }
        state = {f"{slot}/{name}": array for slot, arrays in slots.items() for name, array in arrays.items()}
        return state | self._rate_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state: see the contract."""
        named = self._named()
        step, moment1, moment2 = self._saved(state)
        self._restore_rate(state)
        self._parameters, self._columns, self._waits, self._plans = [], None, False, {}
        clocks = {
            (count, device): torch.tensor(float(count), device=device)
            for count, device in {(int(step[name]), named[name].device) for name in step}
        }
        self._state = {
            named[name]: _Moments(
                clocks[int(step[name]), named[name].device],
                torch.zeros_like(named[name]).copy_(torch.tensor(moment1[name])),
                torch.zeros_like(named[name]).copy_(torch.tensor(moment2[name])),
            )
            for name in step
        }

    @torch.inference_mode(mode=False)  # these tensors outlive the call
    def _gathered(self, reached: list[bool]) -> _Columns:
        parameters: list[Tensor] = [parameter for parameter, hit in zip(self._parameters, reached, strict=True) if hit]
        # These parameters share a counter from here on; those that shared it before and take no step keep the old one.
        clocks: dict[Any, Tensor] = {}
        for parameter in parameters:
            state = self._state.get(parameter)
            if state is None:
                # The step is on the parameter's device, as the kernel wants it.
                clock = clocks.setdefault(parameter.device, torch.zeros((), device=parameter.device))
                self._state[parameter] = _Moments(clock, torch.zeros_like(parameter), torch.zeros_like(parameter))
            else:
                state.step = clocks.setdefault(id(state.step), state.step.clone())
        states = [self._state[parameter] for parameter in parameters]
        few = sum(parameter.numel() for parameter in parameters) <= _FEW
        return _Columns(
            reached,
            parameters,
            [state.moment1 for state in states],
            [state.moment2 for state in states],
            [state.step for state in states],
            [(clock, torch.ones_like(clock)) for clock in clocks.values()],
            flat_norm=few and all(parameter.device.type == "cpu" for parameter in parameters),
        )


class FrameworkOptimizer(contract.FrameworkOptimizer):
    BASE: ClassVar[type[Any]] = torch.optim.Optimizer
    EXAMPLE: ClassVar[str] = "torch.optim.AdamW(model.parameters(), lr=1e-3)"

    _learners = staticmethod(learners)

    def minimize(self, loss: Tensor, lr: float | None = None) -> Tensor | None:
        self.optimizer.zero_grad(set_to_none=True)
        contract.require_gradient(loss.requires_grad, f"the {type(self.optimizer).__name__}")
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        norm = None
        if self._max_grad_norm is not None:
            norm = nn.utils.clip_grad_norm_(self._listed(), self._max_grad_norm)
        self._follow(lr)
        self.optimizer.step()
        return norm

    def get_lr(self) -> float:
        """Return the learning rate of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def param_groups(self) -> list[MutableMapping[str, Any]]:
        """The groups of parameters of the optimizer itself."""
        return [*self.optimizer.param_groups]

    def _listed(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _repeats_losses(self, optimizer: torch.optim.Optimizer) -> bool:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        return closure is not None and closure.default is inspect.Parameter.empty

    def _set_rate(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _accessor(self) -> StateAccessor:
        return StateAccessor(self.optimizer.state_dict, self.optimizer.load_state_dict)


def _global_norm(gradients: list[Tensor], flat: bool) -> Tensor:
    joined: Tensor
    if flat:
        joined = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    else:
        joined = torch.stack(torch._foreach_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(joined)
    return norm
