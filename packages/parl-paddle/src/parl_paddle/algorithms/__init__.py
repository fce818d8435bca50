"""`parl.algorithms` on PaddlePaddle; signatures and meaning are documented in `parl_core.contracts`."""

from parl_paddle.algorithms.a2c import A2C, A3C
from parl_paddle.algorithms.coma import COMA
from parl_paddle.algorithms.ddpg import DDPG, BootstrappedDDPG
from parl_paddle.algorithms.discrete_sac import DiscreteSAC
from parl_paddle.algorithms.distributional_dqn import C51, QRDQN, Rainbow
from parl_paddle.algorithms.dqn import DDQN, DQN, ApeX, OfflineQ
from parl_paddle.algorithms.imitation import BC, DecisionTransformer
from parl_paddle.algorithms.impala import IMPALA
from parl_paddle.algorithms.maddpg import MADDPG
from parl_paddle.algorithms.mappo import IPPO, MAPPO
from parl_paddle.algorithms.offline import AWAC, CQL, IQL
from parl_paddle.algorithms.policy_gradient import PolicyGradient
from parl_paddle.algorithms.ppo import PPO
from parl_paddle.algorithms.qmix import QMIX, VDN
from parl_paddle.algorithms.rnd import RND
from parl_paddle.algorithms.sac import OAC, REDQ, SAC, TQC, CrossQ, DroQ
from parl_paddle.algorithms.td3 import TD3, TD3BC, ReBRAC

__all__ = [
    "A2C",
    "A3C",
    "AWAC",
    "BC",
    "C51",
    "COMA",
    "CQL",
    "DDPG",
    "DDQN",
    "DQN",
    "IMPALA",
    "IPPO",
    "IQL",
    "MADDPG",
    "MAPPO",
    "OAC",
    "PPO",
    "QMIX",
    "QRDQN",
    "REDQ",
    "RND",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "VDN",
    "ApeX",
    "BootstrappedDDPG",
    "CrossQ",
    "DecisionTransformer",
    "DiscreteSAC",
    "DroQ",
    "OfflineQ",
    "PolicyGradient",
    "Rainbow",
    "ReBRAC",
]
