"""`parl.algorithms`: the algorithms of the backend in use, such as `parl.algorithms.PPO`."""

from typing import TYPE_CHECKING, Any

from parl_core import backends

if TYPE_CHECKING:
    from parl_core.contracts.dqn import DDQN as DDQN
    from parl_core.contracts.dqn import DQN as DQN
    from parl_core.contracts.policy_gradient import PolicyGradient as PolicyGradient
    from parl_core.contracts.ppo import PPO as PPO


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # the import system asks for its own attributes; no backend is needed to answer
        raise AttributeError(f"module 'parl.algorithms' has no attribute {name!r}")
    backend = backends.current()
    if name not in backend.algorithms.__all__:
        known = ", ".join(sorted(backend.algorithms.__all__))
        raise AttributeError(f"the {backend.name} backend has no algorithm {name!r}; it has {known}")
    return getattr(backend.algorithms, name)


def __dir__() -> list[str]:
    return sorted(backends.current().algorithms.__all__)
