"""`parl.algorithms`: the algorithms of the backend in use, such as `parl.algorithms.PPO`."""

from typing import TYPE_CHECKING, Any

from parl_core import backends

if TYPE_CHECKING:
    from parl_core.contracts.a2c import A2C as A2C
    from parl_core.contracts.a2c import A3C as A3C
    from parl_core.contracts.cql import CQL as CQL
    from parl_core.contracts.ddpg import DDPG as DDPG
    from parl_core.contracts.decision_transformer import DecisionTransformer as DecisionTransformer
    from parl_core.contracts.dqn import DDQN as DDQN
    from parl_core.contracts.dqn import DQN as DQN
    from parl_core.contracts.impala import IMPALA as IMPALA
    from parl_core.contracts.iql import IQL as IQL
    from parl_core.contracts.oac import OAC as OAC
    from parl_core.contracts.offline_q import OfflineQ as OfflineQ
    from parl_core.contracts.policy_gradient import PolicyGradient as PolicyGradient
    from parl_core.contracts.ppo import PPO as PPO
    from parl_core.contracts.sac import SAC as SAC
    from parl_core.contracts.td3 import TD3 as TD3


def __getattr__(name: str) -> Any:
    if name == "__all__":  # `from parl.algorithms import *`
        return backends.current().algorithms.__all__
    if name.startswith("__"):  # the import system asks for its own attributes; no backend is needed to answer
        raise AttributeError(f"module 'parl.algorithms' has no attribute {name!r}")
    backend = backends.current()
    if name not in backend.algorithms.__all__:
        known = ", ".join(sorted(backend.algorithms.__all__))
        raise AttributeError(f"the {backend.name} backend has no algorithm {name!r}; it has {known}")
    return getattr(backend.algorithms, name)


def __dir__() -> list[str]:
    return sorted(backends.current().algorithms.__all__)
