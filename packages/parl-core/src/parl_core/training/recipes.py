"""Recipes: hyper-parameters that work, one recipe per algorithm and environment, with their sources.

`parl train`, the examples and `benchmarks/learning` read them here and nowhere else:

    RECIPES["DQN", "CartPole-v1"]        settings of the learning table, or of its published source
    RECIPES["DQN", "*"]                  for environments without their own recipe
    RECIPES["PPO", "discrete"]           the same by kind of environment (`StandardEnv.kind`), where that matters

A recipe is a value: `as_json` writes it, schedules as their stages, and `Recipe.from_json` reads it again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parl_core.checks import check_int
from parl_core.errors import HyperparameterError
from parl_core.replay import Prioritized
from parl_core.schedules import linear, read_schedule, stages_of, stretched
from parl_core.training.actor_learner import ActorLearnerSettings
from parl_core.training.apex import ApexSettings
from parl_core.training.off_policy import OffPolicySettings
from parl_core.training.offline import OfflineSettings
from parl_core.training.on_policy import OnPolicySettings

__all__ = [
    "NETWORKS",
    "RECIPES",
    "EpisodeSettings",
    "Recipe",
    "SelfPlaySettings",
    "find_recipe",
    "learns_from_log",
    "plain",
    "read_plain",
    "read_scores",
]

NETWORKS: Mapping[str, str] = MappingProxyType(
    {
        "PolicyGradient": "ActorCritic",
        "PPO": "ActorCritic",
        "A2C": "ActorCritic",
        "A3C": "ActorCritic",
        "BC": "ActorCritic",
        "IMPALA": "ActorCritic",
        "DQN": "QNetwork",
        "DDQN": "QNetwork",
        "QRDQN": "QuantileNetwork",
        "ApeX": "QNetwork",
        "C51": "CategoricalNetwork",
        "Rainbow": "CategoricalNetwork",
        "OfflineQ": "QNetwork",
        "DiscreteSAC": "DiscreteActorCritic",
        "DDPG": "DeterministicActorCritic",
        "TD3": "TwinActorCritic",
        "SAC": "SquashedActorCritic",
        "OAC": "SquashedActorCritic",
        "CQL": "SquashedActorCritic",
        "IQL": "ImplicitActorCritic",
        "AWAC": "GaussianActorCritic",
        "TQC": "QuantileActorCritic",
        "REDQ": "EnsembleActorCritic",
        "DroQ": "EnsembleActorCritic",
        "CrossQ": "BatchNormActorCritic",
        "TD3BC": "TwinActorCritic",
        "ReBRAC": "NormalisedTwinActorCritic",
        "DecisionTransformer": "TrajectoryTransformer",
        "MAPPO": "CentralActorCritic",
        "IPPO": "CentralActorCritic",
        "COMA": "CounterfactualActorCritic",
        "QMIX": "TeamQNetwork",
        "VDN": "TeamQNetwork",
        "MADDPG": "TeamActorCritic",
    }
)
"""The class of `parl.networks` that an algorithm trains if its recipe names no other."""


@dataclass(frozen=True)
class EpisodeSettings:
    """The settings of `train_by_episodes`, whose steps are episodes.

    Attributes:
        total_steps: Episodes of a run.
    """

    total_steps: int

    def with_total_steps(self, total_steps: int) -> "EpisodeSettings":
        """Return the same with another budget."""
        return EpisodeSettings(total_steps)


@dataclass(frozen=True)
class SelfPlaySettings:
    """The settings of fictitious self-play: each generation learns from fresh weights against all earlier ones.

    Attributes:
        generations: The number of generations, at least 1.
        loop: The settings of one generation's loop.

    Raises:
        HyperparameterError: `generations` is not such a number.
    """

    generations: int
    loop: OnPolicySettings

    def __post_init__(self) -> None:
        check_int("generations", self.generations)

    @property
    def total_steps(self) -> int:
        """Steps of the learner in all generations."""
        return self.generations * self.loop.total_steps

    def with_total_steps(self, total_steps: int) -> "SelfPlaySettings":
        """Return the settings with the number of generations that another budget allows, at least one."""
        return replace(self, generations=max(total_steps // self.loop.total_steps, 1))


_LOOPS: Mapping[str, Any] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            ActorLearnerSettings,
            ApexSettings,
            EpisodeSettings,
            OffPolicySettings,
            OfflineSettings,
            OnPolicySettings,
            SelfPlaySettings,
        )
    }
)


@dataclass(frozen=True)
class Recipe:
    """The settings of a run, apart from environment and seed.

    Attributes:
        loop: Settings of the loop, with the steps of a run.
        algorithm: Arguments of the algorithm's constructor.
        sizes: Arguments of the network: `hidden`, the sizes of the hidden layers, and others of its class.
        network: A class of `parl.networks`, or `module:function`, called with the number of actions and `sizes`; empty:
            that of `NETWORKS`.
        environment: `module:function` that makes the environment from its id; empty: `gymnasium.make`, or of a team
            `make_joint_env`.
        num_envs: Environments that are stepped together.
        normalize: Whether observations and rewards are normalised by running statistics; with images and dictionaries,
            rewards alone.
        novelty: The options of a reward for novelty in on-policy loops (`parl_core.training.novelty.make_novelty`);
            without them there is none.
        log: The logged data of `parl_core.training.results.logged` that are learned from.
        reward_scale: Factor of the rewards of logged data.
        goal: Mean return of an evaluation that counts as solved; None if there is no common one.
        evaluate_every: Steps between two evaluations; None: the loop's default.
        source: Source of the numbers.
        deviations: The deviations of the recipe from its source or from the paper.
    """

    loop: Any
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    network: str = ""
    environment: str = ""
    num_envs: int = 1
    normalize: bool = False
    log: str = "scripted"
    reward_scale: float = 1.0
    goal: float | None = None
    evaluate_every: int | None = None
    source: str = "RL Baselines3 Zoo, hyperparams/*.yml"
    deviations: tuple[str, ...] = ()
    novelty: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_int("num_envs", self.num_envs)
        if self.evaluate_every is not None:
            check_int("evaluate_every", self.evaluate_every)

    @property
    def steps(self) -> int:
        """Steps of a run: of environments, of gradients where data is logged, or episodes."""
        return int(self.loop.updates if isinstance(self.loop, OfflineSettings) else self.loop.total_steps)

    def with_steps(self, steps: int) -> "Recipe":
        """Return the same with another budget, over which schedules are stretched, but not those of exploration."""
        factor = steps / self.steps
        algorithm = dict(self.algorithm)
        if algorithm.get("max_steps") is not None:  # for IQL's cosine decay
            algorithm["max_steps"] = max(round(algorithm["max_steps"] * factor), 1)

        def stretch(settings: Mapping[str, Any]) -> dict[str, Any]:
            return {name: stretched(value, factor) if callable(value) else value for name, value in settings.items()}

        if isinstance(self.loop, OfflineSettings):
            loop: Any = replace(self.loop, updates=steps)
        else:
            longer = self.loop.with_total_steps(steps)
            settings = stretch({one.name: getattr(longer, one.name) for one in fields(longer)})
            if "rates" in settings:
                settings["rates"] = stretch(settings["rates"])
            loop = replace(longer, **settings)
        return replace(self, loop=loop, algorithm=stretch(algorithm))

    def as_json(self) -> dict[str, Any]:
        """Return all numbers in a form for JSON, schedules as their stages."""
        return {one.name: plain(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Recipe":
        """Return the recipe that `as_json` described.

        Raises:
            HyperparameterError: It is not a recipe, or has a setting that this version does not have.
        """
        try:
            read = {name: read_plain(value) for name, value in values.items()}
            return cls(**{**read, "deviations": tuple(read.get("deviations", ()))})
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise HyperparameterError(f"these are not the numbers of a recipe: {error}") from error


def plain(value: Any) -> Any:
    """Return a setting in a form for JSON: schedules as their stages, settings of loops by name.

    Raises:
        HyperparameterError: It is a function that is not a schedule of `parl_core.schedules`.
    """
    if callable(value):
        return stages_of(value)
    if type(value).__name__ in _LOOPS or isinstance(value, Prioritized):
        return {"class": type(value).__name__, **{one.name: plain(getattr(value, one.name)) for one in fields(value)}}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def read_plain(value: Any) -> Any:
    """Return the setting that `plain` described; lists become tuples."""
    if isinstance(value, Mapping) and "schedule" in value:
        return read_schedule(value)
    if isinstance(value, Mapping) and "class" in value:
        settings = {name: read_plain(part) for name, part in value.items() if name != "class"}
        return (Prioritized if value["class"] == "Prioritized" else _LOOPS[value["class"]])(**settings)
    if isinstance(value, Mapping):
        return {name: read_plain(part) for name, part in value.items()}
    return tuple(read_plain(part) for part in value) if isinstance(value, (tuple, list)) else value


def read_scores() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return the scores of recipes, by algorithm and environment; only measured rows are included.

    `mean` (the interquartile one over seeds), `low` and `high` (its 95 % interval), `seeds`, `steps` and `source`, the
    files of the runs. `benchmarks/learning/run.py` writes them with its table.
    """
    written = json.loads(Path(__file__).with_name("scores.json").read_text())
    return {tuple(name.split(" ", 1)): score for name, score in written.items()}


