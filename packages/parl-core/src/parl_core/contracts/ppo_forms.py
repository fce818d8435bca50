"""The two documented forms of PPO: which one the arguments ask for, and what a method of the other one says.

PPO(model, clip_param=..., initial_lr=..., ...)   PARL 2.x: learn, learn_rollout, sample, predict, value
PPO(model, policy_lr=..., value_lr=..., ...)      PARL 1.x: policy_learn, value_learn, value_predict, sync_old_policy
"""

from collections.abc import Mapping
from typing import Any

from parl_core.errors import HyperparameterError

__all__ = ["DEFAULTS", "SeparateMethods", "asks_for_separate_form"]

DEFAULTS: dict[str, Any] = {
    "clip_param": 0.1,
    "value_loss_coef": 0.5,
    "entropy_coef": 0.01,
    "initial_lr": 2.5e-4,
    "eps": 1e-5,
    "max_grad_norm": 0.5,
    "use_clipped_value_loss": True,
    "norm_adv": True,
    "continuous_action": False,
    "nvec": None,
}
_SEPARATE_FORM = ("hyperparas", "act_dim", "policy_lr", "value_lr", "epsilon")


def asks_for_separate_form(positional: int, given: Mapping[str, Any]) -> bool:
    """Whether the arguments of `PPO` are those of PARL 1.x.

    Args:
        positional: number of positional arguments after the model.
        given: keyword arguments.

    Raises:
        HyperparameterError: names of both forms are mixed.
    """
    old = [name for name in _SEPARATE_FORM if given.get(name) is not None]
    new = [name for name in DEFAULTS if given.get(name) is not None] or list(DEFAULTS)[:positional]
    if old and new:
        raise HyperparameterError(
            f"PPO got {', '.join(old)} of PARL 1.x's form together with {', '.join(new)} of PARL 2.x's; "
            f"use one set: {', '.join(_SEPARATE_FORM)}; or: {', '.join(DEFAULTS)}"
        )
    return bool(old)


class SeparateMethods:
    """Methods of PARL 1.x's form on an algorithm of PARL 2.x's: they say how to get it."""

    def policy_learn(
        self,
        obs: Any,  # noqa: ARG002 - the other form's arguments, here as below
        actions: Any,  # noqa: ARG002
        advantages: Any,  # noqa: ARG002
        beta: float | None = None,  # noqa: ARG002
        *,
        lr: float | None = None,  # noqa: ARG002
        epsilon: float | None = None,  # noqa: ARG002
    ) -> Any:
        """Of PARL 1.x's form: see `SeparatePPO.policy_learn`."""
        raise _of_the_other_form("policy_learn")

    def value_learn(self, obs: Any, val: Any, *, lr: float | None = None) -> Any:  # noqa: ARG002
        """Of PARL 1.x's form: see `SeparatePPO.value_learn`."""
        raise _of_the_other_form("value_learn")

    def value_predict(self, obs: Any) -> Any:  # noqa: ARG002
        """Of PARL 1.x's form: see `SeparatePPO.value_predict`."""
        raise _of_the_other_form("value_predict")

    def sync_old_policy(self, gpu_id: int | None = None) -> None:  # noqa: ARG002 - the documents' signature
        """Of PARL 1.x's form: see `SeparatePPO.sync_old_policy`."""
        raise _of_the_other_form("sync_old_policy")


def _of_the_other_form(method: str) -> NotImplementedError:
    return NotImplementedError(
        f"{method} belongs to PARL 1.x's form of PPO; this one was made with PARL 2.x's arguments: call learn or "
        "learn_rollout, or make it with policy_lr and value_lr"
    )
