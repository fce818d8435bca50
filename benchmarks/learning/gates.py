"""Gates: returns to reach, and published returns of others; each entry is a row of the table.

A gate is passed if the lower bound of the 95 % interval over seeds reaches it. Published figures name their protocol.
The hyper-parameters of a run are those of `parl_core.training.recipes` for the same algorithm and environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parl_core.replay import Prioritized
from parl_core.training.on_policy import OnPolicySettings
from parl_core.training.recipes import Recipe, SelfPlaySettings, find_recipe
from parl_core.training.results import REPORT_SEEDS, report_seeds

__all__ = ["GATES", "Gate"]


@dataclass(frozen=True)
class Gate:
    """A gate of one algorithm on one task.

    Attributes:
        algorithm: Its name in `parl.algorithms`.
        env: Gymnasium id, or a name of `parl.env.make_joint_env`.
        minutes: CPU minutes of one run on torch, which determine the number of reported seeds.
        threshold: Mean return to reach; None if other runs determine it, or if the result is only reported.
        not_below: Another gate, whose result this one must not fall below by more than `margin`: a one-sided test at 95
            % on the difference of the interquartile means, which is harder to pass with more variance.
        above: Another gate, whose result this one must exceed by the same test.
        margin: Margin of `not_below`, in returns.
        steps: Number of steps of a run, if it differs from the recipe's.
        variant: Name of the change of the recipe in the table.
        loop: Settings of the loop in the variant.
        sizes: Sizes of the network in the variant.
        own: The recipe of a task for which `parl train` has no loop.
        runs: Number of seeds of its row, on torch alone; None for the number that the cost of a run allows, on both.
        published: Published results with source and protocol.
        deviations: Deviations from the published protocol; the recipe names those of the hyper-parameters.
    """

    algorithm: str
    env: str
    minutes: float
    threshold: float | None = None
    not_below: str = ""
    above: str = ""
    margin: float = 0.0
    steps: int | None = None
    variant: str = ""
    loop: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    own: Recipe | None = None
    runs: int | None = None
    published: tuple[str, ...] = ()
    deviations: tuple[str, ...] = field(default=())

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of a run."""
        recipe = self.own or find_recipe(self.algorithm, self.env)
        if self.steps is not None:
            recipe = recipe.with_steps(self.steps)
        return replace(recipe, loop=replace(recipe.loop, **self.loop), sizes={**recipe.sizes, **self.sizes})

    @property
    def title(self) -> str:
        """Return the names of algorithm and task in tables."""
        budget = "" if self.steps is None else f", {self.steps:,} steps"
        return f"{self.algorithm}{self.variant and f' ({self.variant})'}, {self.env}{budget}"

    def seeds(self, backend: str) -> tuple[int, ...]:
        """Return the seeds of its row."""
        if self.runs is None:
            return report_seeds(backend, self.minutes)
        return REPORT_SEEDS[: self.runs if backend == "torch" else 0]


_ZOO = "RL Baselines3 Zoo, single best run"
_CLEANRL = "CleanRL, 3 seeds, 500k steps"
_TIANSHOU = "Tianshou, 10 seeds, HalfCheetah-v3, mean and deviation in its test_rew_10seeds.csv"
_V5 = "v5 of the task; published figures are of v1 to v4"
_SHORT = "as many steps as fit two CPU hours for five seeds; 1M steps are usual"
_NO_TABLE = "no table for so few frames is known to us"
_DQN_PLOTS = f"{_NO_TABLE}; Young & Tian 2019 plot 5M frames, Obando-Ceron & Castro 2021 plot 10M"
_LIMIT = "games end after 5,000 frames"
_UNSEEN = "no number was chosen on this game: they are Breakout's"
_PLAIN = "dqn-acrobot"
_FEWER_STEPS = "300k steps; published figures are of 1M"


