"""The PaddlePaddle backend of PARL, which programs use through `parl`; `parl_paddle.networks` has ready-made models."""

from parl_core._compatibility import require_core
from parl_paddle._processor import let_mkl_use_avx2
from parl_paddle._version import PARL_CORE, __version__

__all__ = ["__version__"]

require_core(f"parl-paddle {__version__}", PARL_CORE)
let_mkl_use_avx2()