def learns_from_log(algorithm: str) -> bool:
    """Return whether an algorithm, named by its class, learns from logged data."""
    return any(name == algorithm and isinstance(one.loop, OfflineSettings) for (name, _), one in RECIPES.items())


def find_recipe(algorithm: str, env: str, kind: Callable[[], str] = lambda: "discrete") -> Recipe:
    """Return the recipe of an algorithm for an environment, or that for environments without one.

    Args:
        algorithm: Name of its class.
        env: The registered id; an id without a version, as in Gymnasium, means the version that has a recipe.
        kind: The function that returns the kind of the environment; called only if the recipe depends on it.

    Raises:
        HyperparameterError: There is no recipe for this algorithm, or for this kind of environment.
    """
    of_a_version = (key for name, key in RECIPES if name == algorithm and key.rpartition("-v")[0] == env)
    for key in (env, *of_a_version, "*"):
        if (algorithm, key) in RECIPES:
            return RECIPES[algorithm, key]
    found = kind()
    if (algorithm, found) in RECIPES:
        return RECIPES[algorithm, found]
    known = [key for name, key in RECIPES if name == algorithm]
    if algorithm == "RND":
        raise HyperparameterError(
            f"RND is a second reward of on-policy algorithms, no policy: parl train ppo {env} --set novelty=rnd"
        )
    if not known:
        raise HyperparameterError(
            f"there is no recipe of {algorithm}: train it by a program (docs/reference/algorithms has an example), or "
            "choose an algorithm of `parl list`"
        )
    if found == "continuous" and (algorithm, "discrete") in RECIPES:
        raise HyperparameterError(
            f"{algorithm} learns discrete actions, and those of {env} are continuous: choose an algorithm for numbers "
            "(docs/how-to/one-command.md lists them)"
        )
    raise HyperparameterError(
        f"there is no recipe of {algorithm} for {env} ({found}); there are some for {', '.join(known)}"
    )


# DQN

_WIDE = {"hidden": (256, 256)}
_USUAL_RATES = {"actor_lr": 3e-4, "critic_lr": 3e-4}
_DQN = {"gamma": 0.99}
_SB3_LOSS = {"huber": 1.0, "max_grad_norm": 10.0}
_DQN_LOSS = "the squared error, unclipped; Stable-Baselines3's is Huber's, with gradients clipped at 10"
_TO_ZERO = "the learning rate goes to 0"
_GLOROT = "layers start from Glorot's uniform weights, not from PyTorch's"
_CARTPOLE_DQN = Recipe(
    OffPolicySettings(
        total_steps=100_000,
        learning_starts=1_000,
        train_every=2,
        batch_size=64,
        memory_size=100_000,
        n_step=10,
        exploration={"epsilon": linear(1.0, 0.05, 20_000)},
        rates={"learning_rate": linear(5e-4, 0.0, 100_000)},
    ),
    {**_DQN, "sync_every": 500},
    {"hidden": (64, 64)},
    goal=475.0,
    evaluate_every=2_000,
    source="own; with one step and a target copied every 50 updates, values of 400 appeared where 100 is possible",
    deviations=(_DQN_LOSS, "10-step returns", _TO_ZERO, _GLOROT),
)
_CARTPOLE_DDQN = replace(
    _CARTPOLE_DQN,
    loop=replace(_CARTPOLE_DQN.loop, rates={"learning_rate": linear(1.5e-3, 0.0, 100_000)}),
    source="as DQN's, with three times its learning rate",
)
_QRDQN_CARTPOLE = replace(_CARTPOLE_DQN, sizes={"hidden": (64, 64), "quantiles": 10}, source="as DQN's")
_CARTPOLE_RETURNS = {"v_min": 0.0, "v_max": 100.0}
_C51_CARTPOLE = replace(
    _CARTPOLE_DQN,
    algorithm={**_CARTPOLE_DQN.algorithm, **_CARTPOLE_RETURNS},
    sizes={"hidden": (64, 64), "atoms": 51},
    source="as DQN's; returns with a discount of 0.99 lie in 0..100",
)
_RAINBOW_PARTS = {"dueling": True, "noisy": 0.5}
_RAINBOW_REPLAY = Prioritized(alpha=0.5)
_NO_EPSILON = {"epsilon": 0.0}  # the network explores
_RAINBOW_CARTPOLE = Recipe(
    OffPolicySettings(
        total_steps=50_000,
        learning_starts=1_000,
        train_every=2,
        gradient_steps=1,
        batch_size=64,
        memory_size=50_000,
        n_step=10,
        prioritized=_RAINBOW_REPLAY,
        exploration=_NO_EPSILON,
        rates={"learning_rate": linear(1.5e-3, 0.0, 50_000)},
    ),
    {**_DQN, "sync_every": 250, **_CARTPOLE_RETURNS},
    {"hidden": (128, 128), "atoms": 51, **_RAINBOW_PARTS},
    goal=475.0,
    evaluate_every=2_000,
    source="own; alpha 0.5 and sigma 0.5 of Hessel et al. 2018, table 1",
    deviations=("10-step returns, not 3", _TO_ZERO),
)


