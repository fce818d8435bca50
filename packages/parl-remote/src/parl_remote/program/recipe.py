"""What it takes to make an actor, once or again: class, arguments, options, and the state that it saved last.

create() --> Recipe --message(sys_path)--> CREATE --> actor
               ^                                        |
               `------ STATE, what `__parl_save__` gave '     in the next actor: `__parl_load__(state)`
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from parl_remote.data import serialize
from parl_remote.links.call_messages import header_of, payload_of
from parl_remote.options import ActorOptions
from parl_remote.program.actor_ref import AttributeNames
from parl_remote.shipping.class_spec import ClassSpec
from parl_remote.transport import Buffer

if TYPE_CHECKING:
    from parl_remote.program.actor_record import ActorRecord
    from parl_remote.program.actor_ref import CallPath
    from parl_remote.program.handles import ActorPlace

__all__ = ["Made", "Recipe"]

_SAVE, _LOAD = "__parl_save__", "__parl_load__"


class Made(NamedTuple):
    """An actor that is there, the way to it, and where others find it."""

    record: ActorRecord
    path: CallPath
    place: ActorPlace


class Recipe:
    """One actor's making.

    Args:
        spec: Its class.
        options: What it was asked for with.
        creation: The first fields of `actor.host.Creation` after `sys_path`, without those that options give.
        buffers: What belongs to the pickled arguments; copied if the actor may be made again, because the program may
            change its arrays meanwhile.
        references: What the references among the arguments lead to, kept as long as the actor may be made again.

    Attributes:
        names: The names of the actor's attributes.
        saves: Whether its state is kept.

    Raises:
        TypeError: The class has one of the two methods that save and load its state, and not the other.
    """

    def __init__(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        creation: tuple[Any, ...],
        buffers: Sequence[Buffer],
        references: tuple[object, ...],
    ) -> None:
        self.spec = spec
        self.options = options
        self.names = AttributeNames()
        self.saves = bool(options.max_restarts) and _saves(spec.cls)
        self.references: object = references
        self._creation = creation
        self._buffers = [bytes(buffer) for buffer in buffers] if options.max_restarts else buffers
        self._state: tuple[bytes, list[Buffer]] | None = None

    def message(self, sys_path: tuple[str | None, ...]) -> list[Buffer]:
        """The payload of CREATE.

        Args:
            sys_path: Where the actor finds modules.
        """
        state, buffers = self._state or (None, [])
        fields = (sys_path, *self._creation, self.options.max_concurrency, self.saves, state, len(buffers))
        return [*serialize.dumps(fields), *self._buffers, *buffers]

    def keep_state(self, frames: Sequence[memoryview]) -> None:
        """Take what the actor has saved; the one before is gone."""
        data, buffers = payload_of(header_of(frames[0])[1], frames)
        self._state = bytes(data), list(buffers)


@functools.cache
def _saves(cls: type) -> bool:
    """Whether objects of a class save their state."""
    has = [name for name in (_SAVE, _LOAD) if callable(getattr(cls, name, None))]
    if len(has) == 1:
        other = _LOAD if has == [_SAVE] else _SAVE
        raise TypeError(f"{cls.__qualname__} has {has[0]} but no {other}; state is saved and loaded, or neither")
    return bool(has)
