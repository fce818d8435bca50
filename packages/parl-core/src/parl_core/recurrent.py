"""Models with a memory: the protocol that loops, agents and algorithms share, and the layers with a memory.

    observation ──> model.remember(obs, state, begins) ──> features ──> the model's heads: policy, value
                         state ──┘           └──> state after the last step

A model has a memory where its class defines two methods; its heads, which algorithms call as those of any other model,
take the features that `remember` returns instead of observations:

    initial_state(rows)            arrays of zeros by name, each `[rows, ...]`
    remember(obs, state, begins)   (features `[rows * T, ...]`, the state after the last step)

`obs` are T steps of each of `rows` sequences, one sequence's steps after another's: `[rows * T, ...]`. `begins`, bool
`[rows * T]` or None, is true where a step is the first one of its episode; the state before it becomes exactly zero. If
observations are a dictionary with an `action_mask`, so are the features.

A state is a dictionary of float32 arrays with one row per environment: arrays of numpy outside of an algorithm, tensors
inside. Agents and models keep none: agents take and return it, loops hold it (`parl_core.training.acting.Acting`), and
batches contain the one before the first step of each sequence.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from parl_core._encoders import Layer
from parl_core.checks import check_int
from parl_core.errors import HyperparameterError
from parl_core.layers import Orthogonal

__all__ = ["GRU", "LSTM", "CausalTransformer", "Memory", "MemoryKind", "State", "has_memory", "zeros_of"]

MemoryKind = Literal["gru", "lstm", "transformer"]
"""The layers with a memory."""

State = Mapping[str, Any]
"""Arrays or tensors by name, `[rows, ...]`, or of one environment `[...]`."""


def has_memory(model: Any) -> bool:
    """Return whether a model follows the protocol above."""
    return hasattr(model, "implements") and all(map(model.implements, ("initial_state", "remember")))


def zeros_of(shapes: Mapping[str, tuple[int, ...]], rows: int) -> dict[str, NDArray[np.float32]]:
    """Return the state before the first step of an episode, for a number of environments."""
    return {name: np.zeros((rows, *shape), np.float32) for name, shape in shapes.items()}


def _steps_of(rows: int) -> list[int]:
    """Return the first sizes of steps `[rows, T, ...]`; in a program that is traced for any number of rows T is 1."""
    return [rows, -1] if rows >= 0 else [-1, 1]


class Memory(Layer):
    """A layer with a memory, which maps rows of features and a state to features of all steps so far.

    Attributes:
        shapes: The shape of each array of one environment's state.
    """

    shapes: dict[str, tuple[int, ...]]

    if TYPE_CHECKING:

        def __call__(self, features: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]  # layers without memory take features alone
            ...


class _Recurrent(Memory):
    NAMES: ClassVar[tuple[str, ...]]
    """The names of the arrays of its state, each `[rows, size]`."""

    _steps_with_any: Callable[[Any], Sequence[int]]
    """Returns the numbers of the columns of `[rows, T]` in which an entry is not zero."""

    def __init__(self, size: int, act: str = "tanh") -> None:
        super().__init__()
        self.size = check_int("memory_size", size)
        self.shapes = dict.fromkeys(self.NAMES, (size,))
        self.embedding = self._layers.fc(size, act=act, initial_weight=Orthogonal(sqrt(2.0)))
        self.cell = self._made_cell(size)

    def forward(self, features: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return outputs `[rows * T, size]` and the state after the last step; see `parl_core.recurrent`."""
        parts = tuple(state[name] for name in self.NAMES)
        reshape, rows = self._layers.reshape, parts[0].shape[0]
        steps = reshape(self.embedding(features), [*_steps_of(rows), self.size])
        begun = [] if begins is None else self._steps_with_any(reshape(begins, [rows, -1]))
        if not begun:
            outputs, parts = self._run(steps, parts)
            return reshape(outputs, [-1, self.size]), dict(zip(self.NAMES, parts, strict=True))
        # The framework's layer runs from one step to the next at which an episode begins anywhere.
        count = steps.shape[1]
        kept = 1.0 - reshape(self._layers.cast(begins, steps.dtype), [rows, count, 1])
        cuts = [step for step in begun if step > 0]
        pieces = []
        for start, stop in pairwise([0, *cuts, count]):
            parts = tuple(part * kept[:, start] for part in parts)
            outputs, parts = self._run(steps[:, start:stop], parts)
            pieces.append(outputs)
        outputs = pieces[0] if len(pieces) == 1 else self._layers.concat(pieces, axis=1)
        return reshape(outputs, [-1, self.size]), dict(zip(self.NAMES, parts, strict=True))

    def _made_cell(self, size: int) -> Any:
        """Return the framework's layer with equal numbers of inputs and outputs, orthogonal weights and zero biases."""
        raise NotImplementedError

    def _run(self, steps: Any, parts: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return the framework's outputs `[rows, T, size]` and the parts of the state after the last step."""
        raise NotImplementedError


class GRU(_Recurrent):
    """A layer of `size` units, and a gated recurrent unit over it (Cho et al. 2014, arXiv:1406.1078).

    Args:
        size: The size of the layer, the state and the outputs.
        act: Activation of the layer.
    """

    NAMES = ("hidden",)


class LSTM(_Recurrent):
    """A layer of `size` units, and a long short-term memory over it (Hochreiter & Schmidhuber 1997; Gers et al. 2000).

    Args:
        size: The size of the layer, both parts of the state, and the outputs.
        act: Activation of the layer.
    """

    NAMES = ("hidden", "cell")


class _Attention(Layer):
    """One block: attention to earlier steps, then two layers, each with a normalisation and a residual connection."""

    def __init__(self, size: int, heads: int, reach: int, act: str) -> None:
        super().__init__()
        fc, norm = self._layers.fc, self._layers.layer_norm
        self._heads = heads
        self.norm = norm()
        self.query, self.key, self.value = (fc(size, initial_weight=Orthogonal(1.0)) for _ in range(3))
        self.project = fc(size, initial_weight=Orthogonal(1.0))
        self.wide_norm = norm()
        self.wide = fc(4 * size, act=act, initial_weight=Orthogonal(sqrt(2.0)))
        self.narrow = fc(size, initial_weight=Orthogonal(1.0))
        self.nearness = self._layers.create_parameter([reach + 1, heads], is_bias=True)

    if TYPE_CHECKING:

        def __call__(self, steps: Any, before: Any, hidden: Any, distance: Any) -> Any: ...  # type: ignore[override]  # layers without memory take features alone

    def forward(self, steps: Any, before: Any, hidden: Any, distance: Any) -> Any:
        """Return the block's outputs `[rows, T, size]`.

        Args:
            steps: The inputs of the block `[rows, T, size]`.
            before: The inputs of the block at the steps before `[rows, reach, size]`.
            hidden: `[rows, 1, T, reach + T]`, 1 where a step (third axis) must not attend to another (fourth axis),
                else 0.
            distance: int64 `[T * (reach + T)]`, the number of steps between both.
        """
        reshape, swap = self._layers.reshape, self._layers.transpose
        rows, count, size = steps.shape
        everything = self._layers.concat([before, steps], axis=1)

        def split(layer: Any, inputs: Any) -> Any:
            outputs = layer(reshape(inputs, [-1, size]))
            return reshape(outputs, [rows, inputs.shape[1], self._heads, size // self._heads])

        query = swap(split(self.query, self.norm(steps)), [0, 2, 1, 3])
        looked_at = self.norm(everything)
        key, value = swap(split(self.key, looked_at), [0, 2, 3, 1]), swap(split(self.value, looked_at), [0, 2, 1, 3])
        nearness = reshape(self._layers.gather(self.nearness, distance), [count, everything.shape[1], self._heads])
        scores = (query @ key) * (self._heads / size) ** 0.5 + swap(nearness, [2, 0, 1])
        # float16 can represent -32768 but not -1e9; exp of either is 0.
        attention = self._layers.softmax(scores - 32768.0 * hidden)
        seen = reshape(swap(attention @ value, [0, 2, 1, 3]), [-1, size])
        flat = reshape(steps, [-1, size]) + self.project(seen)
        return reshape(flat + self.narrow(self.wide(self.wide_norm(flat))), [rows, count, size])


class CausalTransformer(Memory):
    """Blocks of attention to the present step and a fixed number of steps before it, of the same episode.

    Blocks are as in GPT-2 (normalisation first), with a learned term for each distance instead of positions (Raffel et
    al. 2020, arXiv:1910.10683, section 2.1). As in Transformer-XL (Dai et al. 2019, arXiv:1901.02860), a block looks at
    its inputs at the earlier steps, so that its state is those inputs and one step costs no more than one step.

    Args:
        size: The size of features and outputs, a multiple of `heads`.
        act: Activation of the wide layer of each block.
        reach: Number of steps before the present one to which a block attends.
        blocks: Number of blocks.
        heads: Number of attention heads.

    Raises:
        HyperparameterError: `size` is not a multiple of `heads`.
    """

    _layer_list: ClassVar[Callable[..., Any]]
    _attention: ClassVar[Callable[..., Any]]

    def __init__(self, size: int, act: str = "relu", *, reach: int = 16, blocks: int = 1, heads: int = 2) -> None:
        super().__init__()
        if check_int("memory_size", size) % check_int("heads", heads):
            raise HyperparameterError(f"memory_size must be a multiple of {heads} heads, got {size}")
        self.size, self.reach = size, check_int("reach", reach)
        self.shapes = {"inputs": (check_int("blocks", blocks), reach, size), "there": (reach,)}
        self.embedding = self._layers.fc(size, initial_weight=Orthogonal(1.0))
        self.blocks = self._layer_list([type(self)._attention(size, heads, reach, act) for _ in range(blocks)])
        self.norm = self._layers.layer_norm()

    def forward(self, features: Any, state: State, begins: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return outputs `[rows * T, size]` and the state after the last step; see `parl_core.recurrent`."""
        reshape, concat = self._layers.reshape, self._layers.concat
        inputs, there, rows = state["inputs"], state["there"], state["there"].shape[0]
        steps = reshape(self.embedding(features), [*_steps_of(rows), self.size])
        count = steps.shape[1]
        present = there[:, :1] * 0.0 + self._constant(np.ones((1, count), np.float32), there)
        if begins is None:
            same_before, same = present, present.unsqueeze(2) * present.unsqueeze(1)
        else:
            episode = self._layers.cast(reshape(begins, [rows, count]), there.dtype).cumsum(1)
            same_before = self._layers.cast(episode == 0.0, there.dtype)
            same = self._layers.cast(episode.unsqueeze(2) == episode.unsqueeze(1), there.dtype)
        allowed = concat([same_before.unsqueeze(2) * there.unsqueeze(1), same], axis=2)
        apart = self.reach + np.arange(count)[:, None] - np.arange(self.reach + count)[None]
        near = self._constant(((apart >= 0) & (apart <= self.reach)).astype(np.float32)[None], there)
        distance = self._constant(apart.clip(0, self.reach).reshape(-1), there)
        hidden = (1.0 - allowed * near).unsqueeze(1)
        kept = []
        for i, block in enumerate(self.blocks):
            kept.append(concat([inputs[:, i], steps], axis=1)[:, -self.reach :])
            steps = block(steps, inputs[:, i], hidden, distance)
        there = concat([there * same_before[:, -1:], same[:, -1]], axis=1)[:, -self.reach :]
        after = {"inputs": self._layers.stack(kept, axis=1) * there.unsqueeze(1).unsqueeze(3), "there": there}
        return reshape(self.norm(steps), [-1, self.size]), after

    def _constant(self, array: NDArray[Any], like: Any) -> Any:
        """Return a tensor of the values of an array on the device of another tensor, floats in the dtype of that."""
        raise NotImplementedError