def _box2d_dqn(goal: float, steps: int) -> Recipe:
    return Recipe(
        OffPolicySettings(
            total_steps=steps,
            learning_starts=1_000,
            train_every=4,
            gradient_steps=1,
            batch_size=128,
            memory_size=100_000,
            exploration={"epsilon": linear(1.0, 0.1, 12_000)},
            rates={"learning_rate": linear(6.3e-4, 0.0, steps)},
        ),
        {**_DQN, "sync_every": 62},
        _WIDE,
        goal=goal,
        deviations=(
            _DQN_LOSS,
            _TO_ZERO,
            "an update every 4 steps, not 4 of them, and the target copied every 62, not 250",
            "1,000 random steps, not none; a memory of 100,000, not 50,000",
            _GLOROT,
        ),
    )


def _lunar_lander_dqn() -> Recipe:
    recipe = _box2d_dqn(200.0, 500_000)
    return replace(recipe, evaluate_every=20_000, deviations=("500k steps, not 100k", *recipe.deviations))


_MOUNTAIN_CAR_DQN = Recipe(
    OffPolicySettings(
        total_steps=120_000,
        learning_starts=1_000,
        train_every=16,
        gradient_steps=8,
        batch_size=128,
        memory_size=50_000,
        n_step=5,
        exploration={"epsilon": linear(1.0, 0.07, 24_000)},
        rates={"learning_rate": linear(4e-3, 0.0, 120_000)},
    ),
    {**_SB3_LOSS, "gamma": 0.98, "sync_every": 300},
    _WIDE,
    goal=-110.0,
    deviations=(
        "5-step returns, and a memory of 50,000, not 10,000",
        _TO_ZERO,
        "the target is copied every 300 updates, as the Zoo's every 600 steps come to",
        _GLOROT,
    ),
)
_MINATAR_GAMES = ("Breakout", "SpaceInvaders", "Asterix", "Freeway")  # the last two were not used to choose settings
_DQN_VECTORS = Recipe(
    OffPolicySettings(
        total_steps=500_000,
        learning_starts=1_000,
        train_every=4,
        batch_size=64,
        memory_size=100_000,
        exploration={"epsilon": linear(1.0, 0.05, 50_000)},
    ),
    {**_DQN, "lr": 5e-4, "sync_every": 500},
    _WIDE,
    source="own, close to Stable-Baselines3's for small networks",
)

_MINATAR_DQN = Recipe(
    OffPolicySettings(
        total_steps=1_500_000,
        learning_starts=1_000,
        train_every=4,
        batch_size=32,
        memory_size=100_000,
        exploration={"epsilon": linear(1.0, 0.01, 250_000)},
    ),
    {"lr": 2.5e-4, "sync_every": 250},
    network="minatar_networks:minatar_q_network",
    environment="minatar_game:MinAtarGame",
    num_envs=4,
    source="Obando-Ceron & Castro 2021, their dqn_breakout.gin",
    deviations=("Adam's epsilon is 1e-8, not 3e-4", "the squared error, not Huber's", "four games side by side"),
)
_RETURNS = {"v_min": -100.0, "v_max": 100.0}  # for tasks with unknown returns, from CleanRL's c51.py
_C51_VECTORS = replace(
    _DQN_VECTORS,
    algorithm={**_DQN_VECTORS.algorithm, **_RETURNS},
    sizes={**_WIDE, "atoms": 101},
    source="as DQN's; returns in -100..100 by 101 atoms as CleanRL's c51.py has",
)
_RAINBOW_VECTORS = replace(
    _C51_VECTORS,
    loop=replace(_DQN_VECTORS.loop, n_step=3, prioritized=_RAINBOW_REPLAY, exploration=_NO_EPSILON),
    sizes={**_WIDE, "atoms": 101, **_RAINBOW_PARTS},
    source="as C51's; n = 3, alpha 0.5 and sigma 0.5 of Hessel et al. 2018, table 1",
)
_APEX_CARTPOLE = Recipe(
    ApexSettings(
        total_steps=100_000,
        n_actors=2,
        groups=8,
        n_steps=25,
        deterministic=True,
        batch_size=64,
        memory_size=100_000,
        n_step=10,
        epsilon=0.6,
        epsilon_power=3.0,
        rates={"learning_rate": linear(5e-4, 0.0, 100_000)},
    ),
    {"gamma": 0.99, "sync_every": 500},
    {"hidden": (128, 128), "dueling": True},
    goal=475.0,
    evaluate_every=2_000,
    source="own; priorities of Horgan et al. 2018",
    deviations=(
        "two actors of four environments each, in an order that does not depend on time",
        "10-step returns, not 3",
        "epsilons of 0.6 to 0.13",
        _TO_ZERO,
    ),
)
_APEX = replace(
    _APEX_CARTPOLE,
    loop=ApexSettings(total_steps=1_000_000, envs_per_group=2, batch_size=128, memory_size=200_000),
    algorithm={"gamma": 0.99, "lr": 2.5e-4, "sync_every": 500},
    sizes={**_WIDE, "dueling": True},
    goal=None,
    evaluate_every=None,
    source="own; epsilons, n = 3 and priorities of Horgan et al. 2018",
    deviations=("eight actors of two environments each",),
)
_DISCRETE_SAC = Recipe(
    OffPolicySettings(
        total_steps=500_000, learning_starts=1_000, train_every=2, gradient_steps=1, batch_size=128, memory_size=200_000
    ),
    {**_USUAL_RATES, "target_entropy": 0.2},
    _WIDE,
    source="own; rates of Christodoulou 2019, and an entropy that lets a policy be sure of its action",
)
_DISCRETE_SAC_CARTPOLE = replace(
    _DISCRETE_SAC,
    loop=replace(_DISCRETE_SAC.loop, total_steps=40_000, memory_size=40_000),
    algorithm={
        "actor_lr": linear(1e-3, 0.0, 20_000),
        "critic_lr": linear(1e-3, 0.0, 20_000),
        "target_entropy": 0.2,
    },
    goal=475.0,
    evaluate_every=2_000,
)
_MINATAR_RETURNS = {"v_min": 0.0, "v_max": 30.0}
_MINATAR_C51 = replace(
    _MINATAR_DQN,
    algorithm={**_MINATAR_DQN.algorithm, **_MINATAR_RETURNS},
    network="minatar_networks:minatar_categorical",
    source="as DQN's; returns in 0..30 own",
    deviations=("Adam's epsilon is 0.01 / 32", "four games side by side"),
)
_MINATAR_RAINBOW = replace(
    _MINATAR_C51,
    loop=replace(_MINATAR_DQN.loop, n_step=3, prioritized=_RAINBOW_REPLAY, exploration=_NO_EPSILON),
    sizes=_RAINBOW_PARTS,
    source="as C51's; n = 3, alpha 0.5 and sigma 0.5 of Hessel et al. 2018, table 1",
    deviations=("Adam's epsilon is 1.5e-4", "four games side by side"),
)
_ATARI_DQN = Recipe(
    OffPolicySettings(
        total_steps=10_000_000,
        learning_starts=50_000,
        train_every=4,
        batch_size=32,
        memory_size=100_000,
        exploration={"epsilon": linear(1.0, 0.1, 1_000_000)},
    ),
    {"lr": 1e-4, "sync_every": 2_500},
    network="AtariQNetwork",
    source="Mnih et al. 2015, extended data table 1, in steps of four frames",
    deviations=("Adam, not RMSProp", "the squared error, not Huber's", "a tenth of the memory"),
)
_ATARI_C51 = replace(
    _ATARI_DQN,
    loop=replace(_ATARI_DQN.loop, exploration={"epsilon": linear(1.0, 0.01, 250_000)}),
    algorithm={"lr": 2.5e-4, "sync_every": 2_500},
    network="CategoricalNetwork",
    source="Bellemare et al. 2017, section 5",
    deviations=("a tenth of the memory",),
)

