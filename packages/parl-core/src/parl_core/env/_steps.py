"""Steps of a group of environments: messages, and shared memory on one host.

    rows of actions  ─>  EnvGroup  ─>  GroupStep: arrays, and an Ending for each episode that ended

    the process that steps                               the group's actor
    actions ─────────────> [actions]                     reads them
    call, one byte  ═════════ pipe ═════════════════════> wait_for_call
                           [observations, rewards, ...] <─ writes them
    wait_for_answer <════════ pipe ══════════════════════ answer, one byte

The memory is an anonymous file, and the pipes have no names either: the actor opens them by the other process's
descriptors (`StepTicket`), so nothing can be left behind. If that is impossible, because the actor is on another host
or in another container, or the system has no such files, steps are sent as pickled messages.
"""

import enum
import mmap
import os
import secrets
import select
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import create_empty_array

from parl_core import _shared_memory
from parl_core._nested import map_nested
from parl_core._shared_memory import MemoryAddress, MemoryGone, has_shared_memory

__all__ = [
    "ActionRows",
    "Answer",
    "ArraySpaces",
    "Ending",
    "GroupSpaces",
    "GroupStep",
    "Infos",
    "Packed",
    "StepArrays",
    "StepMemory",
    "StepTicket",
    "can_share",
    "packed",
    "unpacked",
]


ArraySpaces = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)
"""The spaces whose batches are one numpy array."""

Infos = list[tuple[int, dict[str, Any]]]
"""Pairs of an environment's index and its info, without the empty ones."""


class Ending(NamedTuple):
    """The end of one environment's episode, in the step that ended it."""

    env_index: int
    """Index of the environment in the group."""
    observation: Any
    """The last observation, from which a truncated episode bootstraps; None if the step itself returns it."""
    info: dict[str, Any]
    """The last info."""
    episode_return: float
    """Undiscounted sum of the episode's rewards, unscaled if a wrapper reports it in its info."""
    length: int
    """Number of steps of the episode."""


class GroupSpaces(NamedTuple):
    """The spaces of a group's environments; fetched once."""

    observation: Any
    action: Any
    metadata: dict[str, Any]


class GroupStep(NamedTuple):
    """The answer of one step, arrays over the group's environments."""

    observations: Any
    """`[count, *obs]`, or a dict or tuple of arrays; with SAME_STEP, the next episode's first one after an end"""
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    endings: list[Ending]
    infos: Infos
    """Empty unless the group was made with `with_infos`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.endings, self.infos, *(packed(part) for part in self[:4]))


class ActionRows:
    """Actions `[count, *act]` in a message to a group, which iterates over them."""

    def __init__(self, actions: npt.NDArray[Any]) -> None:
        self._actions = actions

    def __iter__(self) -> Iterator[Any]:
        return iter(self._actions)

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, packed(self._actions)


# Pickling a few numbers takes numpy ten times as long as copying them, so small arrays are sent as bytes. Larger ones
# stay arrays, which parl-remote transfers without a copy.
_BYTES_WORTH_A_COPY = 8192

Packed = tuple[Any, ...]


def packed(part: Any) -> Packed:
    """Return a part of a message as the arguments of `unpacked`: small arrays as bytes, other values unchanged."""
    if not isinstance(part, np.ndarray) or part.nbytes >= _BYTES_WORTH_A_COPY:
        return (part,)
    if part.dtype.hasobject or part.dtype.names:  # dtype.str does not contain names of fields
        return (part,)
    return part.tobytes(), part.dtype.str, part.shape


def unpacked(data: Any, dtype: str = "", shape: tuple[int, ...] = ()) -> Any:
    """Return the packed array or value."""
    if not dtype:
        return data
    # from a bytearray, because arrays over bytes are read-only
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


def _unpack(endings: list[Ending], infos: Infos, *parts: Packed) -> GroupStep:
    observations, rewards, terminated, truncated = (unpacked(*part) for part in parts)
    return GroupStep(observations, rewards, terminated, truncated, endings, infos)


_TOKEN_BYTES = 16
_ALIGNMENT = 64  # bytes; a cache line
_WIDEST_NUMBER = 8  # bytes of an action's number, whatever its dtype
_LEAVE = b"."
_NAME = "parl-steps"
_NUMBERS = frozenset("?bBhHiIlLqQefd")
"""Dtypes of actions that fit into the memory, as numpy's characters; the byte of a call is that of its actions."""


