"""The examples in the guides whose output is looked at run, each page's from top to bottom as the program of a user.

`test_code_blocks` runs all other pages.

A page's blocks are one program, because later ones go on from earlier ones. Numbers of steps are made smaller: the
same loops, with fewer updates.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parl_core import backends

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
BACKEND = backends.current().name
SECONDS = 180  # a busy machine is slow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 30)]


def program_of(page: str, **smaller: str) -> str:
    """All Python on a page, with these numbers in place of its own."""
    source = "\n".join(re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL))
    for setting, number in smaller.items():
        source, found = re.subn(rf"\b{setting}=[\d_]+", f"{setting}={number}", source)
        assert found, f"{page} has no {setting}= any more"
    return source


def run(source: str, folder: Path) -> str:
    """Return the program's output."""
    (folder / "program.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PARL_BACKEND": BACKEND},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def checkpoints_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name.isdigit())


def test_environments(tmp_path: Path) -> None:
    printed = run(program_of("environments.md"), tmp_path)
    assert (tmp_path / "run" / "agent.ckpt").is_file()
    assert "which are not used" not in printed  # the statistics that were saved with the agent


def test_a_run_is_resumed_with_a_larger_budget(tmp_path: Path) -> None:
    run(program_of("resume.md", total_steps="200", every="100"), tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert checkpoints_in(folder)[-1] == "000000000200"
    source = program_of("resume.md", total_steps="400", every="100")
    resumed, found = re.subn(r'training\.Run\("pendulum"\)', f'training.Run.resume("runs/{folder.name}")', source)
    assert found == 1
    run(resumed, tmp_path)
    assert checkpoints_in(folder)[-1] == "000000000400"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


def test_callbacks(tmp_path: Path) -> None:
    printed = run(program_of("callbacks.md", total_steps="1_200"), tmp_path)
    assert "the longest training episode took" in printed
    assert re.search(r"^[1-9]\d* evaluations in an actor$", printed, re.MULTILINE)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"best.ckpt", "last.ckpt"} <= {path.name for path in folder.iterdir()}