# PPO and A2C. The Zoo's vf_coef 0.5 weighs the squared error, our value_loss_coef half of it; its value function is not
# clipped.

_PPO = {"value_loss_coef": 1.0, "use_clipped_value_loss": False, "entropy_coef": 0.0}
_PPO_SIZES = {"hidden": (64, 64)}
_BOX_SIZES = {**_PPO_SIZES, "continuous": True}
_BOX = {"continuous_action": True}
_PPO_CARTPOLE = OnPolicySettings(
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
)
_CLEANRL_PPO = OnPolicySettings(
    total_steps=1_000_000,
    n_steps=2048,
    epochs=10,
    minibatch_size=64,
    gae_lambda=0.95,
    lr=3e-4,
    clip=0.2,
    entropy_coef=0.0,
)
_TEAM_LOOP = OnPolicySettings(
    total_steps=1_000_000, n_steps=25, epochs=10, gamma=0.99, gae_lambda=0.95, lr=7e-4, bootstrap_truncated=False
)
_MAPPO = Recipe(
    _TEAM_LOOP,
    {"clip_param": 0.2, "entropy_coef": 0.01},
    _PPO_SIZES,
    num_envs=32,
    evaluate_every=32_000,
    source="Yu et al. 2022 (arXiv:2103.01955), appendix, MPE",
    deviations=(
        "32 environments, the paper's 128",
        "1 million steps, the paper's 20 of simple_spread",
    ),
)
_COMA = Recipe(
    OnPolicySettings(total_steps=1_000_000, n_steps=25, gamma=0.99, gae_lambda=0.8),
    {
        "gamma": 0.99,
        "td_lambda": 0.8,
        "actor_lr": 5e-4,
        "critic_lr": 1e-3,
        "entropy_coef": 0.01,
        "critic_updates": 25,
    },
    _PPO_SIZES,
    num_envs=16,
    evaluate_every=32_000,
    source="PyMARL, coma.yaml, and Foerster et al. 2018 for td_lambda",
    deviations=(
        "actors without a memory",
        "an entropy bonus in place of mixed-in uniform actions",
        "the critic's rate is 1e-3",
        "each of the critic's 25 steps takes the whole rollout, not one of its time steps",
    ),
)
_QMIX = Recipe(
    OffPolicySettings(
        total_steps=500_000,
        learning_starts=1_000,
        train_every=25,
        batch_size=32,
        memory_size=125_000,
        exploration={"epsilon": linear(1.0, 0.05, 50_000)},
    ),
    {"lr": 5e-4, "clip_grad_norm": 10.0, "sync_every": 200},
    {"memory": "gru", "memory_size": 64},
    num_envs=5,
    evaluate_every=25_000,
    source="PyMARL, qmix.yaml: an update with 32 episodes for each of 25 steps, a memory of 5,000",
    deviations=("Adam in place of RMSProp", "agents do not see their last action", "500k steps, the paper's 2 million"),
)
_QMIX_TWO_STEP = Recipe(
    OffPolicySettings(
        total_steps=8_000,
        learning_starts=64,
        train_every=4,
        batch_size=32,
        memory_size=5_000,
        exploration={"epsilon": 1.0},
    ),
    {"lr": 5e-4, "clip_grad_norm": 10.0, "sync_every": 100},
    _PPO_SIZES,
    num_envs=4,
    evaluate_every=1_000,
    source="Rashid et al. 2018, appendix: uniform exploration, a learning rate of 5e-4, batches of 32 episodes",
    deviations=("Adam in place of RMSProp", "the target is copied every 100 updates", "a memory of 2,500 episodes"),
)
_QMIX_CUED = replace(
    _QMIX_TWO_STEP,
    sizes={"memory": "gru", "memory_size": 64},
    source="as the two-step game's, with agents that have a memory",
)
_QMIX_BESIDE_PENALTIES = Recipe(
    replace(_QMIX_TWO_STEP.loop, total_steps=6_000, exploration={"epsilon": linear(1.0, 0.1, 4_000)}),
    {"lr": 1e-3, "clip_grad_norm": 10.0, "sync_every": 100, "overestimate_weight": 0.02},
    _PPO_SIZES,
    num_envs=4,
    evaluate_every=1_000,
    source="own, from the two-step game's; the weighting is that of Rashid et al. 2020 (arXiv:2006.10800); tuned on "
    "seeds 1 to 12",
    deviations=("no unrestricted central critic, which a game of one step does not need", "a weight of 0.02, not 0.1"),
)
_MADDPG = Recipe(
    OffPolicySettings(
        total_steps=1_000_000, learning_starts=25_600, train_every=100, batch_size=1_024, memory_size=1_000_000
    ),
    {"actor_lr": 1e-2, "critic_lr": 1e-2, "gamma": 0.95, "tau": 0.01},
    _PPO_SIZES,
    num_envs=5,
    evaluate_every=50_000,
    source="Lowe et al. 2017, appendix, and the authors' code",
    deviations=(
        "one-hot actions, straight through the Gumbel-softmax",
        "gradients are clipped by the norm of all actors' or all critics', not of each variable's",
    ),
)
_MADDPG_TWO_STEP = Recipe(
    OffPolicySettings(total_steps=8_000, learning_starts=1_000, train_every=4, batch_size=128, memory_size=8_000),
    {"actor_lr": 1e-3, "critic_lr": 1e-2, "gamma": 0.95, "tau": 0.01},
    _PPO_SIZES,
    num_envs=4,
    evaluate_every=1_000,
    source="own, from the paper's rate of the critics, discount and tau; tuned on seeds 1 to 5",
    deviations=("a tenth of the actors' rate, batches of 128 transitions and an update every 4 steps",),
)
_PIXEL_PPO = OnPolicySettings(
    total_steps=10_000_000,
    n_steps=128,
    epochs=4,
    minibatch_size=256,
    gae_lambda=0.95,
    lr=2.5e-4,
    clip=0.1,
    decay=True,
    entropy_coef=0.01,
)
_MINATAR_PPO = Recipe(
    replace(_PIXEL_PPO, total_steps=3_000_000),
    {"value_loss_coef": 1.0, "use_clipped_value_loss": False},
    network="minatar_networks:minatar_actor_critic",
    environment="minatar_game:MinAtarGame",
    num_envs=8,
    source="CleanRL's ppo_atari.py, without frame stacking and with a smaller network",
    deviations=("initial weights as PARL's layers have them, not orthogonal",),
)
_A2C_LOSS = (
    "Adam, not RMSProp",
    "an entropy bonus of 0.01, not none",
    "half of the Zoo's weight of the value loss; gradients are clipped at 40, of losses that are sums",
)
_A2C = Recipe(
    OnPolicySettings(total_steps=500_000, n_steps=5, gamma=0.99, gae_lambda=1.0, lr=7e-4, decay=True),
    sizes=_PPO_SIZES,
    num_envs=8,
    deviations=_A2C_LOSS,
)

