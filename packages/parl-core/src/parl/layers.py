"""`parl.layers`: lazily shaped layers of the backend in use, such as `parl.layers.fc(size=10, act="tanh")`."""

from typing import Any

from parl_core import backends


def __getattr__(name: str) -> Any:
    if name == "__all__":  # `from parl.layers import *`
        return backends.current().layers.__all__
    if name.startswith("__"):  # the import system asks for its own attributes; no backend is needed to answer
        raise AttributeError(f"module 'parl.layers' has no attribute {name!r}")
    backend = backends.current()
    if name not in backend.layers.__all__:
        known = ", ".join(sorted(backend.layers.__all__))
        raise AttributeError(f"the {backend.name} backend has no layer {name!r}; it has {known}")
    return getattr(backend.layers, name)


def __dir__() -> list[str]:
    return sorted(backends.current().layers.__all__)
