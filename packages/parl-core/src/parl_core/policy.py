"""Trained policies with numpy alone: load an exported file, and choose actions for observations.

    from parl_core.policy import load

    policy = load("agent.policy")
    action = policy(observation)

A policy that remembers takes the state of the step before, and returns the one after with the action:

    state = policy.initial_state()  # at the start of each episode
    action, state = policy(observation, state=state)

The policies of several agents are one: it takes what all agents observe (`obs`, and `action_mask` where actions are
choices) as `parl_core.env.joint.JointEnv` has it, and returns the action of each. No action depends on what other
agents observe, so an agent can also act alone: with zeros for the observations of the others and ones for their masks,
its row of the result is its action.

Observations are those of the environment and actions such as its `step` takes: normalisation, masks and the mapping of
actions to their bounds are inside. `parl export RUN --to numpy` and `parl_core.export` write the files.

A file is laid out as safetensors: the length of a JSON header (8 bytes, little-endian), the header, and the arrays. The
header's `__metadata__` has `parl`, a JSON object, and `crc32` of the table of arrays, of that text and of the arrays:

    format, version     "parl-policy", 1
    written_by          such as "parl-core 0.1.0"
    algorithm           name of the algorithm that was trained, for messages
    observation         {"shape", "dtype"}, or {"dict": {name: ...}}, or {"tuple": [...]}
    mask                whether observations bring a mask of actions in their entry `action_mask`
    network             {"kind": ...}: a tree of layers, of which `_LAYERS` lists the kinds, with names of arrays
    memory              {"kind", "front", ...}: the memory between the layers `front` and `network`
    sizes               number of choices of each part of an action, whose scores are concatenated
    action              how parts become an action: {"choice"}, {"choices"}, {"box"}, {"dict"} or {"tuple"}

Nothing is ever unpickled, and a file with invalid content raises an error when it is loaded.
"""

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from parl_core.errors import CheckpointError

__all__ = ["FORMAT", "VERSION", "Policy", "load", "pack"]

FORMAT = "parl-policy"
"""Name of the file format, in the header of each file."""

VERSION = 1
"""Version of the format that this module writes and reads."""

_Arrays = Mapping[str, NDArray[Any]]
_Node = Mapping[str, Any]
_Function = Callable[[Any], Any]

_LENGTH = struct.Struct("<Q")
_DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8"}
_IMAGES_AT_ONCE = 16  # more need memory for the windows of convolutions, and are no faster


