"""Code in READMEs and pages that needs no framework runs, and every block that does not run has a reason."""

from pathlib import Path

import pytest
from code_blocks import ROOT, RUN_BY, SECONDS, Left, Program, left_out, programs


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("program", programs("base"), ids=str)
def test_a_program_of_a_page_runs(program: Program, tmp_path: Path) -> None:
    program.run(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", left_out(), ids=str)
def test_a_block_that_does_not_run_here_has_a_reason(block: Left) -> None:
    assert len(block.reason) > len("run by ")
    pytest.skip(block.reason)


@pytest.mark.parametrize("page", RUN_BY)
def test_a_page_that_another_test_runs_is_named_there(page: str) -> None:
    assert (ROOT / page).exists()
    assert Path(page).name in (ROOT / RUN_BY[page]).read_text(encoding="utf-8")