class Answer(bytes, enum.Enum):
    """The meanings of the actor's byte."""

    STEPPED = b"s"
    """The step's arrays are in the memory."""
    ENDED = b"e"
    """The step's arrays are in the memory, including those of ended episodes."""
    RETURNED = b"r"
    """The serving call has ended, with a result or an exception."""
    PARKED = b"p"
    """The serving call has ended without a step, after a time without calls or on request."""


class StepTicket(NamedTuple):
    """The address of the memory and the pipes, for another process of this host."""

    token: bytes
    """The memory's first bytes, which distinguish a process with the same id on another host."""
    memory: MemoryAddress
    calls: int
    answers: int

    @property
    def pid(self) -> int:
        """The id of the process that made the memory and the pipes."""
        return self.memory.pid


class StepArrays(NamedTuple):
    """The arrays that a step writes, over the group's environments; see `GroupStep` and `Ending`."""

    observations: Any
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    last_observations: Any
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]


def can_share(spaces: GroupSpaces) -> bool:
    """Return whether such environments have only arrays of known sizes, and the system has shared memory."""
    return isinstance(spaces.action, ArraySpaces) and _is_of_arrays(spaces.observation) and has_shared_memory()


class StepMemory:
    """One end of the shared memory, made by `create` in the stepping process and by `open` in the actor."""

    def __init__(self, memory: mmap.mmap, spaces: GroupSpaces, count: int, *, reads: int, writes: int) -> None:
        self._count, self._action_space = count, spaces.action
        self._actions, self.arrays = _laid_out(spaces, count, _carver(memory))
        self._by_dtype: dict[str, npt.NDArray[Any]] = {}
        self._reads, self._writes = reads, writes
        self._poll = select.poll()
        self._poll.register(reads, select.POLLIN)
        self._lent: tuple[int, ...] = ()
        self.ticket: StepTicket | None = None

    @classmethod
    def create(cls, spaces: GroupSpaces, count: int) -> Self:
        """Make the memory for a group of `count` environments; `ticket` is valid until `keep_own_ends`.

        Raises:
            OSError: There is no memory or no descriptor left.
        """
        size = _bytes_needed(spaces, count)
        token = secrets.token_bytes(_TOKEN_BYTES)
        opened: list[int] = []
        try:
            opened.append(descriptor := _shared_memory.create(_NAME, size))
            opened += (calls := os.pipe())
            opened += (answers := os.pipe())
            memory = mmap.mmap(descriptor, size)
        except OSError:
            for one in opened:
                os.close(one)
            raise
        memory[:_TOKEN_BYTES] = token
        end = cls(memory, spaces, count, reads=answers[0], writes=calls[1])
        end._lent = (descriptor, calls[0], answers[1])
        end.ticket = StepTicket(token, _shared_memory.address_of(descriptor), calls[0], answers[1])
        return end

    @classmethod
    def open(cls, ticket: StepTicket, spaces: GroupSpaces, count: int) -> Self | None:
        """Open another process's memory; return None if that is impossible, or if it is this process."""
        if ticket.pid == os.getpid():
            return None
        opened: list[int] = []
        try:
            opened.append(descriptor := _shared_memory.open_at(ticket.memory, _NAME, writable=True))
            memory = mmap.mmap(descriptor, _bytes_needed(spaces, count))
            if memory[:_TOKEN_BYTES] != ticket.token:
                return None
            place = f"/proc/{ticket.pid}/fd"
            opened.append(calls := os.open(f"{place}/{ticket.calls}", os.O_RDONLY | os.O_CLOEXEC))
            opened.append(answers := os.open(f"{place}/{ticket.answers}", os.O_WRONLY | os.O_CLOEXEC))
            end = cls(memory, spaces, count, reads=calls, writes=answers)
            del opened[1:]
            return end
        except (MemoryGone, OSError, ValueError):
            return None
        finally:
            for one in opened:
                os.close(one)

    def keep_own_ends(self) -> None:
        """Close the descriptors that the actor has opened, so that the end of either process is detected."""
        for one in self._lent:
            os.close(one)
        self._lent, self.ticket = (), None

    def close(self) -> None:
        """Close the pipes; a second call does nothing. The memory stays as long as arrays of it do."""
        self.keep_own_ends()
        if self._reads >= 0:
            os.close(self._reads)
            os.close(self._writes)
            self._reads = self._writes = -1

    def __del__(self) -> None:
        if hasattr(self, "ticket"):
            self.close()

    def forget(self) -> None:
        """Discard the bytes that the other end has written so far, one per call or answer."""
        while self._poll.poll(0) and os.read(self._reads, _TOKEN_BYTES):
            pass

    # -- the end that steps ------------------------------------------------------------------------------------------

    def call(self, actions: npt.NDArray[Any]) -> bool:
        """Request a step with these actions from the actor; return False if they do not fit into the memory."""
        dtype = actions.dtype.char
        if dtype not in _NUMBERS:
            return False
        view = self._by_dtype.get(dtype)
        if view is None:
            view = self._view_as(dtype)
        if actions.shape != view.shape:
            return False
        view[...] = actions
        os.write(self._writes, dtype.encode())
        return True

    def request_return(self) -> None:
        """Make the actor end its serving call."""
        os.write(self._writes, _LEAVE)

    def wait_for_answer(self, timeout_s: float) -> bytes | None:
        """Return the actor's next byte; an empty result if it is gone, None after the timeout."""
        return os.read(self._reads, 1) if self._poll.poll(timeout_s * 1000) else None

    def endings(self) -> list[Ending]:
        """Return the episodes that the last step ended; their last observations are valid with SAME_STEP only."""
        arrays = self.arrays
        return [
            Ending(i, _row_of(arrays.last_observations, i), {}, float(arrays.returns[i]), int(arrays.lengths[i]))
            for i in np.flatnonzero(arrays.terminated | arrays.truncated).tolist()
        ]

    # -- the actor's end ---------------------------------------------------------------------------------------------

    def wait_for_call(self, timeout_s: float) -> npt.NDArray[Any] | None:
        """Return the actions of the next step; None after the timeout, or on a request to leave."""
        if not self._poll.poll(timeout_s * 1000):
            return None
        dtype = os.read(self._reads, 1)
        if dtype in (b"", _LEAVE):
            return None
        char = dtype.decode()
        view = self._by_dtype.get(char)
        return (self._view_as(char) if view is None else view).copy()  # an environment may keep its action

    def answer(self, answer: Answer) -> None:
        """Signal the other end."""
        os.write(self._writes, answer)

    def put_endings(self, endings: list[Ending]) -> None:
        """Write the data that `endings` reads, without infos."""
        for ending in endings:
            index = ending.env_index
            if ending.observation is not None:
                map_nested(partial(_put, index), self.arrays.last_observations, ending.observation)
            self.arrays.returns[index], self.arrays.lengths[index] = ending.episode_return, ending.length

    def _view_as(self, dtype: str) -> npt.NDArray[Any]:
        shape = (self._count, *(self._action_space.shape or ()))
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        view: npt.NDArray[Any] = self._actions[:size].view(dtype).reshape(shape)
        self._by_dtype[dtype] = view
        return view


