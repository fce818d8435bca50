"""Batches that algorithms learn from: frozen values with named columns, one entry per row.

    memory, loop, program ──> Transitions, Rollout, Fragment, Windows ──> the same of tensors ──> algorithm.learn(batch)

A batch checks the shapes and kinds of its columns once, when it is made. Batches made by this library are not checked
again (`Batch.made`). Values are checked only if a loss is not finite: `Batch.describe_not_finite` finds the row. Your
own columns (goals, hidden states, several rewards) are in `extra` and reach the algorithm: `batch.goal`.

`Columns` turns the positional forms of PARL 1.x and 2.x, `learn(obs, action, reward, ...)`, into batches, for
`Agent.learn` and `Algorithm.learn` alike.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations, holds_tensors, leaves, map_nested, rows_of

__all__ = [
    "Batch",
    "Columns",
    "Fragment",
    "Rollout",
    "RolloutBatch",
    "Sequences",
    "TeamRollout",
    "Transitions",
    "Windows",
    "actions_column",
    "floats_column",
    "learns_from",
    "observations",
]


_LARGEST = float(np.finfo(np.float32).max)
_FLAG = (1.0, "1 where an episode ended and 0 elsewhere, got {}")
_SHARE = (1.0, "in [0, 1], got {}")
_WEIGHT = (_LARGEST, "at least 0 and finite, got {}")
_BITS: dict[tuple[Any, float], Any] = {
    (np.dtype(kind), limit): np.asarray(limit, kind).view(whole)[()]
    for kind, whole in ((np.float32, np.uint32), (np.float64, np.uint64))
    for limit in (1.0, _LARGEST)
}
"""Limits by dtype and value, as unsigned integers with the bits of the floats.

