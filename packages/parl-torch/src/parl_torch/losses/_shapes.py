"""The check of shapes with which every loss begins."""

from torch import Tensor

__all__ = ["same_shape"]


def same_shape(**tensors: Tensor) -> None:
    """Raise an error for tensors of different shapes, which would broadcast to another formula.

    Raises:
        ValueError: Two shapes differ; the message lists all shapes.
    """
    first, *rest = tensors.values()
    for other in rest:
        if other.shape != first.shape:
            listed = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
            raise ValueError(f"shapes differ: {listed}")
