"""How each gate's agent is made and trained; hyper-parameters with their source.

Everything is made from `parl`'s public names: the ready-made networks, the algorithms and the loops.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

import data
import gymnasium
import numpy as np
from gates import GATES, Gate

import parl
from parl_core import backends
from parl_core.env.normalize import wrap_rms
from parl_core.env.normalize_vector import NormalizeVector
from parl_core.env.vector import make_vector_env
from parl_core.offline import OfflineDataset
from parl_core.schedules import linear
from parl_core.seeding import seed_everything
from parl_core.training import OnPolicySettings, evaluate, train_by_episodes, train_on_policy
from parl_core.training.events import Evaluation
from parl_core.training.off_policy import OffPolicySettings, train_off_policy
from parl_core.training.offline import OfflineSettings, train_offline
from parl_core.training.return_conditioned import evaluate_with_target_return

__all__ = ["RECIPES", "Recipe", "Trained", "logged", "train"]

EPISODES_WHILE_TRAINING, EVALUATIONS = 10, 20
SEED_WHILE_TRAINING, SEED_AFTER = 2**31, 2**30


@dataclass(frozen=True)
class Recipe:
    """Attributes: `network` of `parl_<backend>.networks` with `sizes`, arguments of the algorithm, and of the loop."""

    network: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    loop: Any = None
    num_envs: int = 1
    normalize: bool = False
    reward_scale: float = 1.0
    source: str = "RL Baselines3 Zoo, hyperparams/*.yml"


@dataclass
class Trained:
    """What a run gives: the curve `[(step, mean return)]`, and the returns of the final evaluation."""

    curve: list[tuple[int, float]]
    returns: list[float]
    steps: int


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
        replace(_CARTPOLE_PPO, n_steps=1024, epochs=10, minibatch_size=64, gamma=0.9, gae_lambda=0.95, decay=False),
        4,
    ),
    "ppo-halfcheetah": Recipe(
        "ActorCritic",
        {"continuous": True},
        {**_PPO, "continuous_action": True},
        OnPolicySettings(n_steps=2048, epochs=10, minibatch_size=64, lr=3e-4, clip=0.2, entropy_coef=0.0),
        1,
        True,
        "Schulman et al. 2017, table 3",
    ),
    "a2c-cartpole": Recipe("ActorCritic", {}, {}, _A2C, 8),
    "a2c-acrobot": Recipe("ActorCritic", {}, {}, _A2C, 16),
    "policy_gradient-cartpole": Recipe(algorithm={"lr": 1e-3}, source="PARL's QuickStart"),
    "dqn-cartpole": Recipe("QNetwork", {"hidden": (256, 256)}, {"lr": 2.3e-3, "sync_every": 5}, _DQN_CARTPOLE),
    "ddqn-cartpole": Recipe("QNetwork", {"hidden": (256, 256)}, {"lr": 2.3e-3, "sync_every": 5}, _DQN_CARTPOLE),
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
    "oac-pendulum": Recipe("SquashedActorCritic", {}, {"actor_lr": 1e-3, "critic_lr": 1e-3}, _PENDULUM),
    "sac-halfcheetah": Recipe(
        "SquashedActorCritic",
        {},
        {},
        OffPolicySettings(learning_starts=10_000, batch_size=256),
        source="Haarnoja et al. 2018, table 1",
    ),
    "cql-pendulum": Recipe(
        "SquashedActorCritic",
        {},
        {"actor_lr": 3e-4, "policy_eval_start": 1000, "min_q_weight": 5.0},
        _PENDULUM_OFFLINE,
        source="Kumar et al. 2020, appendix F, with fewer steps of imitation",
    ),
    "iql-pendulum": Recipe(
        "ImplicitActorCritic", {}, {}, _PENDULUM_OFFLINE, source="Kostrikov et al. 2021, appendix B"
    ),
    "offline_q-cartpole": Recipe(
        "QNetwork",
        {"hidden": (256, 256)},
        {"lr": linear(1e-3, 0.0, 10_000), "sync_every": 200, "double": True, "gamma": 0.98},
        OfflineSettings(batch_size=128),
        reward_scale=0.05,
        source="own: values of about unit size suit the Huber loss; the rate goes to 0, because the last weights count",
    ),
    "decision_transformer-pendulum": Recipe(
        sizes={"hidden": 64, "layers": 2, "max_timestep": 200},
        algorithm={"learning_rate": 1e-3, "warmup_steps": 500, "return_scale": 1000.0},
        loop=OfflineSettings(batch_size=64),
        source="Chen et al. 2021, table 9, a smaller network",
    ),
}


@cache
def logged(env_id: str) -> OfflineDataset:
    """The data of a task."""
    return data.recorded(env_id)


def train(key: str, seed: int, *, share: float = 1.0) -> Trained:
    """Train and evaluate one agent on the current backend.

    Args:
        key: of the gate.
        seed: of weights, environments and sampling.
        share: of the gate's steps; below 1 only to see that everything runs.
    """
    gate, recipe = GATES[key], RECIPES[key]
    steps = max(int(gate.steps * share), 1)
    seed_everything(seed)
    agent = _agent(gate, recipe, seed)
    curve: list[tuple[int, float]] = []
    statistics: list[Any] = []  # of the normalised observations of training
    final = _evaluation(agent, gate, statistics)

    def watched() -> Evaluation:
        return final(EPISODES_WHILE_TRAINING, SEED_WHILE_TRAINING)

    every = max(steps // EVALUATIONS, 1)
    common: dict[str, Any] = {"evaluator": watched, "evaluate_every": every, "seed": seed}
    if gate.algorithm == "PolicyGradient":
        env = gymnasium.make(gate.env, disable_env_checker=True)
        returns = train_by_episodes(agent, env, steps, log_every=steps, test_every=every, seed=seed)
        curve = [((i + 1) * every, value) for i, value in enumerate(returns)]
    elif isinstance(recipe.loop, OfflineSettings):
        loop = replace(recipe.loop, updates=steps, report_every=every)
        ended = train_offline(agent, logged(gate.env).scaled_rewards(recipe.reward_scale), loop, **common)
        curve = [(one.step, one.mean) for one in ended.evaluations]
    else:
        loop = recipe.loop.with_total_steps(steps)
        run = train_off_policy if isinstance(loop, OffPolicySettings) else train_on_policy
        with make_vector_env(gate.env, recipe.num_envs) as envs:
            seen: Any = envs
            if recipe.normalize:
                seen = NormalizeVector(envs, gamma=loop.gamma)
                statistics.append(seen.ob_rms)
            ended = run(agent, seen, loop, **common)
        steps, curve = ended.step, [(one.step, one.mean) for one in ended.evaluations]
    return Trained(curve, final(100 if share >= 1.0 else 3, SEED_AFTER).returns, steps)


def _agent(gate: Gate, recipe: Recipe, seed: int) -> Any:
    backend = backends.current()
    env = gymnasium.make(gate.env, disable_env_checker=True)
    space = env.action_space
    act_dim = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(space.shape[0])
    obs_dim = int(np.prod(env.observation_space.shape))
    env.close()
    algorithm = getattr(parl.algorithms, gate.algorithm)
    if gate.algorithm == "PolicyGradient":
        return parl.Agent(algorithm(_softmax_policy(act_dim), **recipe.algorithm), seed=seed)
    if gate.algorithm == "DecisionTransformer":
        network = import_module(f"parl_{backend.name}.transformer").TrajectoryTransformer
        model = network(obs_dim, act_dim, **recipe.sizes)
    else:
        model = getattr(import_module(f"parl_{backend.name}.networks"), recipe.network)(act_dim, **recipe.sizes)
    return parl.Agent(algorithm(model, **recipe.algorithm), seed=seed, obs_ndim=1)


def _softmax_policy(act_dim: int) -> Any:
    class Policy(parl.Model):
        """The documents' first network: one hidden layer of ten units an action."""

        def __init__(self) -> None:
            self.fc1 = parl.layers.fc(size=act_dim * 10, act="tanh")
            self.fc2 = parl.layers.fc(size=act_dim, act="softmax")

        def forward(self, obs: Any) -> Any:
            return self.fc2(self.fc1(obs))

    return Policy()


def _evaluation(agent: Any, gate: Gate, statistics: list[Any]) -> Callable[[int, int], Evaluation]:
    if gate.algorithm == "DecisionTransformer":
        wanted = float(np.quantile(logged(gate.env).episode_returns, 0.9))
        return lambda episodes, seed: evaluate_with_target_return(agent, gate.env, wanted, episodes, seed=seed)

    def make() -> Any:
        env = gymnasium.make(gate.env, disable_env_checker=True)
        return wrap_rms(env, None, test=True, ob_rms=statistics[0]) if statistics else env

    return lambda episodes, seed: evaluate(agent, make, episodes, seed=seed)