_A2C_PENDULUM = Recipe(
    OnPolicySettings(
        total_steps=1_000_000, n_steps=8, gamma=0.9, gae_lambda=0.9, lr=2e-3, decay=True, entropy_coef=0.0
    ),
    _BOX,
    _BOX_SIZES,
    num_envs=8,
    normalize=True,
    goal=-200.0,
    deviations=(
        "Adam at 2e-3, not RMSProp at 7e-4",
        "the value's squared error weighs 0.25, not 0.4; gradients are clipped at 40, of losses that are sums",
        "no gSDE: a Gaussian of state-independent deviation",
    ),
)

# Continuous actions

_PENDULUM = OffPolicySettings(total_steps=20_000, learning_starts=1_000, batch_size=256, memory_size=200_000)
_PENDULUM_RATES = {"actor_lr": 1e-3, "critic_lr": 1e-3}
_DETERMINISTIC_PENDULUM = Recipe(
    replace(_PENDULUM, exploration={"noise": 0.1}),
    {"gamma": 0.98, **_PENDULUM_RATES},
    {"hidden": (400, 300)},
    goal=-200.0,
    evaluate_every=1_000,
    deviations=("1,000 random steps, not 10,000",),
)
_LANDER = OffPolicySettings(total_steps=300_000, learning_starts=10_000, batch_size=256, memory_size=300_000)
_SAC_PENDULUM = Recipe(
    _PENDULUM,
    _PENDULUM_RATES,
    _WIDE,
    goal=-200.0,
    evaluate_every=1_000,
    deviations=("1,000 random steps, not 100",),
)
_BIT_FLIPPING = Recipe(
    OffPolicySettings(
        total_steps=6_000,
        learning_starts=300,
        batch_size=128,
        memory_size=100_000,
        hindsight=0.8,
        exploration={"epsilon": 0.1},
    ),
    {"gamma": 0.98, "lr": 1e-3, "sync_every": 1, "tau": 0.01},
    {"hidden": (128, 128)},
    goal=-4.5,
    evaluate_every=500,
    source="own; the task, the strategy and its share are those of Andrychowicz et al. 2017, section 3",
)
_POINT_REACH = Recipe(
    OffPolicySettings(
        total_steps=8_000,
        learning_starts=300,
        batch_size=128,
        memory_size=100_000,
        hindsight=0.8,
        exploration={"noise": 0.2},
    ),
    {"gamma": 0.95, "tau": 0.05, **_PENDULUM_RATES},
    {"hidden": (128, 128)},
    goal=-10.0,
    evaluate_every=500,
    source="own; strategy, noise and the target's speed are those of Andrychowicz et al. 2017, appendix A",
)
_DROPOUT = {"critics": 2, "dropout": 0.01}
_REDQ = Recipe(
    OffPolicySettings(total_steps=300_000, learning_starts=5_000, gradient_steps=20),
    sizes={**_WIDE, "critics": 10},
    source="Chen et al. 2021, table 3",
)
_DROQ = replace(_REDQ, sizes={**_WIDE, **_DROPOUT}, source="Hiraoka et al. 2022, table 3")
_CROSSQ = Recipe(
    OffPolicySettings(learning_starts=5_000),
    sizes=_WIDE,
    source="Bhatt et al. 2024, table 2",
    deviations=("critics of 256 units, not 2,048", "Adam's beta1 is 0.9, not 0.5"),
)
_MANY_UPDATES = Recipe(
    replace(_PENDULUM, total_steps=4_000, learning_starts=500, gradient_steps=5),
    {**_PENDULUM_RATES, "policy_freq": 5},
    goal=-200.0,
    evaluate_every=500,
    source="own: as SAC's, with five updates a step and a fifth of its steps",
)
_TIANSHOU = "Tianshou's benchmark, examples/mujoco"
_RANDOM_DATA = (
    "no published figure on small tasks; data are recorded here by uniformly random actions",
    "the data are the same for all seeds",
)
_SAME_DATA = (
    "no published figure on small tasks; data are recorded here by a scripted policy with noise",
    "the data are the same for all seeds",
)
_LAST_WEIGHTS = "own: Adam's usual rate, which goes to 0, because the last weights count"
_BEHAVIOUR = Recipe(
    OfflineSettings(updates=50_000, batch_size=256),
    {"lr": linear(1e-3, 0.0, 50_000)},
    _WIDE,
    source=_LAST_WEIGHTS,
)
_PENDULUM_DATA = Recipe(
    OfflineSettings(updates=10_000, batch_size=256), sizes=_WIDE, reward_scale=0.1, deviations=_SAME_DATA
)
_REINFORCE = Recipe(
    OnPolicySettings(total_steps=500_000, n_steps=256, gamma=0.99, gae_lambda=1.0, lr=1e-3),
    sizes=_PPO_SIZES,
    num_envs=8,
    source="own: the usual form of REINFORCE, on parts of episodes of 256 steps",
)


def _actor_learner(steps: int, n_steps: int, fragments: int | None, max_lag: int, rate: float, **rates: float) -> Any:
    name = "learning_rate" if "entropy_coeff" in rates else "lr"
    return ActorLearnerSettings(
        total_steps=steps,
        n_steps=n_steps,
        batch_fragments=fragments,
        max_lag=max_lag,
        rates={name: linear(rate, 0.0, steps), **rates},
    )


_TWO_ACTORS = "two remote actors, and an order of fragments that does not depend on time"


def _asynchronous(steps: int) -> Any:
    loop = _actor_learner(steps, 20, 2, 1, 1e-3, entropy_coef=0.01)
    return replace(loop, groups=4, envs_per_group=8, inference="learner")


_DISCRETE_A3C = Recipe(
    _asynchronous(500_000),
    sizes={"hidden": (128, 128)},
    source="own; rollouts of 20 steps as PARL's example has",
)
_ATARI_GAMES = ("Pong", "Breakout")
_ATARI_PPO = Recipe(
    _PIXEL_PPO,
    network="AtariActorCritic",
    num_envs=8,
    evaluate_every=250_000,
    source="CleanRL, ppo_atari.py",
)
_GRID_PPO = Recipe(
    OnPolicySettings(
        total_steps=100_000,
        n_steps=128,
        epochs=10,
        minibatch_size=64,
        gae_lambda=0.95,
        lr=2.5e-4,
        clip=0.2,
        entropy_coef=0.0,
    ),
    _PPO,
    num_envs=8,
    goal=0.9,
    evaluate_every=10_000,
    deviations=("the seen part of the grid as an image and the direction, not all of it one-hot", "not normalised"),
)
_DM_CONTROL_SAC = Recipe(
    OffPolicySettings(total_steps=100_000, learning_starts=5_000, batch_size=256, memory_size=1_000_000),
    _USUAL_RATES,
    _WIDE,
    evaluate_every=10_000,
    source="Haarnoja et al. 2018, table 1",
    deviations=("100k steps, of which 5,000 are random",),
)


