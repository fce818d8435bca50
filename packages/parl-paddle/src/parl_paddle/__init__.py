"""The PaddlePaddle backend of PARL, which programs use through `parl`; `parl_paddle.networks` has ready-made models."""

from parl_paddle._version import __version__

__all__ = ["__version__"]
