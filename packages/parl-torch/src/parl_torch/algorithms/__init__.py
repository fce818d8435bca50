"""`parl.algorithms` on PyTorch; signatures and meaning are documented in `parl_core.contracts`."""

from parl_torch.algorithms.a2c import A2C, A3C
from parl_torch.algorithms.coma import COMA
from parl_torch.algorithms.ddpg import DDPG, BootstrappedDDPG
from parl_torch.algorithms.discrete_sac import DiscreteSAC
from parl_torch.algorithms.distributional_dqn import C51, QRDQN, Rainbow
from parl_torch.algorithms.dqn import DDQN, DQN, ApeX, OfflineQ
from parl_torch.algorithms.imitation import BC, DecisionTransformer
from parl_torch.algorithms.impala import IMPALA
from parl_torch.algorithms.maddpg import MADDPG
from parl_torch.algorithms.mappo import IPPO, MAPPO
from parl_torch.algorithms.offline import AWAC, CQL, IQL
from parl_torch.algorithms.policy_gradient import PolicyGradient
from parl_torch.algorithms.ppo import PPO
from parl_torch.algorithms.qmix import QMIX, VDN
from parl_torch.algorithms.rnd import RND
from parl_torch.algorithms.sac import OAC, REDQ, SAC, TQC, CrossQ, DroQ
from parl_torch.algorithms.td3 import TD3, TD3BC, ReBRAC

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
