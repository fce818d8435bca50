"""`parl.layers`: lazily shaped layers of the backend in use, such as `parl.layers.fc(size=10, act="tanh")`."""

from typing import Any

from parl._names import names_of, offered


def __getattr__(name: str) -> Any:
    return offered("layers", name)


def __dir__() -> list[str]:
    return names_of("layers")