RECIPES: Mapping[tuple[str, str], Recipe] = MappingProxyType(
    {
        ("PolicyGradient", "CartPole-v1"): Recipe(
            EpisodeSettings(1000),
            {"lr": 1e-3},
            network="softmax_policy",
            source="PARL's QuickStart",
            deviations=("steps are episodes here", "CartPole-v1: cap 500"),
        ),
        ("DQN", "CartPole-v1"): _CARTPOLE_DQN,
        ("DDQN", "CartPole-v1"): _CARTPOLE_DDQN,
        ("QRDQN", "CartPole-v1"): _QRDQN_CARTPOLE,
        ("DQN", "Acrobot-v1"): _box2d_dqn(-100.0, 100_000),
        ("DQN", "LunarLander-v3"): _lunar_lander_dqn(),
        ("DQN", "MountainCar-v0"): _MOUNTAIN_CAR_DQN,
        **{("DQN", f"MinAtar/{game}-v1"): _MINATAR_DQN for game in _MINATAR_GAMES},
        ("DQN", "discrete"): _DQN_VECTORS,
        ("DDQN", "discrete"): _DQN_VECTORS,
        ("QRDQN", "discrete"): replace(_DQN_VECTORS, source="as DQN's; Dabney et al. 2018 for what is QR-DQN's own"),
        ("DQN", "atari"): _ATARI_DQN,
        ("C51", "CartPole-v1"): _C51_CARTPOLE,
        **{("C51", f"MinAtar/{game}-v1"): _MINATAR_C51 for game in _MINATAR_GAMES},
        ("C51", "discrete"): _C51_VECTORS,
        ("C51", "atari"): _ATARI_C51,
        ("ApeX", "CartPole-v1"): _APEX_CARTPOLE,
        ("ApeX", "discrete"): _APEX,
        ("ApeX", "atari"): Recipe(
            ApexSettings(total_steps=10_000_000, envs_per_group=4, learning_starts=50_000, memory_size=400_000),
            {"sync_every": 2_500},
            {"dueling": True},
            source="Horgan et al. 2018, appendix",
            deviations=("eight actors, not 360", "a fifth of the memory", "an update every 4 steps"),
        ),
        ("DiscreteSAC", "CartPole-v1"): _DISCRETE_SAC_CARTPOLE,
        ("DiscreteSAC", "discrete"): _DISCRETE_SAC,
        ("DiscreteSAC", "atari"): Recipe(
            OffPolicySettings(
                total_steps=5_000_000, learning_starts=20_000, train_every=4, batch_size=64, memory_size=100_000
            ),
            {**_USUAL_RATES, "tau": 0.005},
            source="Christodoulou 2019; CleanRL, sac_atari.py",
            deviations=("a tenth of the memory", "the target moves a little after each update"),
        ),
        ("Rainbow", "CartPole-v1"): _RAINBOW_CARTPOLE,
        **{("Rainbow", f"MinAtar/{game}-v1"): _MINATAR_RAINBOW for game in _MINATAR_GAMES},
        ("Rainbow", "discrete"): _RAINBOW_VECTORS,
        ("Rainbow", "atari"): replace(
            _ATARI_C51,
            loop=replace(
                _ATARI_DQN.loop, learning_starts=20_000, n_step=3, prioritized=_RAINBOW_REPLAY, exploration=_NO_EPSILON
            ),
            algorithm={"sync_every": 2_000},
            sizes=_RAINBOW_PARTS,
            source="Hessel et al. 2018, table 1",
            deviations=(
                "a tenth of the memory",
                "the layer of 512 units has no noise, and is one for value and advantage",
            ),
        ),
        ("A2C", "CartPole-v1"): replace(_A2C, goal=475.0),
        ("A2C", "Acrobot-v1"): replace(
            _A2C, num_envs=16, goal=-100.0, deviations=(*_A2C_LOSS, "observations are not normalised")
        ),
        ("A2C", "Pendulum-v1"): _A2C_PENDULUM,
        ("A2C", "discrete"): _A2C,
        ("A2C", "continuous"): replace(_A2C, normalize=True),
        ("A2C", "atari"): Recipe(
            _actor_learner(10_000_000, 20, None, 0, 1e-3, entropy_coef=0.01),
            network="AtariActorCritic",
            num_envs=24,
            source="own, close to the five actors of five environments of PARL's example",
        ),
        ("MAPPO", "*"): _MAPPO,
        ("IPPO", "*"): replace(_MAPPO, source="as MAPPO's"),
        ("COMA", "*"): _COMA,
        ("QMIX", "*"): _QMIX,
        ("VDN", "*"): _QMIX,
        ("QMIX", "two_step"): _QMIX_TWO_STEP,
        ("VDN", "two_step"): _QMIX_TWO_STEP,
        ("QMIX", "cued_two_step"): _QMIX_CUED,
        ("VDN", "cued_two_step"): _QMIX_CUED,
        ("QMIX", "climbing"): _QMIX_BESIDE_PENALTIES,
        ("QMIX", "penalty"): _QMIX_BESIDE_PENALTIES,
        ("MADDPG", "two_step"): _MADDPG_TWO_STEP,
        ("MADDPG", "discrete"): _MADDPG,
        ("MADDPG", "continuous"): replace(_MADDPG, loop=replace(_MADDPG.loop, exploration={"noise": 0.1})),
        ("PPO", "CartPole-v1"): Recipe(_PPO_CARTPOLE, _PPO, _PPO_SIZES, num_envs=8, goal=475.0),
        ("PPO", "Acrobot-v1"): Recipe(
            replace(
                _PPO_CARTPOLE,
                total_steps=300_000,
                n_steps=256,
                epochs=4,
                minibatch_size=64,
                gamma=0.99,
                gae_lambda=0.94,
                lr=3e-4,
                decay=False,
            ),
            _PPO,
            _PPO_SIZES,
            num_envs=16,
            goal=-100.0,
            deviations=("300k steps, not 1M", "observations are not normalised"),
        ),
        ("PPO", "LunarLander-v3"): Recipe(
            OnPolicySettings(
                total_steps=1_000_000,
                n_steps=1024,
                epochs=4,
                minibatch_size=64,
                gamma=0.999,
                gae_lambda=0.98,
                lr=3e-4,
                clip=0.2,
                entropy_coef=0.01,
            ),
            _PPO,
            _PPO_SIZES,
            num_envs=16,
            goal=200.0,
        ),
        ("PPO", "Pendulum-v1"): Recipe(
            replace(
                _PPO_CARTPOLE,
                total_steps=300_000,
                n_steps=1024,
                epochs=10,
                minibatch_size=64,
                gamma=0.9,
                gae_lambda=0.95,
            ),
            {**_PPO, **_BOX},
            _BOX_SIZES,
            num_envs=4,
            goal=-200.0,
            deviations=(
                "no gSDE: a Gaussian of state-independent deviation",
                "300k steps, not 100k; learning rate and clip range go to 0",
            ),
        ),
        ("PPO", "HalfCheetah-v5"): Recipe(
            _CLEANRL_PPO,
            {**_PPO, **_BOX},
            _BOX_SIZES,
            normalize=True,
            source="Schulman et al. 2017, table 3; observations and rewards normalised, as CleanRL does",
        ),
        **{("PPO", f"MinAtar/{game}-v1"): _MINATAR_PPO for game in _MINATAR_GAMES},
        ("PPO", "discrete"): Recipe(
            OnPolicySettings(gae_lambda=0.95, lr=3e-4, clip=0.2, entropy_coef=0.0),
            _PPO,
            _PPO_SIZES,
            num_envs=8,
            source="Schulman et al. 2017, table 3",
        ),
        ("PPO", "continuous"): Recipe(
            replace(_CLEANRL_PPO, decay=True),
            _BOX,
            _BOX_SIZES,
            normalize=True,
            evaluate_every=50_000,
            source="CleanRL, ppo_continuous_action.py",
        ),
        ("PPO", "atari"): _ATARI_PPO,
        **{("PPO", f"ALE/{game}-v5"): _ATARI_PPO for game in _ATARI_GAMES},
        **{("DQN", f"ALE/{game}-v5"): _ATARI_DQN for game in _ATARI_GAMES},
        ("PPO", "MiniGrid-Empty-5x5-v0"): _GRID_PPO,
        ("PPO", "MiniGrid-DoorKey-5x5-v0"): _GRID_PPO.with_steps(200_000),
        ("SAC", "dm_control/cartpole-balance-v0"): _DM_CONTROL_SAC,
        ("SAC", "dm_control/cartpole-swingup-v0"): _DM_CONTROL_SAC,
        ("IMPALA", "CartPole-v1"): Recipe(
            replace(_actor_learner(400_000, 50, 2, 1, 2e-3, entropy_coeff=-0.01), deterministic=True),
            {"sample_batch_steps": 50},
            _PPO_SIZES,
            goal=475.0,
            source="Espeholt et al. 2018, table D.3 (discount, weights of value and entropy, gradient norm); batches "
            "of 500 and fragments of 50 steps as RLlib has by default, Adam's rate and the network own",
            deviations=(_TWO_ACTORS, _TO_ZERO),
        ),
        ("IMPALA", "Acrobot-v1"): Recipe(
            replace(_actor_learner(500_000, 10, 2, 1, 1e-3, entropy_coeff=-0.01), envs_per_group=8, deterministic=True),
            {"sample_batch_steps": 10},
            _PPO_SIZES,
            goal=-100.0,
            source="as CartPole's, with half of its rate and shorter fragments of more environments: with 50 steps of "
            "one, some seeds stay between -200 and -500",
            deviations=(_TWO_ACTORS, _TO_ZERO),
        ),
        ("IMPALA", "MinAtar/Breakout-v1"): Recipe(
            replace(_actor_learner(3_000_000, 20, 2, 1, 1e-3, entropy_coeff=-0.01), deterministic=True),
            {"sample_batch_steps": 20},
            network="minatar_networks:minatar_actor_critic",
            environment="minatar_game:MinAtarGame",
            source="Espeholt et al. 2018, table D.3 (discount, unroll of 20, weights of value and entropy, gradient "
            "norm); Adam's rate own",
            deviations=(
                _TWO_ACTORS,
                "batches of 200 steps, and the learning rate goes to 0",
                "initial weights as PARL's layers have them",
            ),
        ),
        ("IMPALA", "Pendulum-v1"): Recipe(
            replace(_actor_learner(600_000, 10, 4, 1, 1e-3, entropy_coeff=0.0), envs_per_group=8, deterministic=True),
            {"sample_batch_steps": 10, "gamma": 0.9, **_BOX},
            _BOX_SIZES,
            source="own: discount and fragments near those of PPO's Zoo entry, the rest as CartPole's",
            deviations=(_TO_ZERO,),
        ),
        ("IMPALA", "continuous"): Recipe(
            replace(_actor_learner(1_000_000, 20, 4, 1, 3e-4, entropy_coeff=0.0), envs_per_group=8),
            {"sample_batch_steps": 20, **_BOX},
            _BOX_SIZES,
            source="own: as the discrete one's, with a smaller rate and no bonus of entropy",
        ),
        ("IMPALA", "discrete"): Recipe(
            _actor_learner(1_000_000, 50, 2, 2, 1e-3, entropy_coeff=-0.01),
            {"sample_batch_steps": 50},
            {"hidden": (128, 128)},
            source="as CartPole's, with a longer budget",
        ),
        ("IMPALA", "atari"): Recipe(
            _actor_learner(10_000_000, 50, 4, 2, 1e-3, entropy_coeff=-0.01),
            {"sample_batch_steps": 50},
            network="AtariActorCritic",
            source="PARL's example, with another number of actors",
        ),
        ("A3C", "CartPole-v1"): replace(_DISCRETE_A3C, goal=475.0),
        ("A3C", "discrete"): _DISCRETE_A3C,
        ("A3C", "continuous"): Recipe(
            replace(_asynchronous(1_000_000), rates={"lr": linear(3e-4, 0.0, 1_000_000), "entropy_coef": 0.0}),
            sizes=_BOX_SIZES,
            source="own: as the discrete one's, with a smaller rate and no bonus of entropy",
        ),
        ("A3C", "atari"): Recipe(
            _asynchronous(10_000_000),
            network="AtariActorCritic",
            source="own; rollouts of 20 steps as PARL's example has",
        ),
        ("DDPG", "Pendulum-v1"): _DETERMINISTIC_PENDULUM,
        ("TD3", "Pendulum-v1"): _DETERMINISTIC_PENDULUM,
        ("SAC", "Pendulum-v1"): _SAC_PENDULUM,
        **{(name, "BitFlipping-v0"): _BIT_FLIPPING for name in ("DQN", "DDQN")},
        **{(name, "PointReach-v0"): _POINT_REACH for name in ("DDPG", "TD3")},
        ("SAC", "PointReach-v0"): replace(_POINT_REACH, loop=replace(_POINT_REACH.loop, exploration={})),
        ("OAC", "Pendulum-v1"): replace(
            _SAC_PENDULUM,
            algorithm={**_PENDULUM_RATES, "delta": 23.53 / 17},
            deviations=(
                "1,000 random steps, not 100",
                "delta is the paper's 23.53 for each of Humanoid's 17 actions, and here there is one",
            ),
        ),
        ("TD3", "LunarLanderContinuous-v3"): Recipe(
            replace(_LANDER, exploration={"noise": 0.1}),
            {"gamma": 0.98, **_PENDULUM_RATES},
            {"hidden": (400, 300)},
            goal=200.0,
            deviations=("a memory of 300,000, not 200,000",),
        ),
        ("SAC", "LunarLanderContinuous-v3"): Recipe(
            _LANDER,
            {"tau": 0.01, "actor_lr": linear(7.3e-4, 0.0, 300_000), "critic_lr": linear(7.3e-4, 0.0, 300_000)},
            {"hidden": (400, 300)},
            goal=200.0,
            deviations=("300k steps, not 500k",),
        ),
        ("DDPG", "HalfCheetah-v5"): Recipe(
            OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1}),
            _PENDULUM_RATES,
            _WIDE,
            source=_TIANSHOU,
        ),
        ("TD3", "HalfCheetah-v5"): Recipe(
            OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1}),
            _USUAL_RATES,
            _WIDE,
            source=_TIANSHOU,
        ),
        ("SAC", "HalfCheetah-v5"): Recipe(
            OffPolicySettings(learning_starts=10_000),
            _PENDULUM_RATES,
            _WIDE,
            source=_TIANSHOU,
            deviations=("the temperature is learned",),
        ),
        ("TQC", "HalfCheetah-v5"): Recipe(
            OffPolicySettings(learning_starts=10_000),
            {**_USUAL_RATES, "drop": 0},
            _WIDE,
            source="Kuznetsov et al. 2020, table 3",
            deviations=("critics of two layers of 256, not three of 512",),
        ),
        ("REDQ", "HalfCheetah-v5"): _REDQ,
        ("DroQ", "HalfCheetah-v5"): _DROQ,
        ("CrossQ", "HalfCheetah-v5"): _CROSSQ,
        ("TQC", "Pendulum-v1"): replace(_SAC_PENDULUM, deviations=("as SAC's",)),
        ("REDQ", "Pendulum-v1"): replace(_MANY_UPDATES, sizes={**_WIDE, "critics": 5}),
        ("DroQ", "Pendulum-v1"): replace(_MANY_UPDATES, sizes={**_WIDE, **_DROPOUT}),
        ("CrossQ", "Pendulum-v1"): Recipe(
            replace(_PENDULUM, total_steps=10_000),
            {"actor_lr": 1e-3, "critic_lr": 1e-3},
            _WIDE,
            goal=-200.0,
            evaluate_every=1_000,
            source="own: Bhatt et al. 2024, table 2, with narrower critics",
        ),
        ("TQC", "*"): Recipe(
            OffPolicySettings(learning_starts=10_000), sizes=_WIDE, source="Kuznetsov et al. 2020, table 3"
        ),
        ("REDQ", "*"): _REDQ,
        ("DroQ", "*"): _DROQ,
        ("CrossQ", "*"): _CROSSQ,
        ("DDPG", "*"): Recipe(
            OffPolicySettings(learning_starts=10_000, exploration={"noise": 0.1}),
            sizes=_WIDE,
            source="Fujimoto's code of TD3, without what TD3 adds",
        ),
        ("TD3", "*"): Recipe(
            OffPolicySettings(learning_starts=25_000, exploration={"noise": 0.1}),
            sizes=_WIDE,
            source="Fujimoto et al. 2018 and their later code",
        ),
        ("SAC", "*"): Recipe(
            OffPolicySettings(learning_starts=10_000), sizes=_WIDE, source="Haarnoja et al. 2018, table 1"
        ),
        ("OAC", "*"): Recipe(
            OffPolicySettings(learning_starts=10_000), sizes=_WIDE, source="Ciosek et al. 2019, appendix"
        ),
        ("PolicyGradient", "discrete"): _REINFORCE,
        ("PolicyGradient", "continuous"): _REINFORCE,
        ("BC", "discrete"): _BEHAVIOUR,
        ("BC", "continuous"): replace(_BEHAVIOUR, algorithm={**_BEHAVIOUR.algorithm, **_BOX}),
        ("CQL", "*"): Recipe(
            OfflineSettings(updates=500_000, batch_size=256), sizes=_WIDE, source="Kumar et al. 2020 and PARL's example"
        ),
        ("IQL", "*"): Recipe(
            OfflineSettings(updates=500_000, batch_size=256),
            {"max_steps": 500_000},
            _WIDE,
            source="Kostrikov et al. 2021, appendix B",
        ),
        ("TD3BC", "*"): Recipe(
            OfflineSettings(updates=1_000_000, batch_size=256),
            sizes=_WIDE,
            source="Fujimoto & Gu 2021, table 3",
            deviations=("observations are not normalised",),
        ),
        ("AWAC", "*"): Recipe(
            OfflineSettings(updates=500_000, batch_size=256),
            sizes=_WIDE,
            source="own, close to Nair et al. 2020",
        ),
        ("ReBRAC", "*"): Recipe(
            OfflineSettings(updates=500_000, batch_size=1024),
            sizes={"hidden": (256, 256, 256)},
            source="Tarasov et al. 2023, table 6",
            deviations=("half of the million updates",),
        ),
        ("DecisionTransformer", "*"): Recipe(
            OfflineSettings(updates=100_000, batch_size=64),
            {"return_scale": 1000.0},
            {"hidden": 128, "layers": 3, "max_timestep": 1000},
            source="Chen et al. 2021, table 9",
        ),
        ("OfflineQ", "discrete"): Recipe(
            OfflineSettings(updates=100_000, batch_size=256),
            {"lr": linear(3e-4, 0.0, 100_000), "sync_every": 500, "double": True, "gamma": 0.99},
            _WIDE,
            source="own: as CartPole's, with a longer budget; scale rewards so that values are of about unit size",
        ),
        ("BC", "CartPole-v1"): Recipe(
            OfflineSettings(updates=10_000, batch_size=256),
            {"lr": linear(1e-3, 0.0, 10_000)},
            _PPO_SIZES,
            log="random",
            source=_LAST_WEIGHTS,
            deviations=_RANDOM_DATA,
        ),
        ("BC", "Pendulum-v1"): Recipe(
            OfflineSettings(updates=10_000, batch_size=256),
            {"lr": linear(1e-3, 0.0, 10_000), **_BOX},
            _BOX_SIZES,
            source=_LAST_WEIGHTS,
            deviations=_SAME_DATA,
        ),
        ("CQL", "Pendulum-v1"): replace(
            _PENDULUM_DATA,
            loop=OfflineSettings(updates=10_000, batch_size=64),
            algorithm={
                "gamma": 0.98,
                "actor_lr": linear(1e-3, 0.0, 10_000),
                "critic_lr": linear(1e-3, 0.0, 10_000),
                "policy_eval_start": 1000,
                "min_q_weight": 1.0,
            },
            source="own: values of some tens, held down by a weight that suits them; rates go to 0, the last weights "
            "count",
        ),
        ("IQL", "Pendulum-v1"): replace(
            _PENDULUM_DATA,
            algorithm={"max_steps": 10_000},
            source="Kostrikov et al. 2021, appendix B; rewards divided by 10, so that advantages are of unit size",
        ),
        ("TD3BC", "Pendulum-v1"): replace(
            _PENDULUM_DATA,
            algorithm={"actor_lr": linear(3e-4, 0.0, 10_000), "gamma": 0.98},
            source="Fujimoto & Gu 2021, table 3; rewards divided by 10, and the actor's rate goes to 0, because the "
            "last weights count",
        ),
        ("AWAC", "Pendulum-v1"): replace(
            _PENDULUM_DATA,
            algorithm={"actor_lr": linear(3e-4, 0.0, 10_000), "gamma": 0.98, "lam": 0.3},
            source="own: rewards divided by 10, so that advantages are of unit size; the actor's rate goes to 0, "
            "because the last weights count",
        ),
        ("ReBRAC", "Pendulum-v1"): replace(
            _PENDULUM_DATA,
            algorithm={"actor_lr": linear(1e-3, 0.0, 10_000), "gamma": 0.98, "actor_bc": 0.01, "critic_bc": 0.01},
            source="Tarasov et al. 2023, table 6; a smaller network and batch, rewards divided by 10, and the actor's "
            "rate goes to 0, because the last weights count",
        ),
        ("DecisionTransformer", "Pendulum-v1"): Recipe(
            OfflineSettings(updates=5_000, batch_size=64),
            {"learning_rate": 1e-3, "warmup_steps": 500, "return_scale": 1000.0},
            {"hidden": 64, "layers": 2, "max_timestep": 200},
            source="Chen et al. 2021, table 9, a smaller network",
            deviations=(*_SAME_DATA, "asked for the return of the best tenth of the logged episodes"),
        ),
        ("OfflineQ", "CartPole-v1"): Recipe(
            OfflineSettings(updates=20_000, batch_size=256),
            {"lr": linear(3e-4, 0.0, 20_000), "sync_every": 100, "double": True, "gamma": 0.99},
            _WIDE,
            log="random",
            reward_scale=0.02,
            source="own: values of about unit size suit the Huber loss; the rate goes to 0, because the last weights "
            "count",
            deviations=_RANDOM_DATA,
        ),
    }
)
"""One recipe for an algorithm and an environment, `"*"`, or a kind of environment."""
