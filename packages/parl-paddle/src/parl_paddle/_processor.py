"""The instruction set of paddle's matrix products on AMD processors.

Paddle's CPU builds contain an MKL of 2019, which uses SSE on processors of other vendors than Intel, at a third of
their speed. The environment variable `MKL_DEBUG_CPU_TYPE` selects another kind of processor; this MKL reads it at the
first product, and later versions (PyTorch's) ignore it.
"""

import os
from pathlib import Path

__all__ = ["let_mkl_use_avx2"]

_VARIABLE = "MKL_DEBUG_CPU_TYPE"
_AVX2 = "5"
_CPUINFO = Path("/proc/cpuinfo")


def let_mkl_use_avx2() -> None:
    """Set the variable if the processor is of AMD and has AVX2, unless the user has set it."""
    if _VARIABLE not in os.environ and _is_amd_with_avx2():
        os.environ[_VARIABLE] = _AVX2


def _is_amd_with_avx2() -> bool:
    try:
        with _CPUINFO.open() as lines:
            first = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    except OSError:  # not on Linux
        return False
    return "AuthenticAMD" in first.get("vendor_id", "") and "avx2" in first.get("flags", "").split()
