"""Returns to be reached, and those that others have published: one entry a table row.

A gate is passed when the lower bound of the 95 % interval over seeds reaches it. Published figures name their protocol.
"""

from dataclasses import dataclass, field

__all__ = ["GATES", "Gate"]


@dataclass(frozen=True)
class Gate:
    """One algorithm on one task.

    Attributes:
        algorithm: name in `parl.algorithms`.
        env: Gymnasium id.
        steps: environment steps (offline: gradient steps) of a run.
        threshold: mean return to reach; None where it is that of other runs (`relative_to`) or only reported.
        relative_to: another gate, whose upper bound must not lie above ours ("not below"), or `"data"`: the mean
            return of the logged data.
        published: what others report, with source and protocol.
        deviations: from the published protocol or from the paper.
    """

    algorithm: str
    env: str
    steps: int
    threshold: float | None = None
    relative_to: str = ""
    published: tuple[str, ...] = ()
    deviations: tuple[str, ...] = field(default=())


_ZOO = "RL Baselines3 Zoo, single best run"
_CLEANRL = "CleanRL, 3 seeds, 500k steps"
_TIANSHOU = "Tianshou, 10 seeds, HalfCheetah-v3, mean and deviation in its test_rew_10seeds.csv"
_V5 = "v5 of the task; published figures are of v1 to v4"
_SHORT = "as many steps as fit two CPU hours for five seeds; 1M steps are usual"
_NO_TABLE = "no table for so few frames is known to us"
_DQN_PLOTS = f"{_NO_TABLE}; Young & Tian 2019 plot 5M frames, Obando-Ceron & Castro 2021 plot 10M"
_LIMIT = "games end after 5,000 frames"
_MINATAR_DQN = (_LIMIT, "Adam's epsilon is 1e-8, not 3e-4", "four games side by side")
_MINATAR_PPO = (_LIMIT, "initial weights as PARL's layers have them, not orthogonal")
_TARGET = "the target is copied before each 128 updates, as the Zoo's every 10 steps come to"
_STARTS = "1,000 random steps, not 10,000"
_LOGGED = (
    "no published figure on small tasks; data are recorded here by a scripted policy with noise (data.py)",
    "the data are the same for all seeds",
)