class Policy:
    """A trained policy; calls do not change it, so threads may share one.

    Args:
        description: The content of a file's header.
        arrays: Weights and bounds by name.

    Attributes:
        description: The description as given.

    Raises:
        CheckpointError: They do not fit together, or have an unknown part.
    """

    def __init__(self, description: Mapping[str, Any], arrays: _Arrays) -> None:
        self.description, self._arrays = description, arrays
        try:
            self._observation = description["observation"]
            self._is_array = "shape" in self._observation
            self._shape = tuple(self._observation["shape"]) if self._is_array else ()
            self._has_mask = bool(description["mask"])
            memory = description.get("memory")
            self._memory = None if memory is None else _Memory(memory, arrays)
            self._network = _layer(description["network"], arrays)
            self._sizes = tuple(int(size) for size in description["sizes"])
            self._edges = tuple(accumulate(self._sizes, initial=0))
            self._action = _Actions(arrays).of(description["action"])
            inputs = self._batched(_zeros(self._observation))[0]
            scores = self._scored(inputs, self.initial_state(1))[0]
            self._columns = scores.shape[1]
            self._of_scores(scores, None)
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            raise CheckpointError(f"the description of the policy does not fit its arrays: {error!r}") from error

    def initial_state(self, rows: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the state before the first step of an episode: zeros by name; empty for a policy without a memory.

        Args:
            rows: Number of observations of a batch; None for one observation.
        """
        shapes = {} if self._memory is None else self._memory.shapes
        lead = () if rows is None else (rows,)
        return {name: np.zeros((*lead, *shape), np.float32) for name, shape in shapes.items()}

    def __call__(self, observation: Any, *, action_mask: Any = None, state: Any = None) -> Any:
        """Return the best action.

        Args:
            observation: An observation of the environment, or a batch `[n, ...]`: arrays, numbers or lists, in
                dictionaries or tuples as the space has them.
            action_mask: True where an action is possible, `[choices]` or `[n, choices]`; default: the entry
                `action_mask` of the observation, where it has one.
            state: The state of a policy with a memory: the one that it returned at the previous step, or
                `initial_state`; default: the latter.

        Returns:
            The action for the environment's `step`; for a batch, actions `[n, ...]`, or dictionaries or tuples of
            arrays. With a memory a pair of it and the state after this step.

        Raises:
            ValueError: The observation or the state has another shape or holds a NaN, or the mask leaves no action.
        """
        return self._act(observation, action_mask, state)

    def sample(self, observation: Any, rng: np.random.Generator, *, action_mask: Any = None, state: Any = None) -> Any:
        """Draw an action with a probability in proportion to the exponential of its score, as PPO and A2C explore.

        Args:
            observation: As in a call.
            rng: The generator to draw from.
            action_mask: As in a call.
            state: As in a call.

        Raises:
            ValueError: As in a call, or an action is not a single choice.
        """
        if len(self._sizes) != 1 or self._columns != self._edges[-1]:
            raise ValueError(
                f"sample draws one choice of several; actions of this policy are {self._action_in_words()}"
            )
        # The largest of the sums is such a draw: Gumbel 1954.
        return self._act(observation, action_mask, state, lambda scores: scores + rng.gumbel(size=scores.shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.description, self._arrays)

    def to_bytes(self) -> bytes:
        """Return the content of a file, which `from_bytes` reads, and `load` once it is written."""
        return pack(self.description, self._arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> "Policy":
        """Return the policy of a file's content.

        Raises:
            CheckpointError: It is damaged, not a policy, or of an unknown version.
        """
        return cls(*_unpacked(content))

    def scores(self, observation: Any, *, state: Any = None) -> NDArray[Any]:
        """Return the scores of choices, then the numbers, `[n, columns]` (one observation is a batch of one).

        Raises:
            ValueError: The observation or the state has another shape or holds a NaN.
        """
        inputs, single = self._batched(observation)
        return self._scored(inputs, self._states(state, inputs, single))[0]

    def _act(
        self, observation: Any, mask: Any, state: Any, drawn: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    ) -> Any:
        inputs, single = self._batched(observation)
        if self._has_mask and mask is None:
            mask = inputs["action_mask"]
        elif mask is not None:
            mask = np.asarray(mask)[None] if single else np.asarray(mask)
        scores, after = self._scored(inputs, self._states(state, inputs, single))
        actions = self._of_scores(scores if drawn is None else drawn(scores), mask)
        if single:
            actions, after = _row(actions), {name: array[0] for name, array in after.items()}
        return actions if self._memory is None else (actions, after)

    def _states(self, given: Any, inputs: Any, single: bool) -> dict[str, NDArray[np.float32]]:
        """Return the state before a batch of observations.

        Raises:
            ValueError: It is not that of such a batch.
        """
        if self._memory is None:
            if given is not None:
                raise ValueError("this policy has no memory, and takes no state")
            return {}
        while isinstance(inputs, dict):
            inputs = next(iter(inputs.values()))
        expected = self.initial_state(len(inputs))
        if given is None:
            return expected
        if not isinstance(given, Mapping) or set(given) != set(expected):
            raise ValueError(f"state must be a dictionary of {', '.join(expected)}, as the policy returns it")
        found = {name: np.asarray(given[name], np.float32) for name in expected}
        if single:
            found = {name: array[None] for name, array in found.items()}
        for name, array in found.items():
            if array.shape != expected[name].shape:
                raise ValueError(
                    f"state[{name!r}] must have shape {list(expected[name].shape)}, got {list(array.shape)}"
                )
        return found

    def _action_in_words(self) -> str:
        return f"{len(self._sizes)} choices and {self._columns - self._edges[-1]} numbers"

    def _batched(self, observation: Any) -> tuple[Any, bool]:
        if not self._is_array:
            return _batched(self._observation, observation, "observation")
        return _batch(observation, self._shape, "observation")

    def _scored(self, inputs: Any, state: dict[str, NDArray[np.float32]]) -> tuple[NDArray[Any], Any]:
        with np.errstate(invalid="ignore", over="ignore"):  # results of infinite numbers raise an error below
            if self._memory is not None:
                inputs, state = self._memory(inputs, state)
            scores: NDArray[Any] = self._network(inputs)
        if not np.isfinite(scores).all():
            raise ValueError("the policy returns NaN or infinity for this observation: look for such numbers in it")
        return scores, state

    def _of_scores(self, scores: NDArray[Any], mask: Any) -> Any:
        edges = self._edges
        choices = scores[:, : edges[-1]]
        if mask is not None:
            choices = np.where(self._possible(mask, choices.shape), choices, -np.inf)
        if len(self._sizes) == 1:
            chosen = choices.argmax(1)[:, None]
        else:
            parts = [choices[:, low:high].argmax(1) for low, high in pairwise(edges)]
            chosen = np.stack(parts, 1) if parts else np.zeros((len(scores), 0), np.int64)
        return self._action(chosen, scores[:, edges[-1] :])

    def _possible(self, mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        if mask.ndim == 3:  # of several agents
            mask = mask.reshape(len(mask), -1)
        if mask.shape != shape:
            raise ValueError(f"action_mask must have shape {list(shape[1:])} an observation, got {list(mask.shape)}")
        possible: NDArray[np.bool_] = mask != 0
        if mask.dtype != np.bool_ and (possible != (mask == 1)).any():
            raise ValueError(f"action_mask must hold booleans or 0 and 1, got dtype {mask.dtype} with other numbers")
        for low, high in pairwise(self._edges):
            if not possible[:, low:high].any(1).all():
                raise ValueError("action_mask leaves no action: at least one of each part must be possible")
        return possible


def load(path: str | os.PathLike[str]) -> Policy:
    """Return the policy of a file.

    Raises:
        CheckpointError: There is no such file, it is damaged, not a policy, or of an unknown version; the
            message names the file.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"cannot read {name}: {error.strerror or error}") from error
    try:
        return Policy.from_bytes(content)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error


