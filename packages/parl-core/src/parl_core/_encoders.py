"""Encoders: observations of any space as rows of features `[batch, features]`, for `parl_core.networks`.

    Box                        its numbers; of three dimensions, or two of uint8, an image: convolutions
    Discrete, MultiDiscrete    one-hot, counted from where the space starts; of many choices a table of vectors
    MultiBinary                its numbers
    Dict, Tuple                the features of all parts joined, without a mask of actions

`SpaceEncoder` is the first part of a network; the backends combine it with the framework's class of layers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium
import numpy as np

from parl_core.errors import HyperparameterError
from parl_core.layers import Orthogonal
from parl_core.spaces import is_image, unit_scale

__all__ = ["Channels", "ImageEncoder", "ImageFormat", "Layer", "SpaceEncoder", "SpacePart", "parts_of"]

Channels = Literal["auto", "first", "last"]
"""The axis on which images have their channels."""

LARGEST_ONE_HOT = 1024  # number of choices above which a table is faster than one-hot rows
EMBEDDED = 64


class Layer:
    """Base of layers of the framework, which calls `forward`."""

    _layers: Any

    if TYPE_CHECKING:

        def __call__(self, inputs: Any) -> Any: ...

    def _divided(self, images: Any, span: float) -> Any:
        """Backend hook: return images `[batch, channels, height, width]` divided by a number."""
        return images if span == 1.0 else images / span


@dataclass(frozen=True)
class ImageFormat:
    """The form of the images of a Box.

    Attributes:
        frames: Number of images stacked along the first axis; 0 if there is no such axis.
        channels: The number of channels of one image; 0 if images have no channel axis.
        height: The height in pixels.
        width: The width in pixels.
        last: True if the channels are the last axis.
        low: The smallest value.
        span: The largest minus the smallest value; pixels are divided by it.
    """

    frames: int
    channels: int
    height: int
    width: int
    last: bool
    low: float
    span: float

    @classmethod
    def of(cls, space: Any, channels: Channels = "auto") -> "ImageFormat | None":
        """Return the form of a Box's images; None if it has none.

        Three dimensions are an image, whose channels are on the first or last axis, whichever is shorter (the last one
        if they are equal). Four dimensions are a stack of images along the first axis. Two dimensions are an image of
        one channel if the values are uint8, otherwise a matrix.
        """
        shape = space.shape
        if not is_image(space):
            return None
        frames, image = (shape[0], shape[1:]) if len(shape) == 4 else (0, shape)
        last = channels == "last" or (channels == "auto" and image[-1] <= image[0])
        low, span = (float(numbers[0]) for numbers in unit_scale(space))
        if len(image) == 2:
            return cls(frames, 0, image[0], image[1], False, low, span)
        if last:
            return cls(frames, image[2], image[0], image[1], True, low, span)
        return cls(frames, image[0], image[1], image[2], False, low, span)

    def planes(self, layers: Any, images: Any) -> Any:
        """Return images `[batch, planes, height, width]` as floats from 0 on, up to `span` if the space has bounds."""
        pixels = layers.cast(images, "float32")
        if self.last:
            order = [0, 1, 4, 2, 3] if self.frames else [0, 3, 1, 2]
            pixels = layers.transpose(pixels, order)
        if self.frames or not self.channels:
            planes = max(self.frames, 1) * max(self.channels, 1)
            pixels = layers.reshape(pixels, [0, planes, self.height, self.width])
        if self.low:
            pixels = pixels - self.low
        return pixels


class ImageEncoder(Layer):
    """Convolutions over images of any size, and a layer of features.

    Images of at least 36 x 36 get the three convolutions and 512 units of Mnih et al. 2015 (extended data table 1);
    smaller ones get two zero-padded 3 x 3 convolutions with 32 and 64 filters, and 256 units. Their stride is 2 from 12
    x 12 on.

    Args:
        form: The form of the images.
    """

    def __init__(self, form: ImageFormat) -> None:
        start = Orthogonal(sqrt(2.0))
        side = min(form.height, form.width)
        stride = 2 if side >= 12 else 1
        filters, units = [(32, 3, stride, 1), (64, 3, stride, 1)], 256
        if side >= 36:
            filters, units = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)], 512
        layers = [
            self._layers.conv_2d(count, size, stride, padding, act="relu", initial_weight=start)
            for count, size, stride, padding in filters
        ]
        layers.append(self._layers.fc(units, act="relu", initial_weight=start))
        super().__init__(*layers)
        self.form = form

    def forward(self, images: Any) -> Any:
        """Return the features of images in the environment's layout."""
        planes = self.form.planes(self._layers, images)
        return super().forward(self._divided(planes, self.form.span))  # type: ignore[misc]  # of the framework


