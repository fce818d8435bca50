"""`parl.optim`: optimizers of the backend in use, for your own algorithms: `parl.optim.Adam(model, lr=1e-3)`."""

from typing import Any

from parl._names import names_of, offered


def __getattr__(name: str) -> Any:
    return offered("optim", name)


def __dir__() -> list[str]:
    return names_of("optim")
