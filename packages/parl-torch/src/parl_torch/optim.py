"""One update step of an optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parl_core import optimizer as contract
from parl_core.model import Weights, check_weights
from parl_torch.model import Model
from parl_torch.tensors import to_array

__all__ = ["Adam"]

_SLOTS = {"moment1": "exp_avg", "moment2": "exp_avg_sq", "step": "step"}


class Adam(contract.Optimizer):
    """Adam (Kingma & Ba 2015), fused: one kernel for all parameters.

    Args:
        model: whose parameters are updated.
        lr: default learning rate, above 0.
        eps: added to the root of the second moment.
        max_grad_norm: limit of the gradients' global norm, None for none.
        part: update only the parameters below this attribute of the model.
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
        self._model = model
        self._lr = lr
        self._eps = eps
        self._max_grad_norm = max_grad_norm
        self._prefix = "" if part is None else f"{part}."
        self._parameters: list[nn.Parameter] = []
        self._adam: torch.optim.Adam | None = None

    def minimize(self, loss: Tensor, lr: float | None = None) -> Tensor | None:
        """Compute gradients of `loss` and take one step: see the contract."""
        adam = self._adam or self._create()
        adam.param_groups[0]["lr"] = self._lr if lr is None else lr
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        norm = None
        if self._max_grad_norm is not None:
            norm = nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        adam.step()
        return norm

    def get_state(self) -> Weights:
        """Copies of steps and moments: see the contract."""
        if self._adam is None:
            return {}
        state: Weights = {}
        for slot, key in _SLOTS.items():
            arrays = {
                name: to_array(self._adam.state[parameter][key])
                for name, parameter in self._named().items()
                if self._adam.state[parameter]
            }
            if slot == "step":
                arrays = {name: array.astype("int64") for name, array in arrays.items()}
            else:
                arrays = self._model._to_portable(arrays)
            state |= {f"{slot}/{name}": array for name, array in arrays.items()}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: see the contract."""
        if not state:
            self._adam = None
            return
        shapes = {name: tuple(parameter.shape) for name, parameter in self._named().items()}
        slots = {slot: _below(slot, state) for slot in _SLOTS}
        known = {name: shapes[name] for name in slots["step"] if name in shapes}
        moments = {slot: self._from_portable(slots[slot]) for slot in ("moment1", "moment2")}
        for slot, arrays in moments.items():
            check_weights(f"{slot} of the optimizer", known, arrays)
        check_weights("steps of the optimizer", dict.fromkeys(known, ()), slots["step"])
        adam = self._create()
        for name, parameter in self._named().items():
            if name in known:
                adam.state[parameter] = {
                    "step": torch.tensor(float(slots["step"][name]), device=parameter.device),
                    "exp_avg": torch.tensor(moments["moment1"][name]).to(parameter),
                    "exp_avg_sq": torch.tensor(moments["moment2"][name]).to(parameter),
                }

    def _named(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self._model.named_parameters() if name.startswith(self._prefix)}

    def _from_portable(self, arrays: Weights) -> Weights:
        converted = self._model._from_portable(arrays)  # which adds counters of the model's that no optimizer has
        return {name: array for name, array in converted.items() if name in arrays}

    def _create(self) -> torch.optim.Adam:
        self._parameters = list(self._named().values())
        self._adam = torch.optim.Adam(self._parameters, lr=self._lr, eps=self._eps, fused=True)
        return self._adam


def _below(slot: str, state: Mapping[str, Any]) -> Weights:
    return {name.removeprefix(f"{slot}/"): array for name, array in state.items() if name.startswith(f"{slot}/")}
