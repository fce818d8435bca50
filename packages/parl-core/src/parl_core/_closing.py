"""The `with` statement of objects with a `close`: environments, actor systems, pools and files."""

from types import TracebackType
from typing import Any, Protocol, Self

__all__ = ["ClosingContext"]


class _Closable(Protocol):
    @property
    def close(self) -> Any: ...


class ClosingContext:
    """A base class whose objects are closed at the end of a `with` block."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Closable, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
