"""The hyper-parameters of each gate, with their source. `learner.py` makes agents of them and trains these."""

from dataclasses import dataclass, field, replace
from typing import Any

from parl_core.schedules import linear
from parl_core.training import ActorLearnerSettings, OnPolicySettings
from parl_core.training.off_policy import OffPolicySettings
from parl_core.training.offline import OfflineSettings

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Everything that a run needs besides the task and a seed.

    Attributes:
        network: a model of `parl_<backend>.networks`, or a function of `minatar_networks.py`.
        sizes: its arguments besides the number of actions.
        algorithm: arguments of the algorithm's constructor.
        loop: settings of the loop; `PolicyGradient` has none.
        num_envs: environments that are stepped together.
        normalize: whether observations and rewards are normalised by running statistics.
        reward_scale: what the rewards of logged data are multiplied with.
        source: where the numbers come from.
    """

    network: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    loop: Any = None
    num_envs: int = 1
    normalize: bool = False
    reward_scale: float = 1.0
    source: str = "RL Baselines3 Zoo, hyperparams/*.yml"


_CARTPOLE_PPO = OnPolicySettings(
    n_steps=32,
    epochs=20,
    minibatch_size=256,
    gamma=0.98,
    gae_lambda=0.8,
    lr=1e-3,
    clip=0.2,
    decay=True,
    entropy_coef=0.0,
)
_DQN_CARTPOLE = OffPolicySettings(
    learning_starts=1000,
    train_every=256,
    gradient_steps=128,
    batch_size=64,
    memory_size=100_000,
    exploration={"epsilon": linear(1.0, 0.04, 16_000)},
)
_PENDULUM = OffPolicySettings(learning_starts=1000, batch_size=256, memory_size=200_000)
_PPO = {"value_loss_coef": 1.0, "use_clipped_value_loss": False, "entropy_coef": 0.0}
_A2C = OnPolicySettings(n_steps=5, gamma=0.99, gae_lambda=1.0, lr=7e-4, decay=True)
_PENDULUM_OFFLINE = OfflineSettings(batch_size=256)
_TIANSHOU = "Tianshou's benchmark, examples/mujoco"
_MINATAR_DQN = Recipe(
    "minatar_q_network",
    {},
    {"lr": 2.5e-4, "sync_every": 250},
    OffPolicySettings(
        learning_starts=1_000,
        train_every=4,
        batch_size=32,
        memory_size=100_000,
        exploration={"epsilon": linear(1.0, 0.01, 250_000)},
    ),
    num_envs=4,
    source="Obando-Ceron & Castro 2021, their dqn_breakout.gin",
)
_MINATAR_PPO = Recipe(
    "minatar_actor_critic",
    {},
    {"value_loss_coef": 1.0, "use_clipped_value_loss": False},
    OnPolicySettings(n_steps=128, epochs=4, minibatch_size=256, lr=2.5e-4, clip=0.1, decay=True, entropy_coef=0.01),
    num_envs=8,
    source="CleanRL's ppo_atari.py, without frame stacking and with a smaller network",
)

RECIPES: dict[str, Recipe] = {
    "ppo-cartpole": Recipe("ActorCritic", {}, _PPO, _CARTPOLE_PPO, 8),
    "ppo-acrobot": Recipe(
        "ActorCritic",
        {},
        _PPO,
        replace(
            _CARTPOLE_PPO, n_steps=256, epochs=4, minibatch_size=64, gamma=0.99, gae_lambda=0.94, lr=3e-4, decay=False
        ),
        16,
    ),
    "ppo-pendulum": Recipe(
        "ActorCritic",
        {"continuous": True},
        {**_PPO, "continuous_action": True},
        replace(_CARTPOLE_PPO, n_steps=1024, epochs=10, minibatch_size=64, gamma=0.9, gae_lambda=0.95, decay=True),
        4,
    ),
    "ppo-halfcheetah": Recipe(
        "ActorCritic",
        {"continuous": True},
        {**_PPO, "continuous_action": True},
        OnPolicySettings(n_steps=2048, epochs=10, minibatch_size=64, lr=3e-4, clip=0.2, entropy_coef=0.0),
        normalize=True,
        source="Schulman et al. 2017, table 3; observations and rewards normalised, as CleanRL does",
    ),
    "a2c-cartpole": Recipe("ActorCritic", {}, {}, _A2C, 8),
    "a2c-acrobot": Recipe("ActorCritic", {}, {}, _A2C, 16),
    "impala-cartpole": Recipe(
        "ActorCritic",
        {},
        {"sample_batch_steps": 50, "entropy_coeff": -0.01},
        ActorLearnerSettings(
            n_actors=2,
            envs_per_group=5,
            n_steps=50,
            batch_fragments=2,
            max_lag=1,
            deterministic=True,
            rates={"learning_rate": linear(2e-3, 0.0, 400_000)},
        ),
        source="Espeholt et al. 2018, table D.3 (discount, weights of value and entropy, gradient norm); batches of "
        "500 and fragments of 50 steps as RLlib has by default, Adam's rate and the network own",
    ),
    "policy_gradient-cartpole": Recipe(algorithm={"lr": 1e-3}, source="PARL's QuickStart"),
    "dqn-cartpole": Recipe(
        "QNetwork", {"hidden": (256, 256)}, {"lr": linear(2.3e-3, 0.0, 50_000), "sync_every": 128}, _DQN_CARTPOLE
    ),
    "ddqn-cartpole": Recipe(
        "QNetwork", {"hidden": (256, 256)}, {"lr": linear(2.3e-3, 0.0, 50_000), "sync_every": 128}, _DQN_CARTPOLE
    ),
    "dqn-acrobot": Recipe(
        "QNetwork",
        {"hidden": (256, 256)},
        {"lr": 6.3e-4, "sync_every": 62},
        replace(
            _DQN_CARTPOLE,
            learning_starts=1000,
            train_every=4,
            gradient_steps=1,
            batch_size=128,
            exploration={"epsilon": linear(1.0, 0.1, 12_000)},
        ),
    ),
    "ddpg-pendulum": Recipe(
        "DeterministicActorCritic",
        {"hidden": (400, 300)},
        {"gamma": 0.98, "actor_lr": 1e-3, "critic_lr": 1e-3},
        replace(_PENDULUM, exploration={"noise": 0.1}),
    ),
    "td3-pendulum": Recipe(
        "TwinActorCritic",
        {"hidden": (400, 300)},
        {"gamma": 0.98, "actor_lr": 1e-3, "critic_lr": 1e-3},
        replace(_PENDULUM, exploration={"noise": 0.1}),
    ),
    "sac-pendulum": Recipe("SquashedActorCritic", {}, {"actor_lr": 1e-3, "critic_lr": 1e-3}, _PENDULUM),
    "oac-pendulum": Recipe(
        "SquashedActorCritic", {}, {"actor_lr": 1e-3, "critic_lr": 1e-3, "delta": 23.53 / 17}, _PENDULUM
    ),
    "ddpg-halfcheetah": Recipe(
        "DeterministicActorCritic",
        {},
        {"actor_lr": 1e-3, "critic_lr": 1e-3},
        OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1}),
        source=_TIANSHOU,
    ),
    "td3-halfcheetah": Recipe(
        "TwinActorCritic",
        {},
        {"actor_lr": 3e-4, "critic_lr": 3e-4},
        OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1}),
        source=_TIANSHOU,
    ),
    "sac-halfcheetah": Recipe(
        "SquashedActorCritic",
        {},
        {"actor_lr": 1e-3, "critic_lr": 1e-3},
        OffPolicySettings(learning_starts=10_000),
        source=_TIANSHOU,
    ),
    "dqn-breakout": _MINATAR_DQN,
    "dqn-space_invaders": _MINATAR_DQN,
    "ppo-breakout": _MINATAR_PPO,
    "ppo-space_invaders": _MINATAR_PPO,
    "cql-pendulum": Recipe(
        "SquashedActorCritic",
        {},
        {
            "gamma": 0.98,
            "actor_lr": linear(1e-3, 0.0, 10_000),
            "critic_lr": linear(1e-3, 0.0, 10_000),
            "policy_eval_start": 1000,
            "min_q_weight": 1.0,
        },
        OfflineSettings(batch_size=64),
        reward_scale=0.1,
        source="own: values of some tens, held down by a weight that suits them; rates go to 0, the last weights count",
    ),
    "iql-pendulum": Recipe(
        "ImplicitActorCritic",
        {},
        {"max_steps": 10_000},
        _PENDULUM_OFFLINE,
        reward_scale=0.1,
        source="Kostrikov et al. 2021, appendix B; rewards divided by 10, so that advantages are of about unit size",
    ),
    "offline_q-cartpole": Recipe(
        "QNetwork",
        {"hidden": (256, 256)},
        {"lr": linear(3e-4, 0.0, 20_000), "sync_every": 100, "double": True, "gamma": 0.99},
        OfflineSettings(batch_size=256),
        reward_scale=0.02,
        source="own: values of about unit size suit the Huber loss; the rate goes to 0, because the last weights count",
    ),
    "decision_transformer-pendulum": Recipe(
        sizes={"hidden": 64, "layers": 2, "max_timestep": 200},
        algorithm={"learning_rate": 1e-3, "warmup_steps": 500, "return_scale": 1000.0},
        loop=OfflineSettings(batch_size=64),
        source="Chen et al. 2021, table 9, a smaller network",
    ),
}
