"""The instructions that paddle's matrix products use on processors of AMD.

Paddle's CPU builds bring an MKL of 2019, which uses SSE on processors that are not Intel's, a third of their speed.
This MKL takes another kind of processor from the environment variable `MKL_DEBUG_CPU_TYPE`, which it reads at the first
product; later ones (PyTorch's) do not know it.
"""

import os
from pathlib import Path

__all__ = ["let_mkl_use_avx2"]

_VARIABLE = "MKL_DEBUG_CPU_TYPE"
_AVX2 = "5"
_CPUINFO = Path("/proc/cpuinfo")


def let_mkl_use_avx2() -> None:
    """Set the variable where the processor is AMD's and has AVX2, unless the user has set it."""
    if _VARIABLE not in os.environ and _is_amd_with_avx2():
        os.environ[_VARIABLE] = _AVX2


def _is_amd_with_avx2() -> bool:
    try:
        with _CPUINFO.open() as lines:
            first = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    except OSError:  # not Linux
        return False
    return "AuthenticAMD" in first.get("vendor_id", "") and "avx2" in first.get("flags", "").split()
