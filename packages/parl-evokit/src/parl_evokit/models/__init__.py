"""Models of every framework behind one interface."""

from parl_evokit.models._find import adapt
from parl_evokit.models.adapter import ModelAdapter
from parl_evokit.models.numpy_model import NumpyModel, mlp

__all__ = ["ModelAdapter", "NumpyModel", "adapt", "mlp"]
