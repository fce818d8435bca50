"""Hyper-parameters that are known to work, by algorithm and environment, with their source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from parl_core.schedules import linear
from parl_core.training.off_policy import OffPolicySettings
from parl_core.training.on_policy import OnPolicySettings

__all__ = ["OFF_POLICY_PRESETS", "PPO_PRESETS", "OffPolicyPreset", "OnPolicyPreset", "off_policy_preset"]


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


@dataclass(frozen=True)
class OffPolicyPreset:
    """Everything that a run needs besides the environment and a seed.

    Attributes:
        loop: settings of the loop.
        algorithm: arguments of the algorithm's constructor.
        num_envs: environments that are stepped together.
        hidden: sizes of the hidden layers (ReLU) of each network.
        goal: mean return of an evaluation that counts as solved; None when there is no agreed one.
        evaluate_every: environment steps between evaluations.
    """

    loop: OffPolicySettings = field(default_factory=OffPolicySettings)
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    hidden: tuple[int, ...] = (256, 256)
    goal: float | None = None
    evaluate_every: int = 5_000


def _epsilon(final: float, steps: int) -> dict[str, Any]:
    return {"epsilon": linear(1.0, final, steps)}


def _box2d_dqn(goal: float) -> OffPolicyPreset:
    # RL Baselines3 Zoo, hyperparams/dqn.yml; goal: Gymnasium's reward threshold.
    loop = OffPolicySettings(
        total_steps=100_000,
        learning_starts=128,
        train_every=4,
        gradient_steps=4,
        batch_size=128,
        memory_size=50_000,
        exploration=_epsilon(0.1, 12_000),
    )
    return OffPolicyPreset(loop, {"gamma": 0.99, "lr": 6.3e-4, "sync_every": 250}, goal=goal)


def _pendulum(learning_starts: int, **exploration: float) -> OffPolicySettings:
    return OffPolicySettings(
        total_steps=20_000, learning_starts=learning_starts, memory_size=200_000, exploration=exploration
    )


# RL Baselines3 Zoo, hyperparams/td3.yml and ddpg.yml; there the first 10,000 steps are random, and layers 400 and 300.
_DETERMINISTIC_PENDULUM = OffPolicyPreset(
    _pendulum(1_000, noise=0.1),
    {"gamma": 0.98, "actor_lr": 1e-3, "critic_lr": 1e-3},
    goal=-200.0,
    evaluate_every=1_000,
)

OFF_POLICY_PRESETS: Mapping[str, Mapping[str, OffPolicyPreset]] = MappingProxyType(
    {
        "DQN": {
            # RL Baselines3 Zoo, hyperparams/dqn.yml. Its target is copied every 10 steps, that is before each phase of
            # 128 updates. Goal: Gymnasium's reward threshold.
            "CartPole-v1": OffPolicyPreset(
                OffPolicySettings(
                    total_steps=50_000,
                    learning_starts=1_000,
                    train_every=256,
                    gradient_steps=128,
                    batch_size=64,
                    memory_size=100_000,
                    exploration=_epsilon(0.04, 8_000),
                ),
                {"gamma": 0.99, "lr": 2.3e-3, "sync_every": 128},
                goal=475.0,
                evaluate_every=2_000,
            ),
            "Acrobot-v1": _box2d_dqn(goal=-100.0),
            "LunarLander-v3": _box2d_dqn(goal=200.0),
        },
        "DDPG": {"Pendulum-v1": _DETERMINISTIC_PENDULUM},
        "TD3": {"Pendulum-v1": _DETERMINISTIC_PENDULUM},
        # RL Baselines3 Zoo, hyperparams/sac.yml.
        "SAC": {
            "Pendulum-v1": OffPolicyPreset(
                _pendulum(100), {"actor_lr": 1e-3, "critic_lr": 1e-3}, goal=-200.0, evaluate_every=1_000
            )
        },
        "OAC": {
            "Pendulum-v1": OffPolicyPreset(
                _pendulum(100), {"actor_lr": 1e-3, "critic_lr": 1e-3}, goal=-200.0, evaluate_every=1_000
            )
        },
    }
)

# For environments without a preset: of DQN those of Stable-Baselines3 for small networks, of the others their papers'.
_OTHERWISE: Mapping[str, OffPolicyPreset] = MappingProxyType(
    {
        "DQN": OffPolicyPreset(
            OffPolicySettings(
                total_steps=500_000,
                learning_starts=1_000,
                train_every=4,
                batch_size=64,
                memory_size=100_000,
                exploration=_epsilon(0.05, 50_000),
            ),
            {"lr": 5e-4, "sync_every": 500},
        ),
        "DDPG": OffPolicyPreset(OffPolicySettings(learning_starts=10_000, exploration={"noise": 0.1})),
        "TD3": OffPolicyPreset(OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1})),
        "SAC": OffPolicyPreset(OffPolicySettings(learning_starts=10_000)),
        "OAC": OffPolicyPreset(OffPolicySettings(learning_starts=10_000)),
    }
)


def off_policy_preset(algorithm: str, env: str) -> OffPolicyPreset:
    """The preset of an algorithm (`"DQN"`) for an environment, or the one for environments that have none."""
    return OFF_POLICY_PRESETS[algorithm].get(env, _OTHERWISE[algorithm])
