"""Code in READMEs and pages that needs a backend runs on each that it is for."""

from pathlib import Path

import pytest
from code_blocks import SECONDS, Program, programs

from parl_core import backends

BACKEND = backends.current().name


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("program", programs(BACKEND), ids=str)
def test_a_program_of_a_page_runs(program: Program, tmp_path: Path) -> None:
    program.run(tmp_path, BACKEND)
