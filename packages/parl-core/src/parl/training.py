"""`parl.training`: training loops, vector environments, evaluation and run folders; defined in `parl_core.training`."""

from typing import TYPE_CHECKING, Any

from parl_core import training as _home

if TYPE_CHECKING:
    from parl_core.training import *  # noqa: F403 - type checkers read the names there


def __getattr__(name: str) -> Any:
    if name == "__all__" or name in _home.__all__:  # `from parl.training import *` asks for the list itself
        return getattr(_home, name)
    raise AttributeError(f"module 'parl.training' has no attribute {name!r}; it has {', '.join(sorted(_home.__all__))}")


def __dir__() -> list[str]:
    return sorted(_home.__all__)