def pack(description: Mapping[str, Any], arrays: _Arrays) -> bytes:
    """Return the content of a file; the version and the checksum are added here.

    Args:
        description: The other entries of the header.
        arrays: float32, float64 or int64.
    """
    codes = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
    pieces, table, end = [], {}, 0
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        piece = array.astype(array.dtype.newbyteorder("<")).tobytes()
        table[name] = {
            "dtype": codes[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + len(piece)],
        }
        pieces.append(piece)
        end += len(piece)
    text = json.dumps({"format": FORMAT, "version": VERSION, **description})
    data = b"".join(pieces)
    metadata = {"parl": text, "crc32": str(_checksum(table, text, data))}
    header = json.dumps({"__metadata__": metadata, **table}).encode()
    header += b" " * (-len(header) % 8)
    return _LENGTH.pack(len(header)) + header + data


def _unpacked(content: bytes) -> tuple[Mapping[str, Any], _Arrays]:
    """Return description and arrays of a file's content.

    Raises:
        CheckpointError: It is damaged, no policy, or of another version.
    """
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        if start > len(content):
            raise ValueError("it ends within its header")
        table = json.loads(content[_LENGTH.size : start])
        metadata = table.pop("__metadata__")
        text, checksum = metadata["parl"], metadata.get("crc32")
        description = json.loads(text)
        is_policy, version = description["format"] == FORMAT, description["version"]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"damaged, or no policy that `parl export --to numpy` wrote: {error!r}") from error
    if not is_policy:
        raise CheckpointError(f"this is a file of the format {description['format']!r}, not {FORMAT!r}")
    if version != VERSION:
        raise CheckpointError(
            f"it has version {version!r}, written by {description.get('written_by')}; this parl-core reads version "
            f"{VERSION}: pip install --upgrade parl-core"
        )
    data = memoryview(content)[start:]
    if checksum != str(_checksum(table, text, data)):
        raise CheckpointError("it is damaged: its checksum is wrong")
    try:
        return description, {name: _array(entry, data) for name, entry in table.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"damaged: its table of arrays does not fit its length: {error!r}") from error