@dataclass(frozen=True)
class SpacePart:
    """One array of observations.

    Attributes:
        path: Keys that lead to it.
        image: The form of its images, if it has any.
        choices: (number of choices, first choice) of each part of an array of choices; empty for other arrays.
        numbers: Its size.
    """

    path: tuple[str, ...]
    image: ImageFormat | None
    choices: tuple[tuple[int, int], ...]
    numbers: int

    def of(self, observations: Any) -> Any:
        """Return its array."""
        for key in self.path:
            observations = observations[key if isinstance(observations, Mapping) else int(key)]
        return observations


def parts_of(space: Any, channels: Channels = "auto", *, masked: bool = False) -> tuple[SpacePart, ...]:
    """Return the arrays of which observations consist.

    Args:
        space: Space of observations.
        channels: The axis of an image's channels.
        masked: True if the entry `action_mask` of a Dict is a mask of actions instead of an observation.

    Raises:
        HyperparameterError: A part is not an array of a fixed shape (a text or a graph, for example), or there is
            nothing to observe.
    """
    found = tuple(
        SpacePart(
            path,
            ImageFormat.of(leaf, channels) if isinstance(leaf, gymnasium.spaces.Box) else None,
            _choices(leaf),
            prod(leaf.shape),
        )
        for path, leaf in _walk(space, ())
        if not (masked and path == ("action_mask",))
    )
    if not any(part.image or part.choices or part.numbers for part in found):
        raise HyperparameterError(
            f"there is nothing to observe in {space}: add a constant observation, such as a Box of shape (1,)"
        )
    return found


def _walk(space: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    match space:
        case gymnasium.spaces.Dict():
            for key, part in space.spaces.items():
                yield from _walk(part, (*path, key))
        case gymnasium.spaces.Tuple():
            for i, part in enumerate(space.spaces):
                yield from _walk(part, (*path, str(i)))
        case (
            gymnasium.spaces.Box()
            | gymnasium.spaces.Discrete()
            | gymnasium.spaces.MultiDiscrete()
            | gymnasium.spaces.MultiBinary()
        ):
            yield path, space
        case _:
            where = f"observation[{']['.join(map(repr, path))}]" if path else "the observation"
            remedy = (
                "a fixed number of tokens (MultiDiscrete), or an embedding (Box), by an ObservationWrapper"
                if isinstance(space, gymnasium.spaces.Text)
                else "arrays of a fixed shape, by an ObservationWrapper"
            )
            raise HyperparameterError(f"{where} is {space}, which networks cannot process: convert it to {remedy}")


class SpaceEncoder(Layer):
    """Layer that computes the features `[batch, features]` of observations of any space, joined from its parts.

    Args:
        parts: The result of `parts_of`.
    """

    _image_encoder: ClassVar[Callable[..., Any]]
    _layer_list: ClassVar[Callable[..., Any]]

    def __init__(self, parts: tuple[SpacePart, ...]) -> None:
        super().__init__()
        self.images = self._layer_list([type(self)._image_encoder(part.image) for part in parts if part.image])
        tables = [size for part in parts for size, _ in part.choices if size > LARGEST_ONE_HOT]
        self.tables = self._layer_list([self._layers.embedding((size, EMBEDDED)) for size in tables])
        self._plan = parts

    def forward(self, observations: Any) -> Any:
        """Return the features of observations: an array, or dictionaries of such."""
        images, tables = iter(self.images), iter(self.tables)
        features: list[Any] = []
        for part in self._plan:
            array = part.of(observations)
            if part.image is not None:
                features.append(next(images)(array))
            elif part.choices:
                columns = self._layers.reshape(array, [0, len(part.choices)])
                for i, (size, start) in enumerate(part.choices):
                    choice = columns[:, i] - start if start else columns[:, i]
                    features.append(
                        next(tables)(choice) if size > LARGEST_ONE_HOT else self._layers.one_hot(choice, size)
                    )
            else:
                numbers = self._layers.cast(array, "float32")
                features.append(self._layers.reshape(numbers, [numbers.shape[0], part.numbers]))
        return features[0] if len(features) == 1 else self._layers.concat(features, axis=-1)


def _choices(space: Any) -> tuple[tuple[int, int], ...]:
    """Return (number of choices, first choice) of each part of a space of choices; nothing for other spaces."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return ((int(space.n), int(space.start)),)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        nvec = np.asarray(space.nvec).reshape(-1)
        start = np.broadcast_to(np.asarray(getattr(space, "start", 0)), np.shape(space.nvec)).reshape(-1)
        return tuple(zip(nvec.tolist(), start.tolist(), strict=True))
    return ()
