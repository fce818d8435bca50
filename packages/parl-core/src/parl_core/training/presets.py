"""Hyper-parameters that are known to work, by algorithm and environment, with their source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from parl_core.training.on_policy import OnPolicySettings

__all__ = ["PPO_PRESETS", "OnPolicyPreset"]


@dataclass(frozen=True)
class OnPolicyPreset:
    """Everything that a run needs besides the environment and a seed.

    Attributes:
        loop: settings of the loop.
        algorithm: arguments of the algorithm's constructor.
        num_envs: environments that are stepped together.
        hidden: sizes of the hidden layers (tanh) of policy and value network each.
        goal: mean return of an evaluation that counts as solved; None when there is no agreed one.
    """

    loop: OnPolicySettings = field(default_factory=lambda: OnPolicySettings(lr=3e-4, clip=0.2, entropy_coef=0.0))
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 8
    hidden: tuple[int, ...] = (64, 64)
    goal: float | None = None


PPO_PRESETS: Mapping[str, OnPolicyPreset] = MappingProxyType(
    {
        # RL Baselines3 Zoo, hyperparams/ppo.yml. Its vf_coef 0.5 weighs the squared error, our value_loss_coef half of
        # it; its value function is not clipped. Goal: Gymnasium's reward threshold.
        "CartPole-v1": OnPolicyPreset(
            OnPolicySettings(
                total_steps=100_000,
                n_steps=32,
                epochs=20,
                minibatch_size=256,
                gamma=0.98,
                gae_lambda=0.8,
                lr=1e-3,
                clip=0.2,
                decay=True,
                entropy_coef=0.0,
            ),
            {"value_loss_coef": 1.0, "use_clipped_value_loss": False},
            goal=475.0,
        ),
    }
)