These integers have the order of the floats from 0 on, and those of negative numbers and NaN are larger, so that one
comparison checks both ends of a range."""
_PASS = dict.fromkeys(("terminal", "done"), ": pass the flag that env.step returned")


def observations(values: Any) -> Observations:
    """Return the observations of a batch as an array, or as a dictionary of arrays; copied only if necessary."""
    found: Observations = map_nested(np.asarray, values)
    return found


def actions_column(name: str, values: Any, act_dim: int | None = None) -> NDArray[np.int64]:
    """Return discrete actions as int64 `[n]`, from `[n]` or `[n, 1]`; floats must be whole numbers.

    Args:
        name: The argument's name, for messages.
        values: Action indices.
        act_dim: Number of actions; if given, larger indices, which would abort the process on a GPU, are rejected.

    Raises:
        ValueError: The shape is wrong, a number is not whole, or an index is not an action.
    """
    given = np.asarray(values)
    if given.ndim == 2 and given.shape[1] > 1:
        raise ValueError(
            f"{name} must have shape [n] or [n, 1], got {given.shape}: the actions are discrete; SAC, TD3, CQL and "
            "IQL learn from vectors of numbers, PPO and A2C from several discrete parts (nvec=)"
        )
    array = _column(name, given)
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # NaN and infinity are not whole numbers, and are found below
            floats, array = array, array.astype(np.int64)
        if (strange := np.flatnonzero(array != floats)).size:
            row = strange[0]
            raise ValueError(f"{name} must hold whole numbers (action indices), got {floats[row]} in row {row}")
    elif array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers (action indices), got dtype {array.dtype}")
    if array.size and (array.min() < 0 or (act_dim is not None and array.max() >= act_dim)):
        allowed = "at least 0" if act_dim is None else f"in 0..{act_dim - 1}"
        raise ValueError(f"{name} must be {allowed}, got {array.min()}..{array.max()}")
    return array.astype(np.int64, copy=False)


def floats_column(name: str, values: Any) -> NDArray[Any]:
    """Return numbers or flags as floats `[n]`, from `[n]` or `[n, 1]`; float32 and float64 do not change.

    Raises:
        ValueError: The shape is wrong, or they are not numbers.
    """
    found: NDArray[Any] = _numbers(name, np.asarray(values))
    return found


def _column(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 1:
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    raise ValueError(f"{name} must have shape [n] or [n, 1], got {array.shape}")


class Batch:
    """Columns with one row per entry, arrays or tensors of a framework; None for a missing column.

    Attributes:
        extra: Further columns by name, also available as `batch.<name>`; arrays `[n, ...]`, or dictionaries of such.

    Raises:
        ValueError: Columns differ in length, the batch is empty, or a column has another shape or kind.
    """

    NUMBERS: ClassVar[tuple[str, ...]] = ()
    """Columns with one number per row; `[n, 1]` becomes `[n]`, whole numbers and flags become float32."""
    ELSEWHERE: ClassVar[frozenset[str]] = frozenset({"extra", "state"})
    """Columns that do not have one entry per row."""
    RANGES: ClassVar[Mapping[str, tuple[float, str]]] = {}
    """The largest number of columns whose numbers begin at 0, and the advice for others."""
    SAME_SHAPE: ClassVar[tuple[str, ...]] = ()
    """Two columns of the same shapes."""

    checked: bool = False
    """True if the library made the batch."""

    def __post_init__(self) -> None:
        columns, rows = self.__dict__, None
        numbers, elsewhere, ranges = self.NUMBERS, self.ELSEWHERE, self.RANGES
        for name, value in columns.items():
            if value is None or name in elsewhere:
                continue
            if type(value) is not np.ndarray:
                if isinstance(value, Mapping):
                    columns[name] = value = map_nested(_as_array, value)
                elif not hasattr(value, "shape"):
                    columns[name] = value = np.asarray(value)
            if isinstance(value, dict):
                count = len(next(iter(leaves("", value, _as_array).values()), ()))
            else:
                shape = value.shape
                if name in numbers:
                    given = value
                    if len(shape) != 1 or type(value) is not np.ndarray or value.dtype.kind != "f":
                        columns[name] = value = _numbers(name, value)
                    if name in ranges and isinstance(value, np.ndarray) and len(value):
                        limit = ranges[name]
                        bits = _BITS.get((value.dtype, limit[0]))
                        if bits is None or np.maximum.reduce(value.view(bits.dtype)) > bits:
                            _check_range(name, value, given, limit)
                count = shape[0] if shape else -1
            rows = count if rows is None else rows
            if count != rows or count <= 0:
                raise self._unequal()
        if columns.get("extra"):
            self._check_extra(rows)
        if columns.get("state") is not None:
            self._check_state(rows)
        if self.SAME_SHAPE:
            one, other = columns[self.SAME_SHAPE[0]], columns[self.SAME_SHAPE[1]]
            if isinstance(one, dict) or isinstance(other, dict) or tuple(one.shape) != tuple(other.shape):
                _check_same_shapes(one, other)

    def _check_extra(self, rows: int | None) -> None:
        for name, value in self.extra.items():
            for leaf, array in leaves(name, value, _as_array).items():
                if not array.shape or array.shape[0] != rows:
                    raise ValueError(
                        f"{leaf} must have {rows} rows, one for each of the batch, got {tuple(array.shape)}"
                    )

    def _check_state(self, rows: int | None) -> None:
        state = self.__dict__["state"] = map_nested(_as_array, self.state)
        counts = {name: array.shape[0] if array.shape else 0 for name, array in state.items()}
        for name, count in counts.items():
            if count != next(iter(counts.values())) or not count or (rows or 0) % count:
                raise ValueError(
                    f"state[{name!r}] must have one row for each sequence, all of {rows} rows divided by their number, "
                    f"got {count}"
                )

    @classmethod
    def made(cls, **columns: Any) -> Self:
        """Return a batch of valid columns without a check."""
        batch = object.__new__(cls)
        batch.__dict__.update(columns, checked=True)
        return batch

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Return the batch with `function` of each column, and of each array of a column that is a dictionary."""
        columns = self.__dict__.items()
        return self.made(
            **{
                name: map_nested(function, value) if isinstance(value, Mapping) else function(value)
                for name, value in columns
                if value is not None and name != "checked"
            }
        )

    def rows(self, index: Any) -> Self:
        """Return the batch of some rows, selected by a slice or by integers (an array or a tensor, as the columns)."""
        return self.map(lambda column: column[index])

    @property
    def sequence_count(self) -> int:
        """Return the number of sequences of a batch with a `state`."""
        return int(next(iter(self.__dict__["state"].values())).shape[0])

    def sequences(self, index: Any) -> Self:
        """Return some sequences of a batch with a `state`, which has one entry before each sequence.

        Args:
            index: Indices of sequences, of the columns' type (arrays or tensors).
        """
        count = self.sequence_count

        def taken(column: Any) -> Any:
            rows, *rest = column.shape
            by_sequence = column.reshape([count, rows // count, *rest])[index]  # not -1, because a part may be empty
            return by_sequence.reshape([by_sequence.shape[0] * by_sequence.shape[1], *rest])

        found = {name: column for name, column in self.__dict__.items() if column is not None and name != "checked"}
        state = {name: array[index] for name, array in found.pop("state").items()}
        return self.made(**{name: map_nested(taken, column) for name, column in found.items()}, state=state)

    def named(self) -> dict[str, Any]:
        """Return the existing columns by name, including the extra ones."""
        found = {name: value for name, value in self.__dict__.items() if value is not None and name != "checked"}
        extra: Mapping[str, Any] = found.pop("extra", {})
        return {**found, **extra}

    def describe_not_finite(self) -> str | None:
        """Return a description of the first number that makes a loss not finite; None if there is none."""
        for name, column in self.named().items():
            for leaf, array in leaves(name, column, _host).items():
                # -inf is the logit of an action that is never taken. A Python float as the limit would be inf in
                # float16.
                largest = np.float32(np.inf if name == "behaviour_logits" else _LARGEST)
                strange = ~(np.abs(array) <= largest) if array.dtype.kind == "f" else np.zeros(1, np.bool_)
                if strange.any():
                    at = tuple(int(i) for i in np.argwhere(strange)[0])
                    place = f"{leaf}{list(at[1:])}" if len(at) > 1 else leaf
                    return f"{place} must be finite, got {array[at]} in row {at[0]}"
        return None

    def __getattr__(self, name: str) -> Any:
        extra = None if name.startswith("__") else self.__dict__.get("extra")
        if extra is not None and name in extra:
            return extra[name]
        raise AttributeError(f"{type(self).__name__} has no column {name!r}; it has {', '.join(self.named())}")

    def __len__(self) -> int:
        return rows_of(self.obs)

    def _unequal(self) -> ValueError:
        arrays: dict[str, Any] = {}
        for name, column in self.named().items():
            if name not in self.ELSEWHERE:
                arrays |= leaves(name, column, _as_array)
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in arrays.items())
        return ValueError(
            f"{type(self).__name__} needs arrays with the same number of rows, at least one; got {shapes}"
        )


def _as_array(value: Any) -> Any:
    return value if hasattr(value, "shape") else np.asarray(value)


def _host(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def _check_same_shapes(one: Any, other: Any) -> None:
    later = leaves("obs", other, _as_array)
    for name, array in leaves("obs", one, _as_array).items():
        # A lazily shaped layer would accept next observations of another shape.
        found = later.get(name, array)
        if tuple(found.shape) != tuple(array.shape):
            raise ValueError(
                f"next_{name} must have the shape of {name}, {tuple(array.shape)}, got {tuple(found.shape)}"
            )


def _numbers(name: str, column: Any) -> Any:
    shape = column.shape
    if len(shape) == 2 and shape[1] == 1:
        column = column[:, 0]
    elif len(shape) != 1:
        raise ValueError(f"{name} must have shape [n] or [n, 1], got {tuple(shape)}")
    if not isinstance(column, np.ndarray):
        return _as_floats(column)
    if column.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold numbers, got dtype {column.dtype}")
    return column if column.dtype.kind == "f" else column.astype(np.float32)


def _as_floats(tensor: Any) -> Any:
    """Return a tensor of whole numbers or flags as floats, because frameworks compute differently with them."""
    return tensor if "float" in str(tensor.dtype) else tensor * 1.0


def _check_range(name: str, column: NDArray[Any], given: NDArray[Any], limit: tuple[float, str]) -> None:
    largest, remedy = limit
    beyond = np.flatnonzero(~((column >= 0.0) & (column <= np.float64(largest))))  # the limit exceeds float16
    if beyond.size:
        row = int(beyond[0])
        raise ValueError(f"{name} must be {remedy.format(np.ravel(given)[row])} in row {row}{_PASS.get(name, '')}")


@dataclass(frozen=True)
class Transitions(Batch):
    """A batch of transitions, for off-policy algorithms and those that learn from logged data.

    Attributes:
        obs: `[n, ...]`, or a dictionary of arrays.
        action: `[n]` of discrete actions, else `[n, act_dim]`.
        reward: float `[n]`; with n-step returns their discounted sum.
        next_obs: As `obs`, n steps later with n-step returns.
        terminal: bool or float `[n]`; 1 where the episode terminated (truncation is 0: it bootstraps).
        weights: float `[n]`, importance weights of prioritised replay.
        discount: float `[n]`, `gamma**n` of each row.
        extra: Further columns, such as `next_action_mask` of DQN.
    """

    obs: Observations
    action: Any
    reward: Any
    next_obs: Observations
    terminal: Any
    weights: Any = None
    discount: Any = None
    extra: Any = None

    NUMBERS = ("reward", "terminal", "weights", "discount")
    RANGES = MappingProxyType({"terminal": _FLAG, "discount": _SHARE, "weights": _WEIGHT})
    SAME_SHAPE = ("obs", "next_obs")


@dataclass(frozen=True)
class Sequences(Batch):
    """Concatenated sequences of replayed steps, from which DQN learns with a model that has a memory.

    Each of the n sequences has S rows; the last ones only serve to bootstrap from.

    Attributes:
        obs: `[n * S, ...]`, or a dictionary of arrays.
        action: int64 `[n * S]`.
        reward: float `[n * S]`; with n-step returns their discounted sum.
        discount: float `[n * S]`, the factor of the bootstrapped value: 0 where the episode terminated before.
        ahead: int64 `[n * S]`, the row that each row bootstraps from.
        weights: float `[n * S]`, the weight of each row in the loss; 0 where nothing can be learned.
        begins: bool `[n * S]`, True where a row is the first of its episode.
        state: The state before the first row of each sequence, or before the steps that precede it, `[n, ...]` by name.
        before_obs: `[n * B, ...]`, the steps before each sequence, which only update the state.
        before_begins: bool `[n * B]`.
        extra: Further columns.
    """

    obs: Observations
    action: Any
    reward: Any
    discount: Any
    ahead: Any
    weights: Any
    begins: Any
    state: Any
    before_obs: Observations = None
    before_begins: Any = None
    extra: Any = None

    NUMBERS = ("reward", "discount", "weights")
    RANGES = MappingProxyType({"discount": _SHARE, "weights": _WEIGHT})
    ELSEWHERE = frozenset({"extra", "state", "before_obs", "before_begins"})


@dataclass(frozen=True)
class Rollout(Batch):
    """Experience of the policy that learns, flattened over environments and time; one row per step.

    Attributes:
        obs: `[n, ...]`, or a dictionary of arrays.
        action: int64 `[n]`, or int64 `[n, parts]` when multi-discrete, or float `[n, act_dim]` when continuous.
        value: float `[n]`, estimated by the policy that acted.
        return_: float `[n]`, the value function's target (advantage + value).
        log_prob: float `[n]`, of the action under the policy that acted.
        advantage: float `[n]`.
        action_mask: bool `[n, act_dim]`, True where an action was possible; None where all were, or where the
            observations have it.
        begins: bool `[n]`, of a model with a memory: True where a row is the first of its episode.
        state: The state of a model with a memory before each sequence, `[sequences, ...]` by name. The rows of a
            sequence are consecutive, and all sequences have the same length.
        extra: Further columns.
    """

    obs: Observations
    action: Any
    value: Any = None
    return_: Any = None
    log_prob: Any = None
    advantage: Any = None
    action_mask: Any = None
    extra: Any = None
    begins: Any = None
    state: Any = None

    NUMBERS: ClassVar[tuple[str, ...]] = ("value", "return_", "log_prob", "advantage")


@dataclass(frozen=True)
class TeamRollout(Rollout):
    """A rollout of several agents, with one row per step of the team and one column per agent.

    Attributes:
        obs: Joint observations as in `parl_core.env.joint.JointEnv`, `[n, ...]` by name.
        action: int64 `[n, agents]`, or float `[n, agents, act_dim]`.
        value: float `[n, agents]`, like `return_`, `log_prob` and `advantage`.
        active: float `[n, agents]`, 1 where the agent acted, 0 where it had left; None: all acted.
    """

    active: Any = None

    NUMBERS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, rollout: Rollout, numbers: Any) -> Self:
        """Convert a rollout of arrays or tensors to one of several agents, all of which acted at each step by default.

        Args:
            rollout: The rollout, of arrays or tensors.
            numbers: A column of it, `[n, agents]`.
        """
        active = rollout.__dict__.get("active")
        if active is None:
            active = np.ones_like(numbers) if isinstance(numbers, np.ndarray) else numbers.detach() * 0.0 + 1.0
        return cls.made(**{**rollout.__dict__, "active": active})

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = {name: self.__dict__[name] for name in ("value", "return_", "log_prob", "advantage", "active")}
        for name, column in columns.items():
            if column is not None and tuple(column.shape) != tuple(self.action.shape[:2]):
                raise ValueError(
                    f"{name} must have one number for each of the actions [n, agents], {tuple(self.action.shape[:2])}, "
                    f"got {tuple(column.shape)}"
                )


RolloutBatch = Rollout
"""The former name of `Rollout`."""


@dataclass(frozen=True)
class Fragment(Batch):
    """Concatenated fragments of T steps of slightly older policies, from which IMPALA learns.

    Attributes:
        obs: `[n * T, ...]`, or a dictionary of arrays.
        action: int64 `[n * T]`.
        behaviour_logits: float `[n * T, act_dim]`, of the policy that acted.
        reward: float `[n * T]`.
        done: bool or float `[n * T]`, 1 where an episode ended, terminated or truncated.
        last_obs: `[n, ...]`, the observation after each fragment's last step.
        final_rows: int64 `[k]`, the rows of truncated steps.
        final_obs: `[k, ...]`, the last observation of each of these episodes.
        state: The state of a model with a memory before each fragment, `[n, ...]` by name.
        last_state: The state before each of `last_obs`.
        final_state: The state before each of `final_obs`.
        extra: Further columns.
    """

    obs: Observations
    action: Any
    behaviour_logits: Any
    reward: Any
    done: Any
    last_obs: Observations = None
    final_rows: Any = None
    final_obs: Observations = None
    extra: Any = None
    state: Any = None
    last_state: Any = None
    final_state: Any = None

    NUMBERS = ("reward", "done")
    RANGES = MappingProxyType({"done": _FLAG})
    ELSEWHERE = frozenset({"extra", "last_obs", "final_rows", "final_obs", "state", "last_state", "final_state"})


@dataclass(frozen=True)
class Windows(Batch):
    """Windows of K steps of logged episodes, as the Decision Transformer learns from them.

    Attributes:
        obs: `[n, K, *obs]`.
        action: float `[n, K, act_dim]` in [-1, 1]; discrete ones as one-hot rows.
        return_to_go: float `[n, K, 1]`, divided by the scale.
        timestep: int64 `[n, K]`, steps since the episode began.
        mask: float or bool `[n, K]`, 1 for a step and 0 for padding, which comes first.
        extra: Further columns.
    """

    obs: Any
    action: Any
    return_to_go: Any
    timestep: Any
    mask: Any
    extra: Any = None


@dataclass(frozen=True)
class Columns:
    """The positional form of an algorithm's `learn`, and its conversion to a batch.

    Attributes:
        kind: The kind of the batch.
        names: The columns' names as arguments, in order, and their names in the batch.
        settings: Further arguments by place or name, such as learning rates.
        keywords: Further arguments by name: settings, and optional columns of the batch.
        extra: The keywords that are extra columns.
    """

    kind: type[Batch]
    names: Mapping[str, str]
    settings: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def signature(self) -> inspect.Signature:
        """Return the signature of the positional form, without `self`."""
        kinds = inspect.Parameter
        parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in self.names]
        parameters += [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=None) for name in self.settings]
        parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in (*self.keywords, *self.extra)]
        return inspect.Signature(parameters)

    def batch(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, recording: bool = False) -> tuple[Any, Any]:
        """Return the batch and the settings from the arguments of a call.

        Args:
            args: A batch and settings, or columns and settings.
            kwargs: The keyword arguments.
            recording: True if the arguments are placeholders from a program, of which only shapes are set.

        Raises:
            TypeError: An argument is missing or unknown.
            ValueError: As in the batch.
        """
        if args and isinstance(args[0], Batch):
            if len(args) == 1 and not kwargs:
                return args[0], kwargs
            settings = dict(zip(self.settings, args[1:], strict=False))
            if len(settings) < len(args) - 1 or settings.keys() & kwargs.keys():
                raise TypeError(
                    f"learn takes {' and '.join(('a batch', *self.settings))} by place, each once; got {len(args)} "
                    f"arguments by place{''.join(f', {name}=' for name in kwargs)}"
                )
            return args[0], settings | kwargs
        if len(args) == len(self.names) and not kwargs:
            columns, given = dict(zip(self.names.values(), args, strict=True)), kwargs
        else:
            try:
                given = self.signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"learn{self.signature}: {error}") from None
            columns = {column: given.pop(name) for name, column in self.names.items()}
            extra = {name: column for name in self.extra if (column := given.pop(name, None)) is not None}
            if extra:
                columns["extra"] = extra
            for name in self.keywords:
                if name in self.kind.__dataclass_fields__:  # type: ignore[attr-defined]  # every kind is a dataclass
                    columns[name] = given.pop(name, None)
        if not recording:
            return self.kind(**columns), given
        for name in self.kind.NUMBERS:
            if columns.get(name) is not None:
                columns[name] = _as_floats(columns[name].reshape([-1]))
        return self.kind.made(**columns), given

    def as_called(self, error: ValueError, args: tuple[Any, ...]) -> ValueError:
        """Return an error about a column with the name of its argument."""
        text = str(error)
        if args and isinstance(args[0], Batch):
            return error
        for name, column in self.names.items():
            if name != column and text.startswith((f"{column} must ", f"{column}[")):
                return type(error)(name + text.removeprefix(column))
        return error


