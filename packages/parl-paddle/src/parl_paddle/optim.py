"""One update step of Adam, and the norms of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from parl_core.errors import WeightsMismatchError
from parl_core.model import Weights, check_weights
from parl_core.optimizer import Optimizer
from parl_paddle.model import Model
from parl_paddle.programs import in_program
from parl_paddle.tensors import to_array

__all__ = ["Adam"]

_MOMENTS = ("moment1", "moment2")


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015) over the parameters of one model, created when the first loss arrives.

    Inside `build_program()`, `minimize` adds the step to the program; its state then lives in the agent's scope, and
    `get_state` does not see it.

    Args:
        model: whose parameters are updated.
        lr: learning rate of a step that names none.
        eps: added to the denominator.
        max_grad_norm: gradients are scaled down to this global norm; None leaves them.
        part: the model's attribute whose parameters are updated; None: all of the model's.
    """

    def __init__(
        self,
        model: Model,
        *,
        lr: float,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        part: str | None = None,
    ) -> None:
        self._model, self._lr, self._eps, self._max_grad_norm = model, lr, eps, max_grad_norm
        self._part = part
        self._adam: Any = None
        self._lr_set = lr
        self._steps = 0

    def minimize(self, loss: Any, lr: Any = None) -> Any:
        """See `parl_core.optimizer.Optimizer.minimize`; in a program `lr` may be a value that is fed."""
        if in_program():
            self._add_to_program(loss, lr)
            return None
        adam = self._with_lr(self._lr if lr is None else float(lr))
        loss.backward()
        norm = None
        if self._max_grad_norm is not None:
            norm = paddle.nn.utils.clip_grad_norm_(self._parameters(), self._max_grad_norm)
        adam.step()
        adam.clear_grad(set_to_zero=False)
        self._steps += 1
        return norm

    def get_state(self) -> Weights:
        """See `parl_core.optimizer.Optimizer.get_state`."""
        if self._steps == 0:
            return {}
        state = self._adam.state_dict()
        moments = {
            moment: {name: to_array(state[f"{tensor.name}_{moment}_0"]) for name, tensor in self._named().items()}
            for moment in _MOMENTS
        }
        named: Weights = {}
        for moment, arrays in moments.items():
            named |= {f"{moment}/{name}": array for name, array in self._model._to_portable(arrays).items()}
        steps = np.asarray(self._steps, np.int64)
        return {f"step/{name}": steps for name in self._model._to_portable(moments["moment1"])} | named

    def set_state(self, state: Mapping[str, Any]) -> None:
        """See `parl_core.optimizer.Optimizer.set_state`."""
        if not state:
            self._adam, self._steps = None, 0
            return
        named = self._named()
        moments = {
            moment: self._model._from_portable(
                {
                    name.removeprefix(f"{moment}/"): np.asarray(array)
                    for name, array in state.items()
                    if name.startswith(f"{moment}/")
                }
            )
            for moment in _MOMENTS
        }
        shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
        for moment, arrays in moments.items():
            check_weights(f"{moment} of {type(self).__name__}", shapes, arrays)
        steps = {int(array) for name, array in state.items() if name.startswith("step/")}
        if len(steps) != 1:
            raise WeightsMismatchError(f"parameters of one Adam have taken one number of steps, the state has {steps}")
        self._steps = steps.pop()
        adam = self._adam = self._new(self._parameters())
        self._lr_set = self._lr
        values = {}
        for name, tensor in named.items():
            for moment in _MOMENTS:
                values[f"{tensor.name}_{moment}_0"] = paddle.to_tensor(moments[moment][name], place=tensor.place)
            for beta, power in ((adam._beta1, "beta1_pow_acc"), (adam._beta2, "beta2_pow_acc")):
                # Paddle keeps beta to the power of the *next* step.
                values[f"{tensor.name}_{power}_0"] = paddle.to_tensor([beta ** (self._steps + 1)], dtype=tensor.dtype)
        adam.set_state_dict(values)

    def _with_lr(self, lr: float) -> Any:
        if self._adam is None:
            self._adam = self._new(self._parameters())
        if lr != self._lr_set:  # costs an operation
            self._adam.set_lr(lr)
            self._lr_set = lr
        return self._adam

    def _parameters(self) -> list[paddle.Tensor]:
        owner = self._model if self._part is None else getattr(self._model, self._part)
        parameters: list[paddle.Tensor] = owner.parameters()
        return parameters

    def _new(self, parameters: Sequence[paddle.Tensor] | None, grad_clip: Any = None) -> Any:
        return paddle.optimizer.Adam(self._lr, epsilon=self._eps, parameters=parameters, grad_clip=grad_clip)

    def _named(self) -> dict[str, paddle.Tensor]:
        mine = {id(tensor) for tensor in self._parameters()}
        return {name: tensor for name, tensor in self._model._named_parameters().items() if id(tensor) in mine}

    def _add_to_program(self, loss: Any, lr: Any) -> None:
        limit = self._max_grad_norm
        adam = self._new(None, None if limit is None else paddle.nn.ClipGradByGlobalNorm(limit))
        if isinstance(lr, (int, float)):
            adam._learning_rate = float(lr)
        elif lr is not None:
            # Paddle's constructor takes numbers only; the value it reads at each run is looked up per program.
            adam._learning_rate_map[paddle.static.default_main_program()] = paddle.reshape(lr, [])
        adam.minimize(loss)
