"""The PyTorch backend of PARL; programs use it through `parl`, and `parl_torch.networks` has ready-made models."""

from parl_torch._version import __version__

__all__ = ["__version__"]