def learns_from(
    kind: type[Batch],
    *,
    names: Sequence[str] | Mapping[str, str] = (),
    settings: Sequence[str] = (),
    keywords: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make `learn(self, batch, ...)` also accept the columns of the batch one by one, as in PARL 1.x and 2.x.

    Args:
        kind: The kind of the batch.
        names: Names of the columns as arguments, in order; a mapping to the names in the batch if they differ. Default:
            the required columns of the kind.
        settings: Arguments after the columns, by place or name.
        keywords: Arguments by name: settings, and optional columns.
        extra: Arguments by name that are extra columns.
    """
    if not names:
        names = [field.name for field in fields(kind) if field.default is not None]  # type: ignore[arg-type]  # a dataclass
    if not isinstance(names, Mapping):
        names = {name: name for name in names}
    columns = Columns(kind, names, tuple(settings), tuple(keywords), tuple(extra))

    def decorate(learn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(learn)
        def learn_any(self: Any, *args: Any, **kwargs: Any) -> Any:
            batch, settings = args[0] if args else None, args[1:]
            is_of_parl2 = False
            try:
                if not isinstance(batch, Batch):
                    is_of_parl2 = len(args) + len(kwargs) == len(columns.names)
                    (batch, kwargs), settings = columns.batch(args, kwargs, recording=self._is_recording()), ()
                if not batch.checked and holds_tensors(batch.action):
                    batch = self._fitted(batch).map(self._tensor)
            except ValueError as error:
                raise columns.as_called(error, args) from error.__cause__
            self._settle_threads()
            batch = self._with_choices(batch)
            if is_of_parl2 and self._learn_of_parl2 is not None:
                return self._learn_of_parl2(batch)
            return learn(self, batch, *settings, **kwargs)

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = columns.signature
        learn_any.__signature__ = positional.replace(parameters=[own, *positional.parameters.values()])  # type: ignore[attr-defined]  # `inspect` reads it
        learn_any.columns = columns  # type: ignore[attr-defined]  # agents read it
        return learn_any

    return decorate
