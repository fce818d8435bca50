"""`parl.algorithms`: the algorithms of the backend in use, such as `parl.algorithms.PPO`."""

from typing import TYPE_CHECKING, Any

from parl._names import names_of, offered

if TYPE_CHECKING:
    from parl_core.contracts.a2c import A2C as A2C
    from parl_core.contracts.a2c import A3C as A3C
    from parl_core.contracts.coma import COMA as COMA
    from parl_core.contracts.ddpg import DDPG as DDPG
    from parl_core.contracts.ddpg import BootstrappedDDPG as BootstrappedDDPG
    from parl_core.contracts.discrete_sac import DiscreteSAC as DiscreteSAC
    from parl_core.contracts.distributional_dqn import C51 as C51
    from parl_core.contracts.distributional_dqn import QRDQN as QRDQN
    from parl_core.contracts.distributional_dqn import Rainbow as Rainbow
    from parl_core.contracts.dqn import DDQN as DDQN
    from parl_core.contracts.dqn import DQN as DQN
    from parl_core.contracts.dqn import ApeX as ApeX
    from parl_core.contracts.dqn import OfflineQ as OfflineQ
    from parl_core.contracts.imitation import BC as BC
    from parl_core.contracts.imitation import DecisionTransformer as DecisionTransformer
    from parl_core.contracts.impala import IMPALA as IMPALA
    from parl_core.contracts.maddpg import MADDPG as MADDPG
    from parl_core.contracts.mappo import IPPO as IPPO
    from parl_core.contracts.mappo import MAPPO as MAPPO
    from parl_core.contracts.offline import AWAC as AWAC
    from parl_core.contracts.offline import CQL as CQL
    from parl_core.contracts.offline import IQL as IQL
    from parl_core.contracts.policy_gradient import PolicyGradient as PolicyGradient
    from parl_core.contracts.ppo import PPO as PPO
    from parl_core.contracts.qmix import QMIX as QMIX
    from parl_core.contracts.qmix import VDN as VDN
    from parl_core.contracts.rnd import RND as RND
    from parl_core.contracts.sac import OAC as OAC
    from parl_core.contracts.sac import REDQ as REDQ
    from parl_core.contracts.sac import SAC as SAC
    from parl_core.contracts.sac import TQC as TQC
    from parl_core.contracts.sac import CrossQ as CrossQ
    from parl_core.contracts.sac import DroQ as DroQ
    from parl_core.contracts.td3 import TD3 as TD3
    from parl_core.contracts.td3 import TD3BC as TD3BC
    from parl_core.contracts.td3 import ReBRAC as ReBRAC


def __getattr__(name: str) -> Any:
    return offered("algorithms", name)


def __dir__() -> list[str]:
    return names_of("algorithms")
