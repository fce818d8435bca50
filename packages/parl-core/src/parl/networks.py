"""`parl.networks`: ready-made models of the backend in use, such as `parl.networks.ActorCritic(act_dim=2)`."""

from typing import Any

from parl._names import names_of, offered


def __getattr__(name: str) -> Any:
    return offered("networks", name)


def __dir__() -> list[str]:
    return names_of("networks")
