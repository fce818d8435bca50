"""The check of shapes with which every loss begins."""

from __future__ import annotations

from paddle import Tensor

__all__ = ["same_shape"]


def same_shape(**tensors: Tensor) -> None:
    """Raise an error for tensors of different shapes, which would broadcast to another formula.

    While a program is built, an unknown size (-1) matches every size.

    Raises:
        ValueError: Two shapes differ; the message lists all shapes.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    first, *rest = shapes.values()
    if any(other != first and not _may_be_equal(first, other) for other in rest):
        raise ValueError(f"shapes differ: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}")


def _may_be_equal(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