Make = Callable[..., Any]


def _laid_out(spaces: GroupSpaces, count: int, make: Make) -> tuple[Any, StepArrays]:
    """Return all arrays, one after another, in the same layout at both ends."""
    actions = make((count * max(1, int(np.prod(spaces.action.shape))) * _WIDEST_NUMBER,), dtype=np.uint8)
    return actions, StepArrays(
        create_empty_array(spaces.observation, count, make),
        make((count,), dtype=np.float64),
        make((count,), dtype=np.bool_),
        make((count,), dtype=np.bool_),
        create_empty_array(spaces.observation, count, make),
        make((count,), dtype=np.float64),
        make((count,), dtype=np.int64),
    )


def _carver(memory: mmap.mmap) -> Make:
    at = _ALIGNMENT  # after the token

    def carve(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        nonlocal at
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, memory, at)
        at += _whole_lines(array.nbytes)
        return array

    return carve


def _bytes_needed(spaces: GroupSpaces, count: int) -> int:
    total = _ALIGNMENT

    def count_up(shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        nonlocal total
        total += _whole_lines(int(np.prod(shape)) * np.dtype(dtype).itemsize)

    _laid_out(spaces, count, count_up)
    return total


def _whole_lines(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _is_of_arrays(space: Any) -> bool:
    if isinstance(space, gymnasium.spaces.Dict):
        return all(_is_of_arrays(part) for part in space.values())
    return isinstance(space, ArraySpaces)


def _row_of(observations: Any, index: int) -> Any:
    return map_nested(lambda rows: rows[index].copy(), observations)


def _put(index: int, rows: npt.NDArray[Any], row: Any) -> None:
    rows[index] = row
