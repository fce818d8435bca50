"""What the backend in use offers as a module of the facade: its algorithms, its layers."""

from typing import Any

from parl_core import backends

__all__ = ["names_of", "offered"]


def offered(kind: str, name: str) -> Any:
    """The attribute `name` of the module `parl.<kind>`, found in that of the backend in use.

    Raises:
        AttributeError: the backend has none of that name; the message lists those that it has.
    """
    if name == "__all__":  # `from parl.algorithms import *`
        return list(getattr(backends.current(), kind).__all__)
    if name.startswith("__"):  # the import system asks for its own attributes; no backend is needed to answer
        raise AttributeError(f"module 'parl.{kind}' has no attribute {name!r}")
    backend = backends.current()
    module = getattr(backend, kind)
    if name not in module.__all__:
        raise AttributeError(
            f"the {backend.name} backend has no {kind.removesuffix('s')} {name!r}; it has {', '.join(names_of(kind))}"
        )
    return getattr(module, name)


def names_of(kind: str) -> list[str]:
    """The names in `parl.<kind>`, sorted."""
    return sorted(getattr(backends.current(), kind).__all__)