GATES: dict[str, Gate] = {
    "policy_gradient-cartpole": Gate(
        "PolicyGradient",
        "CartPole-v1",
        1000,
        400.0,
        published=("PARL's QuickStart: solves CartPole-v0 (cap 200) in 1000 episodes",),
        deviations=("steps are episodes here", "CartPole-v1: cap 500"),
    ),
    "dqn-cartpole": Gate(
        "DQN",
        "CartPole-v1",
        100_000,
        475.0,
        published=(f"500 at 50k ({_ZOO})", f"488.7 +- 16 ({_CLEANRL})"),
        deviations=("twice the Zoo's steps, the learning rate goes to 0", _TARGET),
    ),
    "dqn-acrobot": Gate(
        "DQN",
        "Acrobot-v1",
        100_000,
        -100.0,
        published=(f"-76.6 at 100k ({_ZOO})", f"-91.5 +- 7.2 ({_CLEANRL})"),
        deviations=("an update every 4 steps, not 4 of them, and the target copied every 62, not 250",),
    ),
    "ddqn-cartpole": Gate("DDQN", "CartPole-v1", 100_000, relative_to="dqn-cartpole", deviations=("as DQN's",)),
    "a2c-cartpole": Gate(
        "A2C", "CartPole-v1", 500_000, 475.0, published=(f"500 at 500k ({_ZOO})",), deviations=("Adam, not RMSProp",)
    ),
    "a2c-acrobot": Gate(
        "A2C",
        "Acrobot-v1",
        500_000,
        -100.0,
        published=(f"-83.4 at 500k ({_ZOO})",),
        deviations=("Adam, not RMSProp", "observations are not normalised"),
    ),
    "ppo-cartpole": Gate(
        "PPO", "CartPole-v1", 100_000, 475.0, published=(f"500 at 100k ({_ZOO})", f"490 +- 6 ({_CLEANRL})")
    ),
    "ppo-acrobot": Gate(
        "PPO", "Acrobot-v1", 300_000, -100.0, published=(f"-73.5 at 1M ({_ZOO})", f"-86.4 +- 1.3 ({_CLEANRL})")
    ),
    "ppo-pendulum": Gate(
        "PPO",
        "Pendulum-v1",
        300_000,
        -200.0,
        published=(f"-172 at 100k ({_ZOO}, gSDE)",),
        deviations=(
            "no gSDE: a Gaussian of state-independent deviation",
            "300k steps; learning rate and clip range go to 0",
        ),
    ),
    "impala-cartpole": Gate(
        "IMPALA",
        "CartPole-v1",
        400_000,
        450.0,
        published=("450 within 2M steps (RLlib's tuned example, which its CI runs)",),
        deviations=(
            "two remote actors, and an order of fragments that does not depend on time",
            "a fifth of RLlib's steps; the learning rate goes to 0",
        ),
    ),
    "ddpg-pendulum": Gate(
        "DDPG", "Pendulum-v1", 20_000, -200.0, published=(f"-152 at 20k ({_ZOO})",), deviations=(_STARTS,)
    ),
    "td3-pendulum": Gate(
        "TD3", "Pendulum-v1", 20_000, -200.0, published=(f"-152 at 20k ({_ZOO})",), deviations=(_STARTS,)
    ),
    "sac-pendulum": Gate(
        "SAC",
        "Pendulum-v1",
        20_000,
        -200.0,
        published=(f"-157 at 20k ({_ZOO})",),
        deviations=("1,000 random steps, not 100",),
    ),
    "oac-pendulum": Gate(
        "OAC",
        "Pendulum-v1",
        20_000,
        relative_to="sac-pendulum",
        deviations=("delta is the paper's 23.53 for each of Humanoid's 17 actions, and here there is one",),
    ),
    "cql-pendulum": Gate("CQL", "Pendulum-v1", 10_000, relative_to="data", deviations=_LOGGED),
    "iql-pendulum": Gate("IQL", "Pendulum-v1", 10_000, relative_to="data", deviations=_LOGGED),
    "decision_transformer-pendulum": Gate(
        "DecisionTransformer",
        "Pendulum-v1",
        5_000,
        relative_to="data",
        deviations=(*_LOGGED, "asked for the return of the best tenth of the logged episodes"),
    ),
    "offline_q-cartpole": Gate("OfflineQ", "CartPole-v1", 20_000, relative_to="data", deviations=_LOGGED),
    "ppo-halfcheetah": Gate(
        "PPO",
        "HalfCheetah-v5",
        1_000_000,
        published=(
            "1443 +- 46 at 1M (CleanRL, 3 seeds, learning rate annealed, returns while training)",
            f"5650 +- 1226 at 1.01M ({_TIANSHOU}; 64 environments, other hyper-parameters)",
        ),
        deviations=(_V5,),
    ),
    "ddpg-halfcheetah": Gate(
        "DDPG",
        "HalfCheetah-v5",
        150_000,
        published=(
            f"6727 +- 747 at 125k learned from, 25k random ones before ({_TIANSHOU})",
            "10374 +- 157 at 1M (CleanRL, 3 seeds)",
        ),
        deviations=(_V5, _SHORT),
    ),
    "td3-halfcheetah": Gate(
        "TD3",
        "HalfCheetah-v5",
        150_000,
        published=(
            f"5722 +- 352 at 125k learned from, 25k random ones before ({_TIANSHOU})",
            "9637 +- 859 at 1M (Fujimoto et al. 2018, 10 seeds)",
        ),
        deviations=(_V5, _SHORT),
    ),
    "sac-halfcheetah": Gate(
        "SAC",
        "HalfCheetah-v5",
        110_000,
        published=(
            f"6515 +- 514 at 100k learned from, 10k random ones before ({_TIANSHOU}; temperature fixed at 0.2)",
            "9535 at 1M (Zoo)",
            "9635 +- 1424 at 1M (CleanRL, 3 seeds)",
        ),
        deviations=(_V5, _SHORT, "the temperature is learned"),
    ),
    "dqn-breakout": Gate(
        "DQN",
        "MinAtar/Breakout-v1",
        1_500_000,
        published=(_DQN_PLOTS,),
        deviations=_MINATAR_DQN,
    ),
    "dqn-space_invaders": Gate(
        "DQN",
        "MinAtar/SpaceInvaders-v1",
        1_500_000,
        published=(_DQN_PLOTS,),
        deviations=_MINATAR_DQN,
    ),
    "ppo-breakout": Gate("PPO", "MinAtar/Breakout-v1", 3_000_000, published=(_NO_TABLE,), deviations=_MINATAR_PPO),
    "ppo-space_invaders": Gate(
        "PPO", "MinAtar/SpaceInvaders-v1", 3_000_000, published=(_NO_TABLE,), deviations=_MINATAR_PPO
    ),
}
