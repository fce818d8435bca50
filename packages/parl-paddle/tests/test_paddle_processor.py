"""Paddle's matrix products use AVX2 on AMD's processors, by a variable that a user's own setting overrides."""

import subprocess
import sys
from pathlib import Path

import pytest

from parl_paddle import _processor

AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx avx2 fma\n"


@pytest.mark.parametrize(
    ("cpuinfo", "before", "after"),
    [
        (AMD, None, "5"),
        (AMD, "4", "4"),
        (AMD.replace(" avx2", ""), None, None),
        (AMD.replace("AuthenticAMD", "GenuineIntel"), None, None),
        (None, None, None),
    ],
    ids=["AMD", "the user's", "without AVX2", "Intel", "no such file"],
)
def test_the_variable_is_set_where_it_helps(
    cpuinfo: str | None, before: str | None, after: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    environment = {} if before is None else {"MKL_DEBUG_CPU_TYPE": before}
    monkeypatch.setattr(_processor.os, "environ", environment)
    monkeypatch.setattr(_processor, "_CPUINFO", path)
    _processor.let_mkl_use_avx2()
    assert environment.get("MKL_DEBUG_CPU_TYPE") == after


def test_it_is_set_before_paddle_is_loaded() -> None:
    program = (
        "import os, sys, parl\n"
        "import parl_paddle\n"
        "assert 'paddle' not in sys.modules\n"
        "from parl_paddle import _processor\n"
        "assert _processor._is_amd_with_avx2() == ('MKL_DEBUG_CPU_TYPE' in os.environ)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)}
    )