def _minatar(algorithm: str, game: str, minutes: float, about: str, *deviations: str) -> Gate:
    return Gate(algorithm, f"MinAtar/{game}-v1", minutes, published=(about,), deviations=(_LIMIT, *deviations))


def _locomotion(algorithm: str, task: str, minutes: float, *published: str) -> Gate:
    return Gate(
        algorithm, f"{task}-v5", minutes, steps=300_000, runs=2, published=published, deviations=(_V5, _FEWER_STEPS)
    )


def _matrix(algorithm: str, game: str, optimum: int, minutes: float) -> Gate:
    return Gate(algorithm, game, minutes, steps=12_800, published=(f"the optimum is {optimum}",))


_SELF_PLAY = Recipe(
    SelfPlaySettings(
        60,
        OnPolicySettings(
            total_steps=1_024, n_steps=8, epochs=4, minibatch_size=64, lr=1e-2, gamma=1.0, gae_lambda=0.95
        ),
    ),
    {"clip_param": 0.2, "entropy_coef": 0.01},
    {"hidden": (64, 64)},
    environment="rock_paper_scissors:unequal",
    num_envs=16,
    source="examples/self_play, with a quarter of its steps a generation; seen on seeds 1 to 5",
)

GATES: dict[str, Gate] = {
    "policy_gradient-cartpole": Gate(
        "PolicyGradient",
        "CartPole-v1",
        0.3,
        400.0,
        published=("PARL's QuickStart: solves CartPole-v0 (cap 200) in 1000 episodes",),
    ),
    "dqn-cartpole": Gate(
        "DQN", "CartPole-v1", 1.5, 475.0, published=(f"500 at 50k ({_ZOO})", f"488.7 +- 16 ({_CLEANRL})")
    ),
    "dqn-acrobot": Gate(
        "DQN", "Acrobot-v1", 1.7, -100.0, published=(f"-76.6 at 100k ({_ZOO})", f"-91.5 +- 7.2 ({_CLEANRL})")
    ),
    "dqn_dueling-acrobot": Gate(
        "DQN",
        "Acrobot-v1",
        1.9,
        variant="dueling",
        sizes={"dueling": True},
        not_below=_PLAIN,
        margin=10.0,
        published=("Wang et al. 2016 report Atari",),
    ),
    "dqn_prioritized-acrobot": Gate(
        "DQN",
        "Acrobot-v1",
        2.5,
        variant="prioritised",
        loop={"prioritized": Prioritized()},
        not_below=_PLAIN,
        margin=10.0,
        published=("Schaul et al. 2016 report Atari",),
    ),
    "dqn_n_step-acrobot": Gate(
        "DQN",
        "Acrobot-v1",
        1.8,
        variant="3-step",
        loop={"n_step": 3},
        not_below=_PLAIN,
        margin=10.0,
        published=("Hessel et al. 2018 report Atari, with n = 3",),
    ),
    "dqn-mountain_car": Gate(
        "DQN", "MountainCar-v0", 3.0, -110.0, published=(f"-100.8 at 120k ({_ZOO})", f"-195 ({_CLEANRL})")
    ),
    "dqn-lunar_lander": Gate("DQN", "LunarLander-v3", 4.0, 200.0, published=(f"154 at 100k ({_ZOO}, v2)",)),
    "qrdqn-cartpole": Gate("QRDQN", "CartPole-v1", 1.5, 475.0, published=(f"500 at 50k ({_ZOO})",)),
    "c51-cartpole": Gate("C51", "CartPole-v1", 1.8, 475.0, published=(f"481.2 +- 20.5 ({_CLEANRL})",)),
    "rainbow-cartpole": Gate(
        "Rainbow", "CartPole-v1", 2.0, 475.0, published=("no figure for so few steps is known to us",)
    ),
    "apex-cartpole": Gate("ApeX", "CartPole-v1", 3.0, 475.0, published=("no figure for so few steps is known to us",)),
    "discrete_sac-cartpole": Gate(
        "DiscreteSAC", "CartPole-v1", 4.0, 475.0, published=("no figure for so few steps is known to us",)
    ),
    "ddqn-cartpole": Gate("DDQN", "CartPole-v1", 1.6, not_below="dqn-cartpole", margin=25.0),
    "a2c-cartpole": Gate("A2C", "CartPole-v1", 1.0, 475.0, published=(f"500 at 500k ({_ZOO})",)),
    "a2c-acrobot": Gate("A2C", "Acrobot-v1", 1.0, -100.0, published=(f"-83.4 at 500k ({_ZOO})",)),
    "a2c-pendulum": Gate("A2C", "Pendulum-v1", 3.0, -200.0, published=(f"-163 at 1M ({_ZOO}, gSDE)",)),
    "ppo-cartpole": Gate(
        "PPO", "CartPole-v1", 0.4, 475.0, published=(f"500 at 100k ({_ZOO})", f"490 +- 6 ({_CLEANRL})")
    ),
    "ppo-acrobot": Gate(
        "PPO", "Acrobot-v1", 1.0, -100.0, published=(f"-73.5 at 1M ({_ZOO})", f"-86.4 +- 1.3 ({_CLEANRL})")
    ),
    "ppo-lunar_lander": Gate("PPO", "LunarLander-v3", 5.0, 200.0, published=(f"242 at 1M ({_ZOO}, v2)",)),
    "ppo-pendulum": Gate("PPO", "Pendulum-v1", 1.6, -200.0, published=(f"-172 at 100k ({_ZOO}, gSDE)",)),
    "impala-cartpole": Gate(
        "IMPALA",
        "CartPole-v1",
        0.5,
        450.0,
        published=("450 within 2M steps (RLlib's tuned example, which its CI runs)",),
        deviations=("a fifth of RLlib's steps",),
    ),
    "impala-acrobot": Gate(
        "IMPALA",
        "Acrobot-v1",
        0.7,
        -100.0,
        published=("no figure is known to us; the gate is that of the other algorithms",),
    ),
    "ddpg-pendulum": Gate("DDPG", "Pendulum-v1", 4.4, -200.0, published=(f"-152 at 20k ({_ZOO})",)),
    "td3-pendulum": Gate("TD3", "Pendulum-v1", 4.9, -200.0, published=(f"-152 at 20k ({_ZOO})",)),
    "sac-pendulum": Gate("SAC", "Pendulum-v1", 4.4, -200.0, published=(f"-157 at 20k ({_ZOO})",)),
    "oac-pendulum": Gate("OAC", "Pendulum-v1", 4.6, not_below="sac-pendulum", margin=10.0),
    "tqc-pendulum": Gate("TQC", "Pendulum-v1", 8.0, not_below="sac-pendulum", margin=10.0),
    "crossq-pendulum": Gate("CrossQ", "Pendulum-v1", 3.0, -200.0),
    "droq-pendulum": Gate("DroQ", "Pendulum-v1", 6.0, -200.0),
    "td3-lunar_lander": Gate("TD3", "LunarLanderContinuous-v3", 60.0, 200.0, published=(f"207 at 300k ({_ZOO}, v2)",)),
    "sac-lunar_lander": Gate("SAC", "LunarLanderContinuous-v3", 65.0, 200.0, published=(f"260 at 500k ({_ZOO}, v2)",)),
    "bc-cartpole": Gate("BC", "CartPole-v1", 0.5),
    "bc-pendulum": Gate("BC", "Pendulum-v1", 0.5),
    "cql-pendulum": Gate("CQL", "Pendulum-v1", 5.7, above="bc-pendulum"),
    "iql-pendulum": Gate("IQL", "Pendulum-v1", 2.2, above="bc-pendulum"),
    "td3_bc-pendulum": Gate("TD3BC", "Pendulum-v1", 1.5, above="bc-pendulum"),
    "awac-pendulum": Gate("AWAC", "Pendulum-v1", 2.3, above="bc-pendulum"),
    "rebrac-pendulum": Gate("ReBRAC", "Pendulum-v1", 1.9, above="bc-pendulum"),
    "decision_transformer-pendulum": Gate("DecisionTransformer", "Pendulum-v1", 16.9, above="bc-pendulum"),
    "offline_q-cartpole": Gate("OfflineQ", "CartPole-v1", 1.5, above="bc-cartpole"),
    "ppo-halfcheetah": Gate(
        "PPO",
        "HalfCheetah-v5",
        6.8,
        published=(
            "1443 +- 46 at 1M (CleanRL, 3 seeds, learning rate annealed, returns while training)",
            f"5650 +- 1226 at 1.01M ({_TIANSHOU}; 64 environments, other hyper-parameters)",
        ),
        deviations=(_V5,),
    ),
    "ddpg-halfcheetah": Gate(
        "DDPG",
        "HalfCheetah-v5",
        15.5,
        steps=150_000,
        published=(
            f"6727 +- 747 at 125k learned from, 25k random ones before ({_TIANSHOU})",
            "10374 +- 157 at 1M (CleanRL, 3 seeds)",
        ),
        deviations=(_V5, _SHORT),
    ),
    "td3-halfcheetah": Gate(
        "TD3",
        "HalfCheetah-v5",
        17.8,
        steps=150_000,
        published=(
            f"5722 +- 352 at 125k learned from, 25k random ones before ({_TIANSHOU})",
            "9637 +- 859 at 1M (Fujimoto et al. 2018, 10 seeds)",
        ),
        deviations=(_V5, _SHORT),
    ),
    "sac-halfcheetah": Gate(
        "SAC",
        "HalfCheetah-v5",
        20.7,
        steps=110_000,
        published=(
            f"6515 +- 514 at 100k learned from, 10k random ones before ({_TIANSHOU}; temperature fixed at 0.2)",
            "9535 at 1M (Zoo)",
            "9635 +- 1424 at 1M (CleanRL, 3 seeds)",
        ),
        deviations=(_V5, _SHORT),
    ),
    "tqc-halfcheetah": Gate("TQC", "HalfCheetah-v5", 60.0, not_below="sac-halfcheetah", margin=500.0, steps=110_000),
    "crossq-halfcheetah": Gate("CrossQ", "HalfCheetah-v5", 40.0, above="sac-halfcheetah", steps=110_000),
    "redq-halfcheetah": Gate("REDQ", "HalfCheetah-v5", 800.0, above="sac-halfcheetah", steps=110_000, runs=1),
    "droq-halfcheetah": Gate("DroQ", "HalfCheetah-v5", 400.0, above="sac-halfcheetah", steps=110_000, runs=1),
    "td3-halfcheetah-1m": Gate(
        "TD3",
        "HalfCheetah-v5",
        120.0,
        8500.0,
        steps=1_000_000,
        runs=1,
        published=(
            "9637 +- 859 (Fujimoto et al. 2018, 10 seeds)",
            "9583 +- 126 (CleanRL, 3 seeds)",
            f"10201 +- 773 ({_TIANSHOU})",
        ),
        deviations=(_V5,),
    ),
    "sac-halfcheetah-1m": Gate(
        "SAC",
        "HalfCheetah-v5",
        190.0,
        8500.0,
        steps=1_000_000,
        runs=1,
        published=("9535 (Zoo)", "9635 +- 1424 (CleanRL, 3 seeds)", f"12139 +- 1049 ({_TIANSHOU})"),
        deviations=(_V5,),
    ),
    "td3-hopper": _locomotion("TD3", "Hopper", 36.0, "3564 +- 115 at 1M (Fujimoto et al. 2018, 10 seeds)"),
    "sac-hopper": _locomotion("SAC", "Hopper", 57.0, "2326 at 1M (Zoo)", "2310 +- 343 at 1M (CleanRL, 3 seeds)"),
    "td3-walker2d": _locomotion("TD3", "Walker2d", 36.0, "4683 +- 540 at 1M (Fujimoto et al. 2018, 10 seeds)"),
    "sac-walker2d": _locomotion("SAC", "Walker2d", 57.0, "3863 at 1M (Zoo)", "3591 +- 911 at 1M (CleanRL, 3 seeds)"),
    "dqn-breakout": _minatar("DQN", "Breakout", 11.8, _DQN_PLOTS),
    "dqn-space_invaders": _minatar("DQN", "SpaceInvaders", 11.1, _DQN_PLOTS),
    "dqn-asterix": _minatar("DQN", "Asterix", 12.0, _DQN_PLOTS, _UNSEEN),
    "dqn-freeway": _minatar("DQN", "Freeway", 12.0, _DQN_PLOTS, _UNSEEN),
    "c51-breakout": _minatar("C51", "Breakout", 17.0, _NO_TABLE),
    "rainbow-breakout": _minatar("Rainbow", "Breakout", 35.0, _DQN_PLOTS),
    "rainbow-space_invaders": _minatar("Rainbow", "SpaceInvaders", 35.0, _DQN_PLOTS),
    "rainbow-asterix": _minatar("Rainbow", "Asterix", 35.0, _DQN_PLOTS, _UNSEEN),
    "rainbow-freeway": _minatar("Rainbow", "Freeway", 35.0, _DQN_PLOTS, _UNSEEN),
    "ppo-breakout": _minatar("PPO", "Breakout", 6.1, _NO_TABLE),
    "ppo-space_invaders": _minatar("PPO", "SpaceInvaders", 6.9, _NO_TABLE),
    "ppo-asterix": _minatar("PPO", "Asterix", 7.0, _NO_TABLE, _UNSEEN),
    "ppo-freeway": _minatar("PPO", "Freeway", 7.0, _NO_TABLE, _UNSEEN),
    "impala-breakout": _minatar("IMPALA", "Breakout", 12.0, _NO_TABLE),
    "qmix-two_step": Gate("QMIX", "two_step", 0.2, 8.0, published=("8, the optimum (Rashid et al. 2018, table 1)",)),
    "vdn-two_step": Gate("VDN", "two_step", 0.2, published=("7 (Rashid et al. 2018, table 1)",)),
    "qmix-cued_two_step": Gate("QMIX", "cued_two_step", 0.3, 8.0, published=("the optimum is 8, by a memory alone",)),
    "vdn-cued_two_step": Gate("VDN", "cued_two_step", 0.3, published=("the optimum is 8, by a memory alone",)),
    "maddpg-two_step": Gate("MADDPG", "two_step", 0.3, 8.0, published=("the optimum is 8; no figure of MADDPG",)),
    "ppo-self_play": Gate(
        "PPO",
        "rock_paper_scissors",
        0.4,
        -0.25,
        variant="self-play",
        own=_SELF_PLAY,
        published=("0, the equilibrium (1/3, 1/2, 1/6); -0.67, equal chances",),
    ),
    "qmix-climbing": Gate("QMIX", "climbing", 0.2, 11.0, published=("the optimum is 11",)),
    "qmix-penalty": Gate("QMIX", "penalty", 0.2, 10.0, published=("the optimum is 10",)),
    "mappo-climbing": _matrix("MAPPO", "climbing", 11, 0.1),
    "ippo-climbing": _matrix("IPPO", "climbing", 11, 0.1),
    "coma-climbing": _matrix("COMA", "climbing", 11, 0.2),
    "mappo-penalty": _matrix("MAPPO", "penalty", 10, 0.1),
    "ippo-penalty": _matrix("IPPO", "penalty", 10, 0.1),
    "coma-penalty": _matrix("COMA", "penalty", 10, 0.2),
    "mappo-simple_spread": Gate("MAPPO", "mpe2:simple_spread_v3", 25.0, above="ippo-simple_spread"),
    "ippo-simple_spread": Gate("IPPO", "mpe2:simple_spread_v3", 25.0),
}
