"""One line at the top of every loss: tensors of a batch must have the shapes that the formula means."""

from torch import Tensor

__all__ = ["same_shape"]


def same_shape(**tensors: Tensor) -> None:
    """Refuse tensors of different shapes, which would broadcast to another formula.

    Raises:
        ValueError: it lists all shapes.
    """
    first, *rest = tensors.values()
    for other in rest:
        if other.shape != first.shape:
            listed = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
            raise ValueError(f"shapes differ: {listed}")
