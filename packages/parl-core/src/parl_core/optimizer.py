"""What an algorithm needs of an optimizer, whichever the framework: one update step, and a state that can be saved."""

from collections.abc import Callable, Mapping
from typing import Any

from parl_core.model import Weights

__all__ = ["Optimizer"]


class Optimizer:
    """Updates some or all parameters of one model; it is created in the framework when the first loss arrives.

    That late, because lazily shaped layers have no parameters before the first batch.
    """

    def minimize(self, loss: Any, lr: float | None = None) -> Any:
        """Compute gradients of `loss` and take one step.

        Args:
            loss: a scalar tensor.
            lr: learning rate of this step; default the constructor's.

        Returns:
            The gradients' global norm before clipping, a tensor, where a limit was set; else None.
        """
        raise NotImplementedError

    def descend(self, losses: Callable[..., tuple[Any, ...]], *batch: Any, lr: float | None = None) -> tuple[Any, ...]:
        """Take one step down the gradient of the first of `losses(*batch)`.

        Args:
            losses: a function of tensors without side effects; where the algorithm compiles, it is compiled together
                with its gradient.
            batch: its arguments, tensors, dictionaries of tensors or None.
            lr: learning rate of this step; default the constructor's.

        Returns:
            What `losses` returned, detached from the graph.
        """
        raise NotImplementedError

    def get_state(self) -> Weights:
        """Copies of the state, empty before the first step.

        Returns:
            `step/<parameter>` (int64 scalar), `moment1/<parameter>` and `moment2/<parameter>` of Adam, in the names and
            layouts of `Model.get_weights(portable=True)`.
        """
        raise NotImplementedError

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned, of either backend.

        Raises:
            WeightsMismatchError: names or shapes do not fit the model; nothing was changed.
        """
        raise NotImplementedError