def _array(entry: Mapping[str, Any], data: memoryview) -> NDArray[Any]:
    low, high = entry["data_offsets"]
    return np.frombuffer(data[low:high], _DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _checksum(table: Mapping[str, Any], text: str, data: bytes | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(json.dumps([sorted(table.items()), text]).encode()))


# Observations


def _batched(space: _Node, observation: Any, name: str) -> tuple[Any, bool]:
    """Return arrays `[n, ...]` in dictionaries, those of tuples under "0", "1", …, and whether it was one observation.

    Raises:
        ValueError: A part is missing or has another shape.
    """
    if "shape" in space:
        return _batch(observation, tuple(space["shape"]), name)
    if "tuple" in space:
        if not isinstance(observation, (tuple, list)) or len(observation) != len(space["tuple"]):
            raise ValueError(f"{name} must be a tuple of {len(space['tuple'])} parts, got {type(observation).__name__}")
        named = enumerate(zip(space["tuple"], observation, strict=True))
        parts = {str(key): _batched(part, value, f"{name}[{key}]") for key, (part, value) in named}
    else:
        missing = [key for key in space["dict"] if not isinstance(observation, Mapping) or key not in observation]
        if missing:
            raise ValueError(f"{name} must be a dictionary with the entries {list(space['dict'])}; it lacks {missing}")
        parts = {key: _batched(part, observation[key], f"{name}[{key!r}]") for key, part in space["dict"].items()}
    singles = {single for _, single in parts.values()}
    if len(singles) > 1:
        raise ValueError(f"some parts of {name} look like one observation, some like a batch")
    return {key: value for key, (value, _) in parts.items()}, singles.pop()


def _batch(observation: Any, shape: tuple[int, ...], name: str) -> tuple[NDArray[Any], bool]:
    array = np.asarray(observation)
    if array.dtype.kind not in "fuib":
        raise ValueError(f"{name} must hold numbers, got dtype {array.dtype}")
    if array.shape == shape:
        return array[None], True
    if array.ndim and array.shape[1:] == shape:
        return array, False
    raise ValueError(f"{name} must have shape {list(shape)}, or {['n', *shape]} of a batch, got {list(array.shape)}")


def _zeros(space: _Node) -> Any:
    if "shape" in space:
        return np.full(space["shape"], space.get("first", 0), space["dtype"])
    if "tuple" in space:
        return tuple(_zeros(part) for part in space["tuple"])
    return {key: _zeros(part) for key, part in space["dict"].items()}


# Layers


def _layer(node: _Node, arrays: _Arrays) -> _Function:
    """Return the function that a layer computes.

    Raises:
        CheckpointError: The kind of a layer is not known.
    """
    if node["kind"] not in _LAYERS:
        raise CheckpointError(f"it has a layer {node['kind']!r}, which this parl-core does not know: upgrade parl-core")
    return _LAYERS[node["kind"]](node, arrays)


def _chain(node: _Node, arrays: _Arrays) -> _Function:
    layers = [_layer(layer, arrays) for layer in node["layers"]]

    def run(values: Any) -> Any:
        for layer in layers:
            values = layer(values)
        return values

    return run


def _normalized(node: _Node, arrays: _Arrays) -> _Function:
    mean, clip = arrays[node["mean"]], float(node["clip"])
    deviation = np.sqrt(arrays[node["var"]] + float(node["epsilon"]))

    def run(observations: Any) -> Any:
        scaled = (observations - mean) / deviation
        if not np.isfinite(scaled).all():
            raise ValueError("the observation holds NaN or infinity")
        return np.minimum(np.maximum(scaled, -clip), clip).astype(np.float32)

    return run


def _cast(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    dtype = np.dtype(node["dtype"])
    return lambda values: values if values.dtype == dtype else values.astype(dtype)


def _fc(node: _Node, arrays: _Arrays) -> _Function:
    weight, bias = arrays[node["weight"]].T, _optional(node["bias"], arrays)
    act, dot = _activation(node["act"]), np.dot

    def run(values: NDArray[Any]) -> NDArray[Any]:
        if values.ndim != 2:
            values = values.reshape(len(values), -1)
        outputs = dot(values, weight)
        if bias is not None:
            outputs += bias
        return outputs if act is None else act(outputs)

    return run


def _conv2d(node: _Node, arrays: _Arrays) -> _Function:
    weight, bias, act = arrays[node["weight"]], _optional(node["bias"], arrays), _activation(node["act"])
    (rows, columns), (down, right) = node["stride"], node["dilation"]
    border = [(0, 0), (0, 0), *((size, size) for size in node["padding"])]
    filters, _, height, width = weight.shape
    window = ((height - 1) * down + 1, (width - 1) * right + 1)
    matrix = np.ascontiguousarray(weight.reshape(filters, -1).T)

    def run(images: NDArray[Any]) -> NDArray[Any]:
        if len(images) > _IMAGES_AT_ONCE:
            return np.concatenate(
                [run(images[i : i + _IMAGES_AT_ONCE]) for i in range(0, len(images), _IMAGES_AT_ONCE)]
            )
        if border[2:] != [(0, 0), (0, 0)]:
            images = np.pad(images, border)
        seen = sliding_window_view(images, window, axis=(2, 3))[:, :, ::rows, ::columns, ::down, ::right]
        count, _, high, wide = seen.shape[:4]
        outputs = seen.transpose(0, 2, 3, 1, 4, 5).reshape(count * high * wide, -1) @ matrix
        if bias is not None:
            outputs += bias
        if act is not None:
            outputs = act(outputs)
        return np.asarray(outputs.reshape(count, high, wide, filters).transpose(0, 3, 1, 2))

    return run


def _affine(node: _Node, arrays: _Arrays) -> _Function:
    weight, bias, act = arrays[node["weight"]], arrays[node["bias"]], _activation(node["act"])

    def run(values: NDArray[Any]) -> NDArray[Any]:
        shape = (-1, *(1 for _ in values.shape[2:]))
        outputs: NDArray[Any] = values * weight.reshape(shape) + bias.reshape(shape)
        return outputs if act is None else act(outputs)

    return run


def _layer_norm(node: _Node, arrays: _Arrays) -> _Function:
    weight, bias = arrays[node["weight"]], arrays[node["bias"]]
    act, epsilon = _activation(node["act"]), float(node["epsilon"])

    def run(values: NDArray[Any]) -> NDArray[Any]:
        centred = values - values.mean(-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
        outputs = centred / deviation * weight + bias
        return outputs if act is None else act(outputs)

    return run


def _residual(node: _Node, arrays: _Arrays) -> _Function:
    inner = _layer(node["layer"], arrays)
    return lambda values: values + inner(values)


def _dueling(node: _Node, arrays: _Arrays) -> _Function:
    value, advantage = _layer(node["value"], arrays), _layer(node["advantage"], arrays)
    groups = int(node.get("groups", 1))

    def run(values: Any) -> Any:
        rows = len(values)
        each = advantage(values).reshape(rows, groups, -1)
        of_state = value(values).reshape(rows, groups, 1)
        return (of_state + each - each.mean(2, keepdims=True)).reshape(rows, -1)

    return run


def _mean(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    groups = int(node["groups"])
    return lambda values: values.reshape(len(values), groups, -1).mean(1)


def _expectation(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    """Return a function that computes each action's mean value from its logits, one for each evenly spaced value."""
    groups = int(node["groups"])
    support = np.linspace(float(node["low"]), float(node["high"]), groups)

    def run(logits: Any) -> Any:
        each = logits.reshape(len(logits), groups, -1)
        powers = np.exp(each - each.max(1, keepdims=True))
        return np.asarray(np.einsum("nga,g->na", powers, support) / powers.sum(1), logits.dtype)

    return run


def _columns(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    stop = int(node["stop"])
    return lambda values: values[:, :stop]


def _activation_alone(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    act = _ACTIVATIONS[node["act"]]
    return lambda values: act(values.copy())


def _clip(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    low, high = float(node["low"]), float(node["high"])
    return lambda values: values.clip(low, high)


def _scaled(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    divisor = np.float32(node["divisor"])
    return lambda values: values / divisor


def _planes(node: _Node, arrays: _Arrays) -> _Function:  # noqa: ARG001 - as the others
    """Return a function that converts the environment's images to planes `[n, planes, height, width]`."""
    frames, channels, height, width = (int(node[name]) for name in ("frames", "channels", "height", "width"))
    order = ((0, 1, 4, 2, 3) if frames else (0, 3, 1, 2)) if node["last"] else None
    low, span = np.float32(node["low"]), np.float32(node["span"])
    planes = max(frames, 1) * max(channels, 1)

    def run(images: NDArray[Any]) -> NDArray[Any]:
        pixels = images.astype(np.float32)
        if order is not None:
            pixels = pixels.transpose(order)
        pixels = pixels.reshape(len(pixels), planes, height, width)
        return (pixels - low) / span

    return run


def _encoder(node: _Node, arrays: _Arrays) -> _Function:
    """Return a function that computes rows of features from observations in several parts."""
    parts = [_part(part, arrays) for part in node["parts"]]

    def run(observations: Any) -> NDArray[Any]:
        features = [feature for part in parts for feature in part(observations)]
        return features[0] if len(features) == 1 else np.concatenate(features, 1)

    return run


def _part(node: _Node, arrays: _Arrays) -> Callable[[Any], list[NDArray[Any]]]:
    path = tuple(node["path"])

    def found(observations: Any) -> NDArray[Any]:
        for key in path:
            observations = observations[key]
        array: NDArray[Any] = observations
        return array

    if "image" in node:
        layers = _layer(node["image"], arrays)
        return lambda observations: [layers(found(observations))]
    if "choices" not in node:
        return lambda observations: [_matrix(found(observations)).astype(np.float32)]
    choices = [(int(size), int(start), _optional(table, arrays)) for size, start, table in node["choices"]]

    def run(observations: Any) -> list[NDArray[Any]]:
        columns = _matrix(found(observations))
        return [_chosen(columns[:, i], size, start, table) for i, (size, start, table) in enumerate(choices)]

    return run


def _matrix(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(len(array), -1)


def _chosen(column: NDArray[Any], size: int, start: int, table: NDArray[Any] | None) -> NDArray[Any]:
    whole = column.astype(np.int64)
    choice = whole - start
    if ((whole != column) | (choice < 0) | (choice >= size)).any():
        raise ValueError(f"an observation that is one of {size} choices has a number outside of them")
    if table is not None:
        row: NDArray[Any] = table[choice]
        return row
    one_hot = np.zeros((len(choice), size), np.float32)
    one_hot[np.arange(len(choice)), choice] = 1.0
    return one_hot


class _Team:
    """The agents of a layer with one part for each group of them.

    Attributes:
        groups: The agents of each group.
    """

    def __init__(self, node: _Node) -> None:
        self.groups = [[int(agent) for agent in group] for group in node["groups"]]
        self._agents, self._numbered = int(node["agents"]), bool(node["numbered"])
        self._order = np.argsort([agent for group in self.groups for agent in group])

    def rows_of_groups(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the rows of each group, `[n * members, in]`, of the values of all agents, `[n, agents * in]`."""
        each = values.reshape(len(values), self._agents, values.shape[1] // self._agents)
        for members in self.groups:
            rows = each[:, members]
            if self._numbered and len(members) > 1:
                numbers = np.eye(self._agents, dtype=rows.dtype)[members]
                rows = np.concatenate([rows, np.broadcast_to(numbers, (len(rows), *numbers.shape))], 2)
            yield _rows_of(rows)

    def in_order(self, results: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return results of all groups, each `[n * members, ...]`, as `[n, agents, ...]`."""
        parts = zip(results, self.groups, strict=True)
        each = [found.reshape(len(found) // len(members), len(members), *found.shape[1:]) for found, members in parts]
        return np.concatenate(each, 1)[:, self._order]


def _rows_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return `[n, agents, ...]` as one row per agent."""
    return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])


def _joined(values: NDArray[Any]) -> NDArray[Any]:
    """Return `[n, agents, out]` with the outputs of all agents side by side."""
    return values.reshape(len(values), values.shape[1] * values.shape[2])


def _of_agents(node: _Node, arrays: _Arrays) -> _Function:
    """Return a function that computes outputs `[n, agents * out]` of inputs `[n, agents * in]`, agent by agent."""
    team = _Team(node)
    parts = [_layer(part, arrays) for part in node["parts"]]

    def run(values: NDArray[Any]) -> NDArray[Any]:
        rows = team.rows_of_groups(values)
        return _joined(team.in_order([part(each) for part, each in zip(parts, rows, strict=True)]))

    return run


_LAYERS: Mapping[str, Callable[[_Node, _Arrays], _Function]] = {
    "activation": _activation_alone,
    "affine": _affine,
    "agents": _of_agents,
    "cast": _cast,
    "chain": _chain,
    "clip": _clip,
    "columns": _columns,
    "conv2d": _conv2d,
    "dueling": _dueling,
    "encoder": _encoder,
    "expectation": _expectation,
    "fc": _fc,
    "layer_norm": _layer_norm,
    "mean": _mean,
    "normalized": _normalized,
    "planes": _planes,
    "residual": _residual,
    "scaled": _scaled,
}


# Memories


class _Memory:
    """A recurrent layer with the layers in front of it.

    Attributes:
        shapes: The shape of each array of the state of one observation.
    """

    def __init__(self, node: _Node, arrays: _Arrays) -> None:
        kind = node["kind"]
        if kind not in _MEMORIES:
            raise CheckpointError(f"it has a memory {kind!r}, which this parl-core does not know: upgrade parl-core")
        self.shapes = {name: tuple(shape) for name, shape in node["state"].items()}
        self._front, self._step = _layer(node["front"], arrays), _MEMORIES[kind](node, arrays)

    def __call__(self, inputs: Any, state: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        return self._step(self._front(inputs), state)


_Step = Callable[[NDArray[Any], dict[str, NDArray[Any]]], tuple[NDArray[Any], dict[str, NDArray[Any]]]]


def _gates(node: _Node, arrays: _Arrays) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    of_input, of_state, bias, state_bias = (arrays[name] for name in node["weights"])
    return of_input.T, of_state.T, bias, state_bias


def _gru(node: _Node, arrays: _Arrays) -> _Step:
    of_input, of_state, bias, state_bias = _gates(node, arrays)
    size = len(of_state)

    def step(x: NDArray[Any], state: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        before = state["hidden"]
        seen, kept = x @ of_input + bias, before @ of_state + state_bias
        both = _sigmoid(seen[:, : 2 * size] + kept[:, : 2 * size])
        reset, update = both[:, :size], both[:, size:]
        new = np.tanh(seen[:, 2 * size :] + reset * kept[:, 2 * size :])
        hidden = (1.0 - update) * new + update * before
        return hidden, {"hidden": hidden}

    return step


def _lstm(node: _Node, arrays: _Arrays) -> _Step:
    of_input, of_state, bias, state_bias = _gates(node, arrays)
    size = len(of_state)

    def step(x: NDArray[Any], state: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        gates = x @ of_input + bias + state["hidden"] @ of_state + state_bias
        keep = _sigmoid(gates[:, size : 2 * size]) * state["cell"]
        cell = keep + _sigmoid(gates[:, :size]) * np.tanh(gates[:, 2 * size : 3 * size])
        hidden = _sigmoid(gates[:, 3 * size :]) * np.tanh(cell)
        return hidden, {"hidden": hidden, "cell": cell}

    return step


def _transformer(node: _Node, arrays: _Arrays) -> _Step:
    blocks = [_attention(block, arrays) for block in node["blocks"]]
    norm = _layer(node["norm"], arrays)

    def step(x: NDArray[Any], state: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        seen = np.concatenate([state["there"], np.ones((len(x), 1), np.float32)], 1)
        kept = []
        for i, block in enumerate(blocks):
            steps = np.concatenate([state["inputs"][:, i], x[:, None]], 1)
            kept.append(steps[:, 1:])
            x = block(steps, seen)
        there = seen[:, 1:]
        return norm(x), {"inputs": np.stack(kept, 1) * there[:, None, :, None], "there": there}

    return step


def _attention(node: _Node, arrays: _Arrays) -> Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]:
    """Return the output of a block for steps `[n, reach + 1, size]`, of which the last one is the present."""
    names = ("norm", "query", "key", "value", "project", "wide_norm", "wide", "narrow")
    norm, query, key, value, project, wide_norm, wide, narrow = (_layer(node[name], arrays) for name in names)
    heads, nearness = int(node["heads"]), arrays[node["nearness"]][::-1].T  # the farthest step first

    def block(steps: NDArray[Any], seen: NDArray[Any]) -> NDArray[Any]:
        rows, count, size = steps.shape
        x, looked_at = steps[:, -1], norm(steps).reshape(-1, size)
        asked = query(norm(x)).reshape(rows, heads, 1, -1)
        keys = key(looked_at).reshape(rows, count, heads, -1).transpose(0, 2, 3, 1)
        values = value(looked_at).reshape(rows, count, heads, -1).transpose(0, 2, 1, 3)
        scores = (asked @ keys) * np.float32((heads / size) ** 0.5) + nearness[None, :, None]
        attention = _softmax(scores - np.float32(1e9) * (1.0 - seen[:, None, None]))
        x = x + project((attention @ values).reshape(rows, size))
        return np.asarray(x + narrow(wide(wide_norm(x))))

    return block


def _memories_of_agents(node: _Node, arrays: _Arrays) -> _Step:
    team = _Team(node)
    parts = [_Memory(part, arrays) for part in node["parts"]]
    names = dict(zip(parts[0].shapes, node["state"], strict=True))

    def step(x: NDArray[Any], state: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        outputs, afterwards = [], []
        for members, rows, part in zip(team.groups, team.rows_of_groups(x), parts, strict=True):
            before = {name: _rows_of(state[full][:, members]) for name, full in names.items()}
            found, after = part(rows, before)
            outputs.append(found)
            afterwards.append(after)
        after = {full: team.in_order([each[name] for each in afterwards]) for name, full in names.items()}
        return _joined(team.in_order(outputs)), after

    return step


_MEMORIES: Mapping[str, Callable[[_Node, _Arrays], _Step]] = {
    "agents": _memories_of_agents,
    "gru": _gru,
    "lstm": _lstm,
    "transformer": _transformer,
}


def _optional(name: str | None, arrays: _Arrays) -> NDArray[Any] | None:
    return None if name is None else arrays[name]


# Activations; each may overwrite its argument


def _relu(x: NDArray[Any]) -> NDArray[Any]:
    np.maximum(x, 0.0, out=x)
    return x


def _tanh(x: NDArray[Any]) -> NDArray[Any]:
    np.tanh(x, out=x)
    return x


def _sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))  # without overflow for large numbers


def _elu(x: NDArray[Any], alpha: float = 1.0) -> NDArray[Any]:
    return np.where(x > 0.0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _leaky_relu(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(x > 0.0, x, x * x.dtype.type(0.01))


def _softplus(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def _softmax(x: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _silu(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(x * _sigmoid(x))


def _gelu(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), x.dtype)), x.dtype)


_erf = np.frompyfunc(math.erf, 1, 1)  # numpy has no such function

_ACTIVATIONS: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "elu": _elu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "softmax": _softmax,
    "softplus": _softplus,
    "swish": _silu,
    "tanh": _tanh,
}


def _activation(name: str | None) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
    return None if name is None else _ACTIVATIONS[name]


# Actions

_Act = Callable[[NDArray[Any], NDArray[Any]], Any]


class _Actions:
    """Makes functions that build actions from chosen indices `[n, parts]` and numbers `[n, count]`, part by part."""

    def __init__(self, arrays: _Arrays) -> None:
        self._arrays = arrays
        self._choices = self._numbers = 0

    def of(self, node: _Node) -> _Act:
        if "dict" in node:
            named = {key: self.of(part) for key, part in node["dict"].items()}
            return lambda chosen, numbers: {key: part(chosen, numbers) for key, part in named.items()}
        if "tuple" in node:
            parts = [self.of(part) for part in node["tuple"]]
            return lambda chosen, numbers: tuple(part(chosen, numbers) for part in parts)
        if "choice" in node:
            return self._choice(int(node["choice"]))
        if "choices" in node:
            return self._several(tuple(node["shape"]), self._arrays[node["choices"]])
        return self._box(node)

    def _choice(self, start: int) -> _Act:
        column = self._choices
        self._choices += 1
        if not start:
            return lambda chosen, numbers: chosen[:, column]  # noqa: ARG005
        return lambda chosen, numbers: chosen[:, column] + start  # noqa: ARG005

    def _several(self, shape: tuple[int, ...], start: NDArray[Any]) -> _Act:
        low, high = self._choices, self._choices + math.prod(shape)
        self._choices = high
        return lambda chosen, numbers: chosen[:, low:high].reshape(-1, *shape) + start  # noqa: ARG005

    def _box(self, node: _Node) -> _Act:
        shape, dtype = tuple(node["shape"]), np.dtype(node["dtype"])
        bottom, top = self._arrays[f"{node['box']}.low"], self._arrays[f"{node['box']}.high"]
        scale, shift = self._arrays[f"{node['box']}.scale"], self._arrays[f"{node['box']}.shift"]
        is_mapped = bool((scale != 1.0).any() or shift.any())
        low, high = self._numbers, self._numbers + math.prod(shape)
        self._numbers = high

        def act(chosen: NDArray[Any], numbers: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG001
            found = numbers[:, low:high].reshape(-1, *shape)
            if is_mapped:
                found = found * scale + shift
            return np.asarray(np.minimum(np.maximum(found, bottom), top), dtype)

        return act


def _row(actions: Any) -> Any:
    """Return the only action of a batch of one: Python's number where it is one choice."""
    if isinstance(actions, dict):
        return {key: _row(part) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_row(part) for part in actions)
    row = actions[0]
    return int(row) if actions.ndim == 1 and actions.dtype.kind == "i" else np.asarray(row)
