"""The PyTorch backend of PARL, which programs use through `parl`; `parl_torch.networks` has ready-made models."""

from parl_core._compatibility import require_core
from parl_torch._version import PARL_CORE, __version__

__all__ = ["__version__"]

require_core(f"parl-torch {__version__}", PARL_CORE)
