"""What an algorithm needs of an optimizer, whichever the framework: one update step, and a state that can be saved."""

from collections.abc import Mapping
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
